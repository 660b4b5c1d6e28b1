"""What is read from a claim object, and what is left to others."""

import copy
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube import claim_from_json
from dra_driver.model import DriverError
from dra_driver.model.errors import BadClaim, ClaimNotAllocated, ConfigInvalid

OURS, POOL = "gpu.nvidia.com", "node-a"
GPU_CONFIG = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}


def result(device: str = "gpu-0", driver: str = OURS, pool: str = POOL, **more: Any) -> Any:
    return {"request": "r", "driver": driver, "pool": pool, "device": device} | more


def config(driver: str = OURS, source: str = "FromClaim", **more: Any) -> Any:
    return {"source": source, "opaque": {"driver": driver, "parameters": GPU_CONFIG}} | more


def claim(results: list[Any], configs: list[Any] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team", "name": "c", "uid": "u-1"},
        "status": {"allocation": {"devices": {"results": results, "config": configs or []}}},
    }


def read(obj: dict[str, Any]) -> Any:
    return claim_from_json(obj, OURS, POOL)


def test_a_result_is_read_in_full() -> None:
    obj = claim(
        [
            result(
                request="main/sub",
                shareID="s-1",
                adminAccess=True,
                consumedCapacity={"memory": "10Gi", "shares": "1"},
            )
        ]
    )
    device = read(obj).devices[0]
    assert (device.request, device.main_request) == ("main/sub", "main")
    assert (device.pool, device.device, device.share_id) == (POOL, "gpu-0", "s-1")
    assert device.admin_access
    assert device.consumed_capacity == {"memory": "10Gi", "shares": "1"}


def test_b27_foreign_results_and_configs_are_not_ours() -> None:
    obj = claim(
        [
            result("gpu-0-mig-1g10gb-19-0", driver="other.example.com"),
            result("gpu-1", pool="node-b"),  # our driver, another node's pool
            result("gpu-2"),
        ],
        [config("other.example.com"), config(), config("other.example.com", "FromClass")],
    )
    found = read(obj)
    assert [device.device for device in found.devices] == ["gpu-2"]
    assert [entry.parameters for entry in found.configs] == [GPU_CONFIG]


def test_b27_a_claim_without_our_devices_is_read_and_empty() -> None:
    foreign = {"source": "FromClaim", "requests": [], "future": {}}  # not opaque, not for us
    found = read(claim([result(driver="other.example.com")], [foreign]))
    assert found.devices == ()
    assert found.configs == ()


def test_configs_of_the_class_come_first() -> None:
    entries = [
        config(requests=["a"]),
        config(source="FromClass", requests=["b"]),
        config(requests=["c"]),
        config(source="FromClass", requests=["d"]),
    ]
    found = read(claim([result()], entries)).configs
    assert [(c.source, c.requests) for c in found] == [
        ("FromClass", ("b",)),
        ("FromClass", ("d",)),
        ("FromClaim", ("a",)),
        ("FromClaim", ("c",)),
    ]


@pytest.mark.parametrize("requests", [[], ["r"]])
def test_a_config_for_our_request_must_be_opaque(requests: list[str]) -> None:
    entry = {"source": "FromClaim", "requests": requests}
    with pytest.raises(ConfigInvalid, match="only opaque parameters are supported"):
        read(claim([result()], [entry]))


def test_a_config_for_a_foreign_request_may_be_anything() -> None:
    entry = {"source": "FromClaim", "requests": ["theirs"]}
    assert read(claim([result(), result(driver="o", request="theirs")], [entry])).configs == ()


def test_a_config_that_names_a_subrequests_main_request_is_for_it() -> None:
    entry = {"source": "FromClaim", "requests": ["main"]}
    with pytest.raises(ConfigInvalid):
        read(claim([result(request="main/sub")], [entry]))


def test_a_claim_without_allocation_says_so() -> None:
    obj = claim([])
    del obj["status"]["allocation"]
    with pytest.raises(ClaimNotAllocated, match="team/c"):
        read(obj)
    with pytest.raises(ClaimNotAllocated):
        read({"metadata": obj["metadata"]})


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("metadata", "uid"), None, "metadata.uid must be a string"),
        (("status",), [], "status must be an object"),
        (("status", "allocation"), "yes", "status.allocation must be an object"),
        (("status", "allocation", "devices"), 1, "status.allocation.devices must be an object"),
        (("status", "allocation", "devices", "results"), {}, "results must be a list of objects"),
        (("status", "allocation", "devices", "results", 0), "x", "results must be a list"),
        (("status", "allocation", "devices", "results", 0, "driver"), 7, r"results\[0\].driver"),
        (("status", "allocation", "devices", "results", 0, "device"), "", r"results\[0\].device"),
        (("status", "allocation", "devices", "results", 0, "shareID"), 7, "shareID must be a str"),
        (("status", "allocation", "devices", "results", 0, "adminAccess"), "no", "true or false"),
        (
            ("status", "allocation", "devices", "results", 0, "consumedCapacity"),
            {"memory": 10},
            "consumedCapacity.memory",
        ),
        (("status", "allocation", "devices", "config", 0, "requests"), "r", "list of strings"),
        (("status", "allocation", "devices", "config", 0, "opaque"), "x", "opaque must be"),
        (("status", "allocation", "devices", "config", 0, "opaque", "driver"), None, "driver"),
        (
            ("status", "allocation", "devices", "config", 0, "opaque", "parameters"),
            None,
            r"config\[0\].opaque.parameters must be an object",
        ),
    ],
)
def test_a_wrong_shape_names_the_field(path: tuple[Any, ...], value: Any, words: str) -> None:
    obj: Any = copy.deepcopy(claim([result()], [config()]))
    place = obj
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(BadClaim, match=words):
        read(obj)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    "metadata",
                    "status",
                    "allocation",
                    "devices",
                    "results",
                    "config",
                    "opaque",
                    "uid",
                )
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON, JSON)
def test_nothing_but_our_errors_comes_out(status: Any, results: Any, configs: Any) -> None:
    for obj in ({"metadata": status, "status": status}, claim(results, configs)):
        with suppress(DriverError):
            read(obj)
