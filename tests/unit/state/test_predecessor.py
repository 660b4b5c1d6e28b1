"""The other driver's checkpoint: what is read of it, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from dra_driver.model import ClaimRef
from dra_driver.model.errors import RecordDamaged
from dra_driver.state import PriorKind, read_checkpoint
from tests.support.predecessor import PriorDriver, gpu, mig, old_mig, vfio

ONE = ClaimRef("default", "one", "11111111-5f4c-4a2e-9d35-3f6d5e0f7a11")
TWO = ClaimRef("default", "two", "22222222-5f4c-4a2e-9d35-3f6d5e0f7a22")
GPU = "GPU-00000000-0000-0000-0000-000000000000"
MIG = "MIG-00000000-0000-0000-0000-000000000001"


@pytest.fixture
def prior(tmp_path: Path) -> PriorDriver:
    return PriorDriver(tmp_path / "data", tmp_path / "cdi")


def content(document: Any) -> bytes:
    return json.dumps(document).encode()


def test_claims_of_each_kind_are_read(prior: PriorDriver) -> None:
    prior.complete(ONE, gpu("gpu-0", GPU), mig("gpu-1-mig-1g10gb-19-0", MIG, GPU, 7, 1), daemon="x")
    prior.complete(TWO, vfio("gpu-vfio-2", GPU), named=True)
    state = read_checkpoint(content(prior.document()))
    one, two = state.claims
    assert state.boot_id == "boot-1"
    assert [(each.kind, each.uuid, each.parent_uuid) for each in one.devices] == [
        (PriorKind.GPU, GPU, None),
        (PriorKind.MIG, MIG, GPU),
    ]
    assert [each.request for each in one.devices] == ["request-0", "request-1"]
    assert {each.mps_daemon for each in one.devices} == {"x"}
    assert (one.namespace, one.name, one.is_complete) == ("", "", True)
    assert (two.namespace, two.name, two.devices[0].kind) == ("default", "two", PriorKind.VFIO)
    assert two.names == ("gpu-vfio-2",)


def test_a_claim_that_was_begun_has_names_only(prior: PriorDriver) -> None:
    prior.begin(ONE, "gpu-0-mig-1g10gb-19-0")
    (claim,) = read_checkpoint(content(prior.document())).claims
    assert (claim.is_complete, claim.devices) == (False, ())
    assert claim.names == ("gpu-0-mig-1g10gb-19-0",)


def test_the_older_form_alone_will_do(prior: PriorDriver) -> None:
    prior.complete(ONE, old_mig("gpu-0-mig-19-4-1", MIG))
    document = prior.document()
    (claim,) = read_checkpoint(content({"checksum": 1, "v1": document["v1"]})).claims
    assert [(each.uuid, each.parent_uuid) for each in claim.devices] == [(MIG, None)]
    assert claim.is_complete


def test_the_newest_known_form_counts(prior: PriorDriver) -> None:
    prior.complete(ONE, gpu("gpu-0", GPU))
    document = prior.document() | {"version": "v3", "v3": {"preparedClaims": []}}
    document["v1"] = {"preparedClaims": {}}
    assert len(read_checkpoint(content(document)).claims) == 1


@pytest.mark.parametrize("claims", [{}, None])
def test_a_checkpoint_without_claims_is_fine(claims: object) -> None:
    assert read_checkpoint(content({"v2": {"preparedClaims": claims}})).claims == ()
    assert read_checkpoint(content({"v2": {"checksum": 5}})).claims == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "cut short or not JSON"),
        (b'{"v2": {"preparedClaims": {"a', "cut short or not JSON"),
        (b"\xff\xfe", "cut short or not JSON"),
        (b"[" * 200_000, "cut short or not JSON"),
        (b"[]", "is not an object"),
        (b"{}", "neither v1 nor v2, but version none"),
        (b'{"version": "v7", "v7": {}}', "neither v1 nor v2, but version v7"),
        (b'{"v2": []}', "preparedClaims is not an object"),
        (b'{"v2": {"preparedClaims": [1]}}', "preparedClaims is not an object"),
        (b'{"v2": {"preparedClaims": {"../x": {}}}}', "'../x' is not the UID of a claim"),
    ],
)
def test_what_cannot_be_a_checkpoint_is_damaged(text: bytes, why: str) -> None:
    with pytest.raises(RecordDamaged, match=why):
        read_checkpoint(text)


def prepared(**changes: Any) -> dict[str, Any]:
    told = {"DeviceName": "gpu-0", "Requests": ["one"]} | changes
    return {"gpu": {"info": {"uuid": GPU}, "device": told}}


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (7, "it is not an object"),
        ({"checkpointState": "PrepareAborted"}, "checkpointState: 'PrepareAborted' is not known"),
        ({"preparedDevices": {}}, None),
        ({"preparedDevices": "x"}, "preparedDevices is not a list"),
        ({"preparedDevices": [{"devices": [{}]}]}, "neither gpu nor mig nor vfio"),
        ({"preparedDevices": [{"devices": [prepared(DeviceName="../x")]}]}, "DeviceName: '../x'"),
        ({"preparedDevices": [{"devices": [prepared(Requests="x")]}]}, "Requests is not a list"),
        (
            {"preparedDevices": [{"devices": [{"gpu": {"info": {"uuid": "x"}}}]}]},
            "is not what it should be",
        ),
        (
            {"preparedDevices": [{"configState": {"mpsControlDaemonID": "../../x"}}]},
            "mpsControlDaemonID: '../../x'",
        ),
        ({"namespace": "../x"}, "namespace: '../x'"),
    ],
)
def test_an_entry_that_is_wrong_spoils_no_other(entry: object, why: str | None) -> None:
    good = {"preparedDevices": [{"devices": [prepared()]}]}
    claims = {ONE.uid: entry, TWO.uid: good}
    one, two = read_checkpoint(content({"v2": {"preparedClaims": claims}})).claims
    assert (why or "") in one.damage
    assert bool(one.damage) == (why is not None)
    assert (two.damage, [each.name for each in two.devices]) == ("", ["gpu-0"])
