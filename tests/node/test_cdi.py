"""From the driver's tree to a container in which its libraries load: spec, mounts, hook, loader."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cdi import CdiDevice
from tests.cluster.cache import cache_root
from tests.support.cdi_rules import edits
from tests.support.container import Container, compile_driver_libraries, mount_namespace
from tests.support.driver_tree import VERSION, DriverTree

UID = "0b9b1a5e-5f4c-4a2e-9d35-3f6d5e0f7a11"
GPU = CdiDevice("gpu-0", "GPU-0", 0)
PARTITION = CdiDevice("gpu-1-mig-1g10gb-19-0", "GPU-1", 1, gi_id=7, ci_id=0)
MULTIARCH = f"usr/lib/{platform.machine()}-linux-gnu"
MakeDriver = Callable[[str], DriverTree]
SONAMES = {
    f"libcuda.so.{VERSION}": "libcuda.so.1",
    f"libnvidia-ml.so.{VERSION}": "libnvidia-ml.so.1",
    f"libnvidia-ptxjitcompiler.so.{VERSION}": "libnvidia-ptxjitcompiler.so.1",
}


@pytest.fixture
def make_driver(tmp_path: Path) -> MakeDriver:
    """Make a driver root with real libraries in that folder."""

    def make(folder: str) -> DriverTree:
        tree = DriverTree(tmp_path / "root", folder=folder).build()
        compile_driver_libraries(tree.root / folder, SONAMES)
        return tree

    return make


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path / "container").create()


def common(tree: DriverTree) -> dict[str, Any]:
    tree.specs().apply(UID, [GPU])
    return edits(tree.root.parent / "cdi/k8s.gpu.nvidia.com-driver.json", "common")


@pytest.mark.parametrize("image", [f"lib/{platform.machine()}-linux-gnu", "usr/lib64", "opt/lib"])
@pytest.mark.parametrize("folder", [MULTIARCH, "usr/lib64", "usr/local/nvidia/lib64"])
def test_libraries_load_whatever_the_layouts(
    make_driver: MakeDriver, container: Container, folder: str, image: str
) -> None:
    container.add_glibc(image)
    container.ldconfig()
    shared = common(make_driver(folder))
    container.mount(shared)
    names = ("libcuda.so.1", "libnvidia-ml.so.1", "libcuda.so", "libnvidia-ml.so")
    before = container.dlopen(*names)
    assert all(found.startswith("error") for found in before.values()), before
    container.run_hooks(shared)
    for name in names:  # one process each: a library that is loaded is found by any of its names
        assert container.dlopen(name) == {name: f"/{folder}/{name}"}
    assert container.dlopen("libc.so.6") == {"libc.so.6": f"/{image}/libc.so.6"}


def test_an_image_without_a_cache_gets_one(make_driver: MakeDriver, container: Container) -> None:
    container.add_glibc(f"lib/{platform.machine()}-linux-gnu")
    shared = common(make_driver("usr/local/nvidia/lib64"))
    container.mount(shared)
    container.run_hooks(shared)
    found = container.dlopen("libcuda.so.1")
    assert found == {"libcuda.so.1": "/usr/local/nvidia/lib64/libcuda.so.1"}


def test_the_cache_is_what_ldconfig_would_have_made(
    make_driver: MakeDriver, container: Container
) -> None:
    """Order and all: the loader searches it by halves."""
    container.add_glibc("usr/lib64")
    names = [f"lib{stem}.so.{n}" for stem in ("a", "b10", "b9", "cuda-x", "nvidia") for n in (1, 2)]
    extra = container.root / "usr/lib64"
    compile_driver_libraries(extra, {name: name for name in names})
    capabilities = extra / "glibc-hwcaps/x86-64-v2"
    capabilities.mkdir(parents=True)
    compile_driver_libraries(capabilities, {"liba.so.1": "liba.so.1"})
    container.ldconfig()
    before = container.cache_lines()
    driver = make_driver("usr/local/nvidia/lib64")
    compile_driver_libraries(
        driver.root / driver.folder, {f"libb{n}.so.{VERSION}": f"libb{n}.so.3" for n in (8, 11)}
    )
    shared = common(driver)
    container.mount(shared)
    container.run_hooks(shared)
    assert set(before) < set(container.cache_lines())
    container.ldconfig("-C", "/etc/other.cache")
    assert container.cache_lines("etc/other.cache") == container.cache_lines()


@pytest.mark.parametrize("format_", ["compat", "new"])
def test_caches_of_old_images_are_understood(
    make_driver: MakeDriver, container: Container, format_: str
) -> None:
    """Up to glibc 2.31 the file holds the table twice."""
    container.add_glibc("opt/lib")
    container.ldconfig("-c", format_)
    shared = common(make_driver("usr/lib64"))
    container.mount(shared)
    container.run_hooks(shared)
    found = container.dlopen("libcuda.so.1", "libc.so.6")
    assert found == {"libcuda.so.1": "/usr/lib64/libcuda.so.1", "libc.so.6": "/opt/lib/libc.so.6"}


def test_libraries_are_known_after_a_later_ldconfig(
    make_driver: MakeDriver, container: Container
) -> None:
    """Package managers in the container run it."""
    container.add_glibc("usr/lib64")
    shared = common(make_driver("usr/local/nvidia/lib64"))
    container.mount(shared)
    container.run_hooks(shared)
    container.ldconfig()
    assert "error" not in container.dlopen("libcuda.so.1")["libcuda.so.1"]


def test_the_drivers_libraries_win_over_the_images(
    make_driver: MakeDriver, container: Container
) -> None:
    """An image may carry what an earlier driver left, which no kernel module fits."""
    container.add_glibc("usr/lib64")
    stale = container.root / "usr/lib64"
    compile_driver_libraries(stale, {"libcuda.so.470.1": "libcuda.so.1"})
    container.ldconfig()
    assert container.dlopen("libcuda.so.1") == {"libcuda.so.1": "/usr/lib64/libcuda.so.1"}
    shared = common(make_driver("usr/local/nvidia/lib64"))
    container.mount(shared)
    container.run_hooks(shared)
    expected = "/usr/local/nvidia/lib64/libcuda.so.1"
    assert container.dlopen("libcuda.so.1") == {"libcuda.so.1": expected}


def test_the_cdi_projects_own_library_accepts_the_files(make_driver: MakeDriver) -> None:
    validate = cache_root() / "bin/cdi-validate/cdi-validate"
    if not os.access(validate, os.X_OK):
        pytest.skip(f"{validate} is not built yet; the cluster level builds it")
    tree = make_driver("usr/lib64")
    tree.add_partition(1, 7, (30, 31))
    tree.write("proc/devices", "Character devices:\n237 nvidia-caps\n")
    (tree.root / "dev/nvidia-caps/nvidia-cap31").unlink()
    tree.specs().apply(UID, [GPU, PARTITION], "note")
    files = sorted((tree.root.parent / "cdi").iterdir())
    done = subprocess.run([validate, *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(files) == 2


@pytest.mark.parametrize("options", ["ro", "rw,size=8k"])
def test_b13_a_folder_that_is_read_only_or_full_is_named(tmp_path: Path, options: str) -> None:
    prefix = mount_namespace()
    DriverTree(tmp_path / "root").build()
    script = tmp_path / "apply.py"
    script.write_text(_APPLY)
    (tmp_path / "cdi").mkdir()
    steps = 'mount -t tmpfs -o "$1" none "$2" && exec "$3" "$4" "$5"'
    arguments = [options, str(tmp_path / "cdi"), sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(
        [*prefix, "sh", "-c", steps, "sh", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert f"StorageFailed: cannot write {tmp_path}/cdi/k8s.gpu.nvidia.com-" in done.stderr
    assert done.stdout == "left over: []\n"


_APPLY = """
import sys
from pathlib import Path
from dra_driver.cdi import CdiDevice
from tests.support.driver_tree import DriverTree
folder = Path(sys.argv[1])
try:
    for number in range(100):
        specs = DriverTree(folder / "root").specs()
        specs.apply(f"claim-{number}", [CdiDevice("gpu-0", "GPU-0", 0)])
finally:
    print("left over:", list((folder / "cdi").glob(".tmp*")))
"""
