"""Configurations of the release: what changes in its ConfigMap, or the label, needs no restart."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.cluster.claims import claim, use
from tests.cluster.driver import eventually
from tests.cluster.release import AGENT, CONFIG_LABEL, PLAIN, PLUGIN, Release
from tests.cluster.workload import pod

_SHARED: Final = f"{PLAIN}rules:\n- match: {{index: [0]}}\n  shares: {{count: 4}}\n"
_WRONG: Final = _SHARED.replace("4", "0")
_STRATEGY: Final = f"{PLAIN}rules:\n- sharing: {{strategy: MPS}}\n"
_PARTITIONS: Final = f"{PLAIN}rules:\n- match: {{index: [1]}}\n  partitioning: {{mode: Dynamic}}\n"


@pytest.fixture
def followed(release: Release) -> Iterator[Release]:
    """Give the release; in the end it is as it was, and no container has been started anew."""
    before = _containers(release)
    yield release
    release.label(CONFIG_LABEL, None)
    release.set_config("default", PLAIN)
    release.set_config("cut", None)
    release.wait_settled()
    assert _containers(release) == before


def test_a_change_of_the_config_map_is_followed(followed: Release) -> None:
    followed.set_config("default", _SHARED)
    eventually(lambda: _shared(followed) == {"gpu-0"}, "one GPU is shared by the ConfigMap")
    followed.set_config("default", _WRONG)
    followed.wait_node_event("ConfigurationInvalid", "line 5: rules[0].shares.count")
    assert _shared(followed) == {"gpu-0"}
    assert followed.metrics("gpu_dra_driver_config_valid") == [0]
    followed.set_config("default", _STRATEGY)
    eventually(lambda: not _shared(followed), "nothing is shared any more")
    assert followed.metrics("gpu_dra_driver_config_valid") == [1]
    with followed.namespace() as namespace:
        namespace.apply(claim("plain"))
        namespace.run(pod("plain", claims=use("plain")))
        assert "/tmp/nvidia-mps" in namespace.exec("plain", ["cat", "/proc/1/mountinfo"])


def test_the_label_of_the_node_chooses_an_entry(followed: Release) -> None:
    followed.set_config("cut", _PARTITIONS)
    followed.label(CONFIG_LABEL, "cut")
    eventually(lambda: "gpu-1-mig-7g80gb-0-0" in followed.device_names(), "partitions by the label")


def _shared(release: Release) -> set[str]:
    return {item["name"] for item in release.devices() if "allowMultipleAllocations" in item}


def _containers(release: Release) -> list[tuple[Any, Any]]:
    return [
        (status["containerID"], status["restartCount"])
        for part in (PLUGIN, AGENT)
        for found in release.pods(part)
        for status in found["status"]["containerStatuses"]
    ]
