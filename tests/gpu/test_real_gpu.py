"""The main job on real hardware: what the plugin publishes and prepares on a node with a GPU.

Needs the machine's own GPU driver and is skipped with the reason where there is none. Kubelet and
API server are stand-ins; nothing on the GPU is changed. `DRA_DRIVER_TEST_ROOT` moves the root, by
which these tests can be tried on a simulated node.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.kubelet import DRIVER
from tests.support.node import SimulatedNode
from tests.support.plugin_process import NodeBed

pytestmark = pytest.mark.gpu
ROOT = Path(os.environ.get("DRA_DRIVER_TEST_ROOT", "/"))


@pytest.fixture
def bed() -> Iterator[NodeBed]:
    if not (ROOT / "dev/nvidiactl").exists():
        pytest.skip(f"no NVIDIA GPU here: {ROOT / 'dev/nvidiactl'} does not exist")
    if not (ROOT / "usr/bin/nvidia-smi").exists():
        pytest.skip(f"no GPU driver here: {ROOT / 'usr/bin/nvidia-smi'} does not exist")
    folder = Path(tempfile.mkdtemp(prefix="dragpu"))
    made = NodeBed(cast("SimulatedNode", SimpleNamespace(root=ROOT)), folder)
    try:
        made.kubelet.start()
        yield made
        made.close()
    finally:
        shutil.rmtree(folder)


def devices(bed: NodeBed) -> list[dict[str, Any]]:
    return [device for each in bed.slices() for device in each["spec"].get("devices", ())]


def test_what_is_published_is_what_nvidia_smi_lists(bed: NodeBed) -> None:
    bed.serve()
    published = {device["attributes"]["uuid"]["string"] for device in devices(bed)}
    command = [str(ROOT / "usr/bin/nvidia-smi"), "-L"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    listed = set(re.findall(r"(?:GPU|MIG)-[0-9a-f-]{36}", text))
    assert published
    assert published <= listed  # a GPU in MIG mode is listed, but not offered


def test_every_device_can_be_prepared_and_its_files_exist(bed: NodeBed) -> None:
    bed.serve()
    claims = [bed.claim(f"c{number}", each["name"]) for number, each in enumerate(devices(bed))]
    answer = bed.kubelet.prepare(DRIVER, claims)
    assert set(answer) == {claim.uid for claim in claims}
    named = [
        Path(entry["hostPath"] if "hostPath" in entry else entry["path"])
        for path in bed.cdi_folder.glob("*.json")
        for device in json.loads(path.read_text())["devices"]
        for kind in ("deviceNodes", "mounts", "hooks")
        for entry in device["containerEdits"].get(kind, ())
    ]
    assert named
    assert [path for path in named if not path.exists()] == []
    bed.kubelet.unprepare(DRIVER, claims)
    assert bed.claim_files() == set()
