"""Pods that are there before the GPU driver is, and before GPUs are (field reports B03, B09).

The driver comes as the GPU Operator's container leaves it: as a mount on `/run/nvidia/driver`.
Device nodes lie below it; nodes in the host's /dev are tested in `tests/node/test_cdi.py`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dra_driver.simulator.driver_files import LIBRARY_FOLDER
from dra_driver.simulator.native_library import ALL_GPUS
from dra_driver.simulator.node_file import NodeSpec
from tests.chart.helm import Helm, setting
from tests.cluster import linux, view
from tests.cluster.api import Object
from tests.cluster.claims import claim, use
from tests.cluster.driver import eventually
from tests.cluster.release import PLUGIN, Release
from tests.cluster.workload import RESOURCE_API, pod
from tests.support.discovery import fault

_MODEL: Final = "h100-80gb"
_OPERATORS: Final = Path("/run/nvidia/driver")
_INIT: Final = "nvmlInit"
_CDI_FOLDER: Final = Path("/etc/cdi")
_VALUES: Final = setting(f"cdiRoot={_CDI_FOLDER}", "config.map.default.inventory.interval=1s")


@contextmanager
def before_the_driver(release: Release, helm: Helm) -> Iterator[Release]:
    """Install the chart on a node whose driver root is empty, in place of the other release."""
    release.uninstall()
    for name in release.published():  # else the kubelet removes them in half a minute
        release.cluster.api.delete(f"{RESOURCE_API}/resourceslices/{name}")
    made = Release(release, helm, NodeSpec(gpus=()))
    made.driver_root = _OPERATORS
    try:
        made.helm("install", *_VALUES)
        yield made
    finally:
        made.uninstall()
        if _OPERATORS.is_mount():
            linux.unmount(_OPERATORS)
        made.close()
        release.install()


def lay_out_with_links(root: Path) -> None:
    """Let links be absolute, true for who has this root as its own, and tools lie elsewhere."""
    for link in (root / LIBRARY_FOLDER).iterdir():
        if link.is_symlink():
            target = Path("/", LIBRARY_FOLDER, link.readlink())
            link.unlink()
            link.symlink_to(target)
    tools = root / "opt/nvidia"
    tools.mkdir(parents=True)
    for program in list((root / "usr/bin").iterdir()):
        program.rename(tools / program.name)
        program.symlink_to(Path("/opt/nvidia", program.name))


def status_of_plugin(release: Release) -> Object:
    """Tell how its one container is; of a Pod that is not made yet nothing is known."""
    (found,) = release.pods(PLUGIN) or [{"status": {}}]
    (status,) = found["status"].get("containerStatuses", [{}])
    return {key: status.get(key) for key in ("started", "ready", "restartCount")}


def host_paths(edits: Object) -> Iterator[str]:
    """Yield all paths of the host that a runtime would use."""
    yield from (each.get("hostPath", each["path"]) for each in edits.get("deviceNodes", []))
    yield from (each["hostPath"] for each in edits.get("mounts", []))
    yield from (each["path"] for each in edits.get("hooks", []))


def is_told(release: Release, status: int, words: str) -> bool:
    found, text = release.page("/readyz")
    return found == status and words in text


def a_pod_sees_its_gpu(release: Release) -> None:
    with release.namespace() as namespace:
        namespace.apply(claim("one"))
        namespace.run(pod("one", claims=use("one")))
        names = view.devices_of(namespace, "one")
        assert view.seen(namespace, "one") == view.expected(release.node, names)
        files = release.cdi_files()
        assert {path.parent for path in files} == {_CDI_FOLDER}
        documents: list[Any] = [json.loads(path.read_text()) for path in files]
        edits = [item["containerEdits"] for each in documents for item in each["devices"]]
        paths = {Path(path) for each in edits for path in host_paths(each)}
        assert [path for path in paths if not path.exists()] == []
        assert _OPERATORS / "opt/nvidia/nvidia-smi" in paths
        (gpu,) = (view.device(release.node, name)[0] for name in names)
        assert _OPERATORS / f"dev/nvidia{gpu['minor']}" in paths


def test_b03_b09_driver_and_gpus_come_after_the_pods(release: Release, helm: Helm) -> None:
    with before_the_driver(release, helm) as late:
        unready = {"started": True, "ready": False, "restartCount": 0}
        eventually(lambda: status_of_plugin(late) == unready, "the Pod runs and is not ready")
        eventually(
            lambda: is_told(
                late, 503, f"libnvidia-ml.so.1 was not found below {_OPERATORS} (here /driver-root)"
            ),
            "it is said what is missing",
        )
        assert late.device_names() == set()
        uid = late.pods(PLUGIN)[0]["metadata"]["uid"]
        lay_out_with_links(late.node.root)
        fault(late.node, ALL_GPUS, _INIT, "DRIVER_NOT_LOADED")
        linux.mount(str(late.node.root), _OPERATORS, flags=linux.MS_BIND)
        eventually(
            lambda: is_told(late, 503, f"{_INIT} answered DRIVER_NOT_LOADED"),
            "the driver's files are there, and its kernel module is not yet",
        )
        late.node.state.clear()
        late.wait_started()  # also on a node that has no GPU
        assert late.device_names() == set()
        for _ in range(2):
            late.node.add_gpu(_MODEL)
        eventually(lambda: late.device_names() == {"gpu-0", "gpu-1"}, "the GPUs are published")
        a_pod_sees_its_gpu(late)
        linux.unmount(_OPERATORS)  # the container of the driver restarts
        eventually(lambda: is_told(late, 503, "was not found"), "it is noticed that it is gone")
        linux.mount(str(late.node.root), _OPERATORS, flags=linux.MS_BIND)
        late.wait_started()
        a_pod_sees_its_gpu(late)
        assert late.pods(PLUGIN)[0]["metadata"]["uid"] == uid
        assert late.restarts(PLUGIN) == 0
