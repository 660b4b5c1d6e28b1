"""Which devices the benchmark writes claims for."""

from typing import Any

import pytest
from click.testing import CliRunner

from dra_driver.cli.bench.command import bench
from dra_driver.cli.bench.offer import Offer, partitions, shares, whole_devices
from dra_driver.cli.bench.run import Plan
from dra_driver.cli.bench.sharing import Sharing, Wish
from dra_driver.cli.bench.target import offered
from dra_driver.config import decode_config, load
from dra_driver.model.errors import DeviceNotFound, SettingInvalid
from tests.support.dynamic_gpus import dynamic_gpu
from tests.support.inventories import inventory, partitioned
from tests.unit.slices.published import (
    NEW,
    OLD,
    counters_in,
    devices_of,
    needs_of,
    permitted,
    plan_for,
    plan_of,
)


def slice_with(*devices: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "spec": {"devices": list(devices)}}


def typed(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "attributes": {"type": {"string": kind}}}


def test_whole_devices_are_those_of_type_gpu() -> None:
    slices = [slice_with(typed("gpu-1-mig", "mig"), typed("gpu-0", "gpu")), {"spec": {}}]
    offer = whole_devices(slices)
    assert offer == Offer("a whole device", ("gpu-0",), ("gpu-0",), shared=True)
    other = whole_devices([slice_with({"name": "cpu-0"})])
    assert other is not None
    assert other.measured == ("cpu-0",)
    assert whole_devices([{"spec": {}}]) is None


@pytest.mark.parametrize("abilities", [NEW, OLD], ids=["apart", "together"])
@pytest.mark.parametrize(
    ("model", "each", "profile"),
    [("h100-80gb", 7, "1g.10gb"), ("a100-80gb", 7, "1g.10gb"), ("b200", 7, "1g.23gb")],
)
def test_partitions_are_as_many_as_fit_and_the_last_gpu_is_measured(
    abilities: Any, model: str, each: int, profile: str
) -> None:
    plan = plan_for(*(dynamic_gpu(minor, model) for minor in range(3)), abilities=abilities)
    offer = partitions(plan.objects())
    assert offer is not None
    assert offer.what == f"a partition {profile}"
    assert (len(offer.live), len(offer.measured), offer.shared) == (2 * each, each, False)
    assert {name.split("-mig-")[0] for name in offer.measured} == {"gpu-2"}
    needs = [needs_of(devices_of(plan)[name]) for name in (*offer.live, *offer.measured)]
    assert permitted(counters_in(plan), needs)


def test_partitions_that_exist_stand_beside_each_other() -> None:
    plan = plan_of(inventory(partitioned(0, 0, 1), partitioned(1, 4, 5, 6)))
    offer = partitions(plan.objects())
    assert offer is not None
    assert len(offer.live) == 2
    assert len(offer.measured) == 3


def test_a_node_without_partitions_is_told_apart_from_one_without_devices() -> None:
    slices = plan_of(inventory(dynamic_gpu(0, "l40s"))).objects()
    with pytest.raises(DeviceNotFound, match="it publishes no partitions; --devices mig needs"):
        offered(slices, Wish("mig"), "it")
    with pytest.raises(DeviceNotFound, match="has no device of it"):
        offered([], Wish("mig"), "it")


def test_shares_are_of_whole_devices_that_allow_them() -> None:
    whole, part = typed("gpu-0", "gpu"), typed("gpu-1-mig", "mig")
    several = {"allowMultipleAllocations": True}
    slices = [slice_with(whole | several, typed("gpu-1", "gpu"), part | several)]
    assert shares(slices, None) == Offer(
        "a share of a device", ("gpu-0",), ("gpu-0",), shared=True, by_shares=True
    )
    few = shares(slices, 3)
    assert few is not None
    assert few.live == ("gpu-0",) * 3
    assert not few.shared
    assert not few.admin
    with pytest.raises(DeviceNotFound, match="it publishes no shares; --sharing mps needs"):
        offered([slice_with(whole)], Wish(sharing=Sharing.MPS), "it")


@pytest.mark.parametrize("sharing", Sharing)
def test_nodes_and_claims_of_each_way_to_share(sharing: Sharing) -> None:
    wish = Wish(sharing=sharing)
    if wish.node_config:
        (rule,) = load(wish.node_config).rules
        assert rule.shares is not None
    assert bool(wish.node_config) == (wish.consumed is not None)
    if wish.config is not None:
        assert decode_config(wish.config).settings() is not None
    assert load(Wish("mig").node_config).rules


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--embedded", "--devices=mig", "--sharing=mps"], "--sharing is for whole GPUs"),
        (["--socket=/none", "--sharing=memory"], "--sharing memory goes with --embedded"),
    ],
)
def test_what_can_not_be_measured_is_wrong_usage(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(bench, arguments)
    assert done.exit_code == 2
    assert words in done.output


def test_live_claims_with_partitions_are_as_many_as_there_are() -> None:
    shared = Offer("a whole device", ("a", "b"), ("a", "b"), shared=True)
    alone = Offer("a partition 1g.10gb", ("c", "d"), tuple("efghi"), shared=False)
    assert Plan().numbers(shared) == (0, 100, 400)
    assert Plan(live=(0, 7)).numbers(shared) == (0, 7)
    assert Plan().numbers(alone) == (0, 5)
    assert Plan(usual=(0, 3)).numbers(alone) == (0, 3)
    assert Plan().numbers(Offer("a partition", ("c",), (), shared=False)) == (0,)
    with pytest.raises(SettingInvalid, match=r"--live 6: .* there is room for 5"):
        Plan(live=(0, 6)).numbers(alone)
    assert shared.at_once(5) == (("a", "b"), ("a", "b", "a"))
    assert alone.at_once(5) == (("c", "d"), ())
