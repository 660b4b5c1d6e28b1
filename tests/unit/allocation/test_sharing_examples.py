"""The examples about sharing, allocated on nodes with the configurations that they name."""

from pathlib import Path

import pytest

from dra_driver.allocation import Claim
from dra_driver.config import decode_config, load
from dra_driver.config.node import configured
from dra_driver.model import Strategy, TimeSlice
from tests.support.inventories import inventory
from tests.support.mig_models import gpu_of
from tests.unit.allocation.examples import FILES, FOLDER, claims_of, of_kind
from tests.unit.allocation.sharing_node import SharingNode

SHARING = [path for path in FILES if int(path.stem[:2]) in range(22, 30)]
NONE = ""


def node(config: str, gpus: int = 8) -> SharingNode:
    """Make a node of H100, with a configuration of the examples."""
    found = inventory(*(gpu_of("h100-80gb", minor) for minor in range(gpus)))
    if config:
        text = (FOLDER.parent / "nodeconfigs" / config).read_text(encoding="utf-8")
        found = configured(found, load(text), {})
    return SharingNode(*found.gpus)


def claims(number: int) -> list[Claim]:
    (path,) = (path for path in SHARING if int(path.stem[:2]) == number)
    return claims_of(path)


@pytest.mark.parametrize(
    ("number", "config", "devices"),
    [
        (22, NONE, [["gpu-0"], ["gpu-1"], ["gpu-2"], ["gpu-3"]]),
        (23, "shares.yaml", [["gpu-0"]]),
        (24, NONE, [["gpu-0"]]),
        (25, "shares-mps.yaml", [["gpu-0"], ["gpu-0"]]),
        (26, "memory.yaml", [["gpu-0"]]),
        (27, "dynamic.yaml", [["gpu-0-mig-1g10gb-19-6"]]),
        (28, NONE, [["gpu-0", "gpu-1"]]),
        (29, "partition-or-share.yaml", [["gpu-0-mig-1g20gb-15-6"]]),
    ],
)
def test_what_each_example_gets(number: int, config: str, devices: list[list[str]]) -> None:
    here = node(config)
    assert [here.claim(claim) for claim in claims(number)] == devices


def test_seven_shares_of_10gi_fit_on_a_card() -> None:
    here = node("memory.yaml", gpus=1)
    (share,) = claims(26)
    assert [here.claim(share) for _ in range(8)] == [["gpu-0"]] * 7 + [[]]


def test_partitions_first_then_shares_of_the_other_gpus() -> None:
    here = node("partition-or-share.yaml", gpus=2)
    (either,) = claims(29)
    found = [here.claim(either) for _ in range(12)]
    assert all(name.startswith("gpu-0-mig-") for (name,) in found[:4])
    assert found[4:] == [["gpu-1"]] * 7 + [[]]
    whole = here.devices["gpu-0"]
    assert not whole.allows_multiple


def test_only_a_deployment_asks_for_shares_as_ever() -> None:
    """Its Pods have no claim of their own, so the scheduler makes one for each."""
    (path,) = (path for path in SHARING if "shared-pods" in path.stem)
    (deployment,) = of_kind(path, "Deployment")
    assert deployment["spec"]["replicas"] == 4
    assert "resourceClaims" not in deployment["spec"]["template"]["spec"]


@pytest.mark.parametrize("path", SHARING, ids=lambda path: path.stem)
def test_the_configs_are_read(path: Path) -> None:
    found = [
        decode_config(entry["opaque"]["parameters"]).settings()
        for template in of_kind(path, "ResourceClaimTemplate")
        for entry in template["spec"]["spec"]["devices"].get("config", [])
    ]
    told = [None if each is None else (each.strategy, each.interval) for each in found]
    mps = (Strategy.MPS, None)
    wanted = {
        22: [(Strategy.TIME_SLICING, interval) for interval in TimeSlice],
        24: [mps],
        27: [mps],
        28: [(Strategy.TIME_SLICING, TimeSlice.LONG), mps],
    }
    assert told == wanted.get(int(path.stem[:2]), [])
