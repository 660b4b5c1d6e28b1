"""Field reports about who holds what, and about damaged records, on the real process."""

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dra_driver.model import ClaimRef
from tests.faults.reports import (
    PART,
    WITH_PARTITION,
    cdi_file,
    prepare,
    record_file,
    refused,
    started,
    unprepare,
    while_dead,
)
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import MakeBed, NodeBed

# B21: the scheduler gives a device away that is still in use


def test_b21_a_device_in_use_is_refused_until_it_is_free(make_bed: MakeBed) -> None:
    bed = started(make_bed(gpus=1))
    first, second = bed.claim("first", "gpu-0"), bed.claim("second", "gpu-0")
    prepare(bed, first)
    assert refused(bed, second) == "DeviceInUse"
    (line,) = bed.processes[-1].lines("call failed")
    assert "default/first" in line
    with while_dead(bed):
        pass
    assert refused(bed, second) == "DeviceInUse", "after a restart too"
    unprepare(bed, first)
    assert refused(bed, second) == ""


def test_b21_a_pod_gets_the_device_as_soon_as_the_other_has_left(make_bed: MakeBed) -> None:
    """Within its one call: the kubelet's next one may come a minute later."""
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    plugin = bed.serve()
    first, second = bed.claim("first", "gpu-0"), bed.claim("second", "gpu-0")
    prepare(bed, first)
    with ThreadPoolExecutor(1) as pod:
        waiting = pod.submit(prepare, bed, second)
        eventually(
            lambda: plugin.lines("prepare is tried again", "still held"), "the second is held back"
        )
        assert len(bed.claim_files()) == 2, "nothing of the second claim is there"
        unprepare(bed, first)
        assert waiting.result() == ["gpu-0"]
    unprepare(bed, second)
    assert bed.claim_files() == set()


def test_b21_overlapping_placements_and_parents_are_refused(make_bed: MakeBed) -> None:
    bed = started(make_bed(spec=WITH_PARTITION))
    part, whole = bed.claim("part", PART), bed.claim("whole", "gpu-0")
    prepare(bed, part)
    prepare(bed, whole)
    (instance,) = bed.node.gpu(1)["instances"]
    bed.node.state.unpartition(1, instance["id"])
    bed.node.state.partition(1, "2g.20gb", 0)  # made by hand over the one that is in use
    bed.node.state.set_mig_mode(0, on=True)
    bed.node.state.partition(0, "1g.10gb", 0)
    larger = bed.claim("larger", "gpu-1-mig-2g20gb-14-0")
    child = bed.claim("child", "gpu-0-mig-1g10gb-19-0")
    assert (refused(bed, larger), refused(bed, child)) == ("DeviceInUse", "DeviceInUse")
    unprepare(bed, part)
    unprepare(bed, whole)
    assert (refused(bed, larger), refused(bed, child)) == ("", "")


def test_b21_admin_access_and_shares_are_let_through(make_bed: MakeBed) -> None:
    bed = started(make_bed(gpus=2))
    admin = {"device": "gpu-0", "adminAccess": True}
    owner, monitor = bed.claim("owner", "gpu-0"), bed.claim("monitor", admin)
    prepare(bed, monitor)
    prepare(bed, owner)
    unprepare(bed, monitor)
    prepare(bed, monitor)
    assert refused(bed, bed.claim("thief", "gpu-0")) == "DeviceInUse"
    shares = [{"device": "gpu-1", "shareID": f"0000-{number}"} for number in range(3)]
    sharers = [bed.claim(f"sharer-{number}", share) for number, share in enumerate(shares)]
    for sharer in sharers:
        prepare(bed, sharer)
    assert refused(bed, bed.claim("again", shares[0])) == "DeviceInUse", "a share is used once"
    assert refused(bed, bed.claim("all-of-it", "gpu-1")) == "DeviceInUse"
    for claim in (owner, monitor, *sharers):
        unprepare(bed, claim)
    assert bed.claim_files() == set()


# B22: records that can't be read


def sealed(content: Any) -> bytes:
    body = json.dumps(content).encode()
    return body + b"\n" + json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n"


def fields(raw: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(raw.splitlines()[0])
    return found


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": lambda raw: raw[: len(raw) // 2],
    "garbage": lambda raw: bytes(byte ^ 0x55 for byte in raw),
    "zeros": lambda raw: bytes(len(raw)),
    "wrong checksum": lambda raw: raw.replace(b"gpu-0", b"gpu-1", 1),
    "of another claim": lambda raw: sealed(fields(raw) | {"uid": "another"}),
    "newer and not readable": lambda raw: sealed(
        fields(raw) | {"schema_number": 2, "phase": "invented"}
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_b22_a_damaged_record_is_rebuilt_from_the_cdi_file(
    make_bed: MakeBed, damage: Callable[[bytes], bytes]
) -> None:
    bed = started(make_bed(gpus=2))
    claim = bed.claim("mine", "gpu-0")
    answer = bed.kubelet.prepare(DRIVER, [claim])
    record = record_file(bed, claim)
    with while_dead(bed):
        record.write_bytes(damage(record.read_bytes()))
    assert bed.get("/healthz") == (200, "ok\n")
    eventually(lambda: events(bed, "RecordDamaged"), "people are told")
    assert (bed.data_folder / "damaged" / record.name).exists()
    assert refused(bed, bed.claim("other", "gpu-0")) == "DeviceInUse"
    assert prepare(bed, bed.claim("free", "gpu-1")) == ["gpu-1"]
    assert bed.kubelet.prepare(DRIVER, [claim]) == answer
    gone(bed, claim)


@pytest.mark.parametrize("how", ["damaged", "a folder"])
def test_b22_while_nothing_tells_what_it_held_nothing_is_given_out(
    make_bed: MakeBed, how: str
) -> None:
    bed = started(make_bed(gpus=2))
    claim, other = bed.claim("mine", "gpu-0"), bed.claim("other", "gpu-0")
    prepare(bed, claim)
    record = record_file(bed, claim)
    with while_dead(bed):
        record.unlink()
        record.mkdir() if how == "a folder" else record.write_bytes(b"?")
        cdi_file(bed, claim).unlink()
    assert refused(bed, other) == "RecordDamaged"
    assert refused(bed, bed.claim("free", "gpu-1")) == "RecordDamaged"
    if how == "a folder":  # nobody but a person can tell what is to become of it
        record.rmdir()
    gone(bed, claim)
    assert refused(bed, other) == ""


def test_b22_a_damaged_claim_is_prepared_again(make_bed: MakeBed) -> None:
    bed = started(make_bed(gpus=2))
    claim = bed.claim("mine", "gpu-0")
    prepare(bed, claim)
    with while_dead(bed):
        record_file(bed, claim).write_bytes(b"")
        cdi_file(bed, claim).unlink()  # as after a reboot
    assert prepare(bed, claim) == ["gpu-0"]
    assert refused(bed, bed.claim("free", "gpu-1")) == ""
    gone(bed, claim)


def test_b22_a_failed_prepare_of_a_damaged_claim_gives_nothing_out(make_bed: MakeBed) -> None:
    """Containers from before the damage may run on, whatever becomes of another Pod's call."""
    bed = started(make_bed(gpus=2))
    claim, other = bed.claim("mine", "gpu-0"), bed.claim("other", "gpu-0")
    prepare(bed, claim)
    with while_dead(bed):
        record_file(bed, claim).write_bytes(b"?")
        cdi_file(bed, claim).unlink()
    (library,) = bed.node.library.parent.glob("libcuda.so.[0-9]*.*")
    library.rename(library.with_name("gone"))
    assert refused(bed, claim) == "DriverFilesMissing"
    library.with_name("gone").rename(library)
    assert refused(bed, other) == "RecordDamaged"
    gone(bed, claim)
    assert refused(bed, other) == ""


def test_b22_records_of_older_and_newer_drivers_are_read(make_bed: MakeBed) -> None:
    bed = started(make_bed(gpus=2))
    older, newer = bed.claim("older", "gpu-0"), bed.claim("newer", "gpu-1")
    for claim in (older, newer):
        prepare(bed, claim)
    with while_dead(bed):
        old = fields(record_file(bed, older).read_bytes())
        del old["schema_number"], old["boot_id"]
        record_file(bed, older).write_bytes(sealed(old))
        new = fields(record_file(bed, newer).read_bytes()) | {"schema_number": 2, "extra": [1]}
        record_file(bed, newer).write_bytes(sealed(new))
        for claim in (older, newer):
            cdi_file(bed, claim).unlink()
    assert bed.processes[-1].lines("damaged") == []
    for claim in (older, newer):
        eventually(cdi_file(bed, claim).exists, "it is restored")
        prepare(bed, claim)
    assert fields(record_file(bed, newer).read_bytes())["extra"] == [1]
    for claim in (older, newer):
        gone(bed, claim)


def test_b22_records_that_were_lost_are_written_again(make_bed: MakeBed) -> None:
    bed = started(make_bed(gpus=2))
    claim = bed.claim("mine", "gpu-0")
    prepare(bed, claim)
    with while_dead(bed):
        record_file(bed, claim).unlink()
    assert record_file(bed, claim).exists()
    assert refused(bed, bed.claim("other", "gpu-0")) == "DeviceInUse"
    gone(bed, claim)


def gone(bed: NodeBed, claim: ClaimRef) -> None:
    """Unprepare, after which nothing tells of the claim."""
    unprepare(bed, claim)
    left = [path for path in bed.folder.rglob("*") if claim.uid in path.name]
    assert left == []


def events(bed: NodeBed, reason: str) -> list[str]:
    found = bed.api.objects.select("events", {"reason": reason})
    return [event["message"] for event in found]
