"""A client in C, compiled against the official nvml.h and linked with the simulated library."""

import importlib.metadata
import subprocess
from pathlib import Path

import pytest

from tests.support.node import SimulatedNode


def nvml_include() -> Path:
    """Give the folder of nvml.h; where it lies follows the CUDA major version."""
    files = importlib.metadata.files("nvidia-nvml-dev") or []
    (header,) = (file for file in files if file.name == "nvml.h")
    return Path(str(header.locate())).parent


@pytest.fixture
def program(nvml_node: SimulatedNode, tmp_path: Path) -> Path:
    built = tmp_path / "client"
    source = Path(__file__).with_name("client.c")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{nvml_include()}"]
    link = [str(nvml_node.library), f"-Wl,-rpath,{nvml_node.library.parent}"]
    command = ["cc", *flags, "-o", str(built), str(source), *link]
    subprocess.run(command, check=True, timeout=60)
    return built


def test_c_client(nvml_node: SimulatedNode, program: Path) -> None:
    gpus = nvml_node.show()["gpus"]
    lines = []
    with subprocess.Popen([str(program)], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            lines.append(line.rstrip())
            if line == "waiting\n":
                nvml_node.state.xid(0, 45)
        assert running.wait(timeout=60) == 0
    assert lines[:2] == [
        f"gpu {gpu['index']} {gpu['uuid']} 0000{gpu['pci'].upper()}" for gpu in gpus
    ]
    assert lines[2].startswith("mig MIG-")
    assert lines[3:] == [
        "gi 9 9 9 40448 40448 40448 MIG 3g.40gb MIG 3g.40gb 0",
        "ci 0 0 0 16 16 16 MIG 1g.10gb MIG 1g.10gb",
        "bad version Invalid Argument",
        "in use In use by another client",
        "waiting",
        "xid 45 same handle",
    ]
    assert nvml_node.gpu(0)["instances"] == []
