"""pynvml on a simulated node's own library, within the test process."""

import ctypes
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.support.node import MakeNode, SimulatedNode

UseNvml = Callable[[SimulatedNode], None]

_find_function = pynvml._nvmlGetFunctionPointer


def load(library: Path) -> ctypes.CDLL:
    """Let pynvml use this library from now on.

    A process keeps every library it has loaded, and pynvml every function: those are forgotten.
    The driver's own `nvml` package puts another way of finding them in pynvml's place.
    """
    loaded = ctypes.CDLL(str(library.resolve()))
    pynvml.nvmlLib = loaded
    pynvml._nvmlGetFunctionPointer = _find_function
    pynvml._nvmlGetFunctionPointer_cache.clear()
    return loaded


def leave() -> None:
    """Shut NVML down however often it was initialised."""
    with suppress(pynvml.NVMLError_Uninitialized):
        while True:
            pynvml.nvmlShutdown()


def error_name(error: pynvml.NVMLError) -> str:
    """`NOT_SUPPORTED` of an NVMLError."""
    names = (
        name.removeprefix("NVML_ERROR_")
        for name in dir(pynvml)
        if name.startswith("NVML_ERROR_") and getattr(pynvml, name) == error.value
    )
    return next(names)


def expect(name: str, call: Callable[..., Any], *arguments: Any) -> None:
    """Call and expect this NVML error."""
    with pytest.raises(pynvml.NVMLError) as raised:
        call(*arguments)
    assert error_name(raised.value) == name


@pytest.fixture
def use_nvml() -> Iterator[UseNvml]:
    """Initialise pynvml on a node's library; shut down at the end of the test."""

    def use(node: SimulatedNode) -> None:
        load(node.library)
        pynvml.nvmlInit()

    yield use
    leave()


@pytest.fixture
def nvml_node(make_node: MakeNode, use_nvml: UseNvml) -> SimulatedNode:
    """Give a node of two H100, with pynvml initialised on it."""
    node = make_node(gpus=2)
    use_nvml(node)
    return node


def container(node: SimulatedNode, root: Path, *devices: str) -> Path:
    """Make `root` what a container is: driver library, state and these entries of /dev.

    Gives the library. It is a copy, since one process can't load two libraries of one inode; the
    state is the node's own.
    """
    folder = root / node.library.parent.relative_to(node.root)
    folder.mkdir(parents=True)
    version = node.state.driver_version()
    state = f"libnvidia-simstate.so.{version}"
    (folder / state).hardlink_to(node.library.parent / state)
    for device in devices:
        path = root / "dev" / device
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return Path(shutil.copy(node.library.resolve(), folder))
