"""CDI ids and file names: those that other software knows, and none that leaves its folder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.cdi import CdiDevice
from dra_driver.cdi.names import Names
from dra_driver.model.errors import Bug
from tests.support.cdi_rules import is_id

UID = "0b9b1a5e-5f4c-4a2e-9d35-3f6d5e0f7a11"
NAMES = Names("gpu.nvidia.com")
GPU = CdiDevice("gpu-0", "GPU-1", 0)


def test_names_are_the_ecosystems() -> None:
    assert NAMES.claim_kind == "k8s.gpu.nvidia.com/claim"
    assert NAMES.claim_id(UID, GPU) == f"k8s.gpu.nvidia.com/claim={UID}-gpu-0"
    assert NAMES.common_id == "k8s.gpu.nvidia.com/driver=common"
    assert NAMES.claim_file(UID) == f"k8s.gpu.nvidia.com-claim_{UID}.json"


def test_every_share_of_a_device_has_its_own_id() -> None:
    shares = [CdiDevice("gpu-0", "GPU-1", 0, share_id=share) for share in ("a1", "b2")]
    assert [f"{UID}-gpu-0-a1", f"{UID}-gpu-0-b2"] == [NAMES.device_name(UID, s) for s in shares]


@pytest.mark.parametrize("bad", ["", "..", "../x", "a/b", "a.b", "-a", "a-", "a\n", "é", "a" * 64])
def test_no_uid_leads_out_of_the_folder(bad: str) -> None:
    with pytest.raises(Bug):
        NAMES.claim_file(bad)
    with pytest.raises(Bug):
        NAMES.claim_id(bad, GPU)


@pytest.mark.parametrize("bad", ["", "gpu 0", "gpu=0", "gpu/0", "gpu_0"])
def test_device_and_share_must_fit_into_an_id(bad: str) -> None:
    with pytest.raises(Bug):
        NAMES.claim_id(UID, CdiDevice(bad, "GPU-1", 0))
    with pytest.raises(Bug):
        NAMES.claim_id(UID, CdiDevice("gpu-0", "GPU-1", 0, share_id=bad))


@given(st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", fullmatch=True))
def test_a_file_name_gives_its_uid_back(uid: str) -> None:
    assert uid == NAMES.claim_uid(NAMES.claim_file(uid))
    assert is_id(NAMES.claim_id(uid, GPU))


@pytest.mark.parametrize(
    "name",
    [
        "k8s.gpu.nvidia.com-driver.json",
        f"k8s.gpu.nvidia.com-claim_{UID}.yaml",
        f"k8s.other.example-claim_{UID}.json",
        f"nvidia.com-gpu_{UID}.json",
        f".tmp-12.abcd-k8s.gpu.nvidia.com-claim_{UID}.json~",
        "k8s.gpu.nvidia.com-claim_.json",
    ],
)
def test_files_of_others_are_nobodys_claim(name: str) -> None:
    assert NAMES.claim_uid(name) is None


def test_a_second_driver_on_the_node_has_names_of_its_own() -> None:
    other = Names("gpu.example.com")
    assert other.common_file != NAMES.common_file
    assert other.claim_uid(NAMES.claim_file(UID)) is None
