"""Records survive crashes, damage and a second instance."""

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dra_driver.model.errors import (
    ClaimNotFound,
    DeviceInUse,
    HardwareBusy,
    RecordDamaged,
    StorageFailed,
)
from dra_driver.state import ClaimRecord, DeviceRecord, Ownership, Phase, Records
from dra_driver.state.record import decode, encode


def claim(uid: str, gpu: str = "GPU-a", **device: object) -> ClaimRecord:
    fields = {
        "request": "r",
        "pool": "node-a",
        "device": "gpu-0",
        "gpu_uuid": gpu,
        "gpu_minor": 0,
        "uuid": gpu,
    }
    return ClaimRecord(
        namespace="team",
        name=f"claim-{uid}",
        uid=uid,
        devices=(DeviceRecord.model_validate(fields | device),),
    )


@pytest.fixture
def records(tmp_path: Path) -> Records:
    store = Records(tmp_path, NONE)
    store.load()
    return store


def nothing() -> None:
    pass


class Told:
    """Traces that tell of these claims."""

    def __init__(self, *uids: str, gpu: str = "GPU-a") -> None:
        self.known = {uid: claim(uid, gpu) for uid in uids}

    def uids(self) -> set[str]:
        return {*self.known, "nothing-to-say"}

    def record(self, uid: str) -> ClaimRecord | None:
        return self.known.get(uid)


NONE = Told()


def sealed(content: object) -> bytes:
    body = json.dumps(content).encode()
    return body + b"\n" + json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n"


def test_a_record_reads_back_as_written(records: Records) -> None:
    record = claim("u1", placement=(0, 1), gi_profile_id=19, share_id="s")
    records.reserve(record)
    assert records.get("u1") == record
    records.update(record.in_phase(Phase.PREPARED))
    stored = records.get("u1")
    assert stored is not None
    assert stored.phase is Phase.PREPARED


def test_fields_of_a_newer_version_are_kept_over_an_update(
    records: Records, tmp_path: Path
) -> None:
    newer = json.loads(encode(claim("u1")).splitlines()[0])
    newer["invented_later"] = {"deep": [1, 2]}
    newer["devices"][0]["also"] = "new"
    record = ClaimRecord.model_validate(newer)
    records.reserve(record)
    read = records.get("u1")
    assert read is not None
    records.update(read.in_phase(Phase.PREPARED))
    stored = json.loads((tmp_path / "claims" / "u1.json").read_bytes().splitlines()[0])
    assert stored["invented_later"] == {"deep": [1, 2]}
    assert stored["devices"][0]["also"] == "new"


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda raw: raw[: len(raw) // 2],
        lambda raw: raw.replace(b"GPU-a", b"GPU-b", 1),
        lambda raw: b"\x00" * len(raw),
        lambda raw: raw.splitlines()[0] + b"\n[]\n",
    ],
    ids=["empty", "truncated", "altered", "zeros", "no-seal"],
)
def test_a_damaged_record_is_set_aside_and_named(tmp_path: Path, damage: object) -> None:
    first = Records(tmp_path, NONE)
    first.load()
    first.reserve(claim("u1"))
    path = tmp_path / "claims" / "u1.json"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    again = Records(tmp_path, NONE)
    again.load()
    assert again.get("u1") is None
    assert "u1" in again.damaged
    assert (tmp_path / "damaged" / "u1.json").exists()


def test_a_damaged_record_is_rebuilt_and_its_device_stays_taken(tmp_path: Path) -> None:
    path = tmp_path / "claims" / "u1.json"
    first = Records(tmp_path, NONE)
    first.load()
    first.reserve(claim("u1"))
    path.write_bytes(b"\x00" * 100)
    again = Records(tmp_path, Told("u1"))
    again.load()
    with pytest.raises(DeviceInUse):
        again.reserve(claim("u2"))
    assert again.get("u1") == claim("u1")
    assert list(again.damaged) == ["u1"]
    again.forget("u1", nothing)
    assert again.damaged == {}
    assert list((tmp_path / "damaged").iterdir()) == []


def test_while_a_record_cannot_be_read_nothing_is_given_out(tmp_path: Path) -> None:
    first = Records(tmp_path, NONE)
    first.load()
    first.reserve(claim("u1"))
    (tmp_path / "claims" / "u1.json").write_bytes(b"")
    told: list[str] = []
    again = Records(tmp_path, NONE, told.append)
    again.load()
    assert len(told) == 1
    assert "u1" in told[0]
    with pytest.raises(RecordDamaged, match=r"damaged/u1\.json") as refused:
        again.reserve(claim("u2", gpu="GPU-b"))
    assert "UID u1" in str(refused.value)
    again.reserve(claim("u3", admin_access=True))  # takes nothing from anybody
    again.reserve(claim("u1"))  # prepared again: now it is known what it holds
    again.reserve(claim("u2", gpu="GPU-b"))
    with pytest.raises(DeviceInUse):
        again.reserve(claim("u4"))


def test_a_prepare_that_is_taken_back_tells_nothing_of_what_was_set_aside(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "u1.json").write_bytes(b"")
    records = Records(tmp_path, NONE)
    records.load()
    records.reserve(claim("u1"))
    records.forget("u1", lambda: pytest.fail("it may hold something"), keep_aside=True)
    assert list(records.damaged) == ["u1"]
    with pytest.raises(RecordDamaged, match="UID u1"):
        records.reserve(claim("u2"))
    records.forget("u1", nothing)
    records.reserve(claim("u2"))


@pytest.mark.parametrize("how", ["unprepared", "removed by a person"])
def test_the_unreadable_record_goes_and_all_is_well(tmp_path: Path, how: str) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "u1.json").write_bytes(b"{")
    records = Records(tmp_path, NONE)
    records.load()
    with pytest.raises(RecordDamaged):
        records.reserve(claim("u2"))
    last: list[str] = []
    if how == "unprepared":
        records.forget("u1", lambda: last.append("u1"))
        assert last == ["u1"]
    else:
        (tmp_path / "damaged" / "u1.json").unlink()
    records.reserve(claim("u2"))


def test_a_file_that_cannot_be_opened_is_as_bad(tmp_path: Path) -> None:
    (tmp_path / "claims" / "u1.json").mkdir(parents=True)
    records = Records(tmp_path, NONE)
    records.load()
    assert list(records.damaged) == ["u1"]
    with pytest.raises(RecordDamaged, match="cannot read"):
        records.reserve(claim("u2"))
    with pytest.raises(StorageFailed):
        records.get("u1")
    (tmp_path / "claims" / "u1.json").rmdir()
    records.reserve(claim("u2"))


def test_files_that_are_no_records_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    for name in ("my backup.json", "-x.json", "u1.json.bak", f"{'u' * 64}.json"):
        (tmp_path / "claims" / name).write_bytes(b"?")
    records = Records(tmp_path, NONE)
    records.load()
    records.reserve(claim("u1"))
    assert records.damaged == {}
    assert [record.uid for record in records.all()] == ["u1"]


def test_the_record_of_another_claim_tells_nothing_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "u1.json").write_bytes(encode(claim("u2")))
    records = Records(tmp_path, NONE)
    records.load()
    with pytest.raises(RecordDamaged, match="UID u1"):
        records.reserve(claim("u3", gpu="GPU-b"))
    again = Records(tmp_path, Told("u1"))
    again.load()
    again.reserve(claim("u3", gpu="GPU-b"))


def test_what_an_older_driver_wrote_is_read() -> None:
    old = {
        "schema_number": 0,
        "namespace": "team",
        "name": "claim-u1",
        "uid": "u1",
        "devices": [
            {
                "request": "r",
                "pool": "node-a",
                "device": "gpu-0",
                "gpu_uuid": "GPU-a",
                "gpu_minor": 0,
                "uuid": "GPU-a",
            }
        ],
    }
    record = decode(sealed(old), "u1")
    assert record.devices == claim("u1").devices
    assert record.phase is Phase.PREPARING  # what says nothing is not finished


def test_what_only_a_newer_driver_can_read_waits_for_it(tmp_path: Path) -> None:
    newer = json.loads(encode(claim("u1")).splitlines()[0]) | {"schema_number": 2}
    newer["phase"] = "half-way"
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "u1.json").write_bytes(sealed(newer))
    records = Records(tmp_path, NONE)
    records.load()
    assert "newer driver: schema 2" in records.damaged["u1"]
    with pytest.raises(RecordDamaged):
        records.reserve(claim("u2"))
    aside = tmp_path / "damaged" / "u1.json"
    assert aside.read_bytes() == sealed(newer)
    aside.write_bytes(encode(claim("u1")))  # in the form that the next version understands
    upgraded = Records(tmp_path, NONE)
    upgraded.load()
    assert upgraded.get("u1") == claim("u1")
    with pytest.raises(DeviceInUse):
        upgraded.reserve(claim("u2"))


@pytest.mark.parametrize(
    "when", ["at the start", "while it runs", "when another one wrote", "when its claim is called"]
)
def test_a_record_that_was_lost_is_written_again(tmp_path: Path, when: str) -> None:
    records = Records(tmp_path, Told("u1"))
    records.load()
    assert records.all() == [claim("u1")]
    shutil.rmtree(tmp_path / "claims")
    if when == "at the start":
        records = Records(tmp_path, Told("u1"))
        records.load()
    elif when == "while it runs":
        records.recover()
    elif when == "when its claim is called":
        assert records.get("u1") == claim("u1")
    else:
        other = Records(tmp_path, NONE)
        other.load()
    with pytest.raises(DeviceInUse):
        records.reserve(claim("u2"))
    assert records.all() == [claim("u1")]
    assert list(records.damaged) == ["u1"]
    records.forget("u1", nothing)
    assert records.damaged == {}


def test_a_trace_that_is_older_than_the_record_of_another_claim_is_not_believed(
    tmp_path: Path,
) -> None:
    traces = Told()
    records = Records(tmp_path, traces)
    records.load()
    records.reserve(claim("u2"))
    traces.known["u1"] = claim("u1")  # out of reach until now
    assert records.get("u1") is None
    records.recover()
    again = Records(tmp_path, traces)
    again.load()
    assert again.all() == [claim("u2")]
    with pytest.raises(DeviceInUse, match="UID u2"):
        again.reserve(claim("u1"))


def test_a_full_disk_does_not_keep_a_rebuilt_record_from_its_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Records(tmp_path, NONE)
    first.load()
    first.reserve(claim("u1"))
    (tmp_path / "claims" / "u1.json").write_bytes(b"")

    def full(path: Path, content: bytes, **_: object) -> None:
        raise StorageFailed(f"cannot write {path}: No space left on device")

    monkeypatch.setattr("dra_driver.state.store.write_durably", full)
    traces = Told("u1")
    again = Records(tmp_path, traces)
    again.load()
    assert again.get("u1") == claim("u1")
    with pytest.raises(DeviceInUse):
        again.reserve(claim("u2"))
    traces.known.clear()
    again.forget("u1", nothing)
    assert again.get("u1") is None


def test_the_disk_is_waited_for_four_times_from_reserve_to_forget(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr("dra_driver.host.files.os.fsync", flushed.append)
    records.reserve(claim("u1"))
    assert len(flushed) == 2  # ahead of any change: the file, and the folder that names it
    records.update(claim("u1").in_phase(Phase.PREPARED))
    assert len(flushed) == 3
    records.forget("u1", nothing)
    assert len(flushed) == 4


def test_a_record_of_another_claim_is_damage() -> None:
    with pytest.raises(RecordDamaged, match="holds claim u2"):
        decode(encode(claim("u2")), "u1")


def test_what_is_held_is_refused_until_it_is_forgotten(records: Records) -> None:
    records.reserve(claim("u1"))
    with pytest.raises(DeviceInUse, match=r"still held by claim team/claim-u1"):
        records.reserve(claim("u2"))
    assert records.get("u2") is None
    records.forget("u1", nothing)
    records.reserve(claim("u2"))


def test_the_last_one_leaving_is_told(records: Records) -> None:
    told: list[str] = []
    records.reserve(claim("u1"))
    records.reserve(claim("u2", gpu="GPU-b"))
    records.forget("u1", lambda: told.append("u1"))
    assert told == []
    records.forget("u2", lambda: told.append("u2"))
    assert told == ["u2"]


def test_a_second_instance_sees_what_the_first_did(tmp_path: Path) -> None:
    first, second = Records(tmp_path, NONE), Records(tmp_path, NONE)
    first.load()
    second.load()
    first.reserve(claim("u1"))
    with pytest.raises(DeviceInUse):
        second.reserve(claim("u2"))
    second.forget("u1", nothing)
    first.reserve(claim("u2"))


def test_one_instance_reads_its_folder_once(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = 0
    read_all = records._read_all

    def counted() -> Ownership:
        nonlocal loads
        loads += 1
        return read_all()

    monkeypatch.setattr(records, "_read_all", counted)
    for number in range(20):
        records.reserve(claim(f"u{number}", gpu=f"GPU-{number}"))
    assert loads == 0


@pytest.mark.parametrize("uid", ["", "../../etc/passwd", "a/b", "-x", "u" * 64, "a\0b"])
def test_a_uid_that_is_no_uid_reaches_no_path(records: Records, uid: str) -> None:
    with pytest.raises(ClaimNotFound):
        records.get(uid)


def _hold(folder: Path, ready: object) -> None:
    records = Records(folder, NONE)
    with records.claim_lock("u1"):
        ready.set()  # type: ignore[attr-defined]
        time.sleep(60)


def test_a_killed_holder_leaves_no_lock_behind(records: Records, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, ready))
    holder.start()
    try:
        assert ready.wait(60)
        with pytest.raises(HardwareBusy), records.claim_lock("u1", timeout=0.05):
            pass
        with records.claim_lock("u2", timeout=1):
            pass
    finally:
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGKILL)
        holder.join(60)
    with records.claim_lock("u1", timeout=10):
        pass


def test_two_threads_exclude_each_other_on_one_claim(records: Records) -> None:
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with records.claim_lock("u1"):
                inside += 1
                most = max(most, inside)
                time.sleep(0.0005)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_call_that_hangs_in_the_records_does_not_keep_others_for_ever(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk hangs, say: each call behind it would take a thread until none is left."""
    records.reserve(claim("u1"))
    monkeypatch.setattr("dra_driver.state.store._LOCK_SECONDS", 0.05)
    begun, mended = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        mended.wait(60)

    with ThreadPoolExecutor(2) as calls:
        hanging = calls.submit(records.while_held, hang)
        assert begun.wait(60)
        try:
            with pytest.raises(HardwareBusy, match=r"state\.lock"):
                calls.submit(records.holdings).result(30)
        finally:
            mended.set()
        hanging.result(60)
    assert [held.claim.uid for held in records.holdings()] == ["u1"]
