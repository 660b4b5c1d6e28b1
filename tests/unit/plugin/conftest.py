"""What the tests of this folder share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.simulator.kubelet import Kubelet
from tests.support.kubelet import PluginSide


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginSide]:
    # Rules that look at a clock run faster here; node tests run them at their real pace.
    monkeypatch.setattr("dra_driver.plugin.keeper._LOOK_SECONDS", 0.1)
    # Not pytest's own folder: its long names leave little room for a socket path of 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="dra"))
    side = PluginSide(folder)
    try:
        yield side
        side.close()
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def kubelet(side: PluginSide) -> Iterator[Kubelet]:
    kubelet = Kubelet(side.folder / "registry")
    kubelet.start()
    yield kubelet
    kubelet.stop()
