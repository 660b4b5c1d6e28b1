"""The driver's image, assembled as `deploy/image/Containerfile` does it, without a registry.

There are two: this checkout's, and a newer one whose slices differ, for upgrades.
"""

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.cluster import oci
from tests.cluster.cache import HarnessError, artifact, run, say

NEWER: Final = "newer"
"""Tag of the newer image."""

NEW_ATTRIBUTE: Final = "release"
"""What the newer one publishes of each device besides."""

_CHECKOUT: Final = Path(__file__).parents[2]
_FOLDER: Final = _CHECKOUT / "deploy" / "image"
_CONTAINERFILE: Final = _FOLDER / "Containerfile"
_REQUIREMENTS: Final = _CHECKOUT / "requirements" / "image.txt"
# How a runtime calls `gpu-dra-driver:TAG`.
_NAME: Final = "docker.io/library/gpu-dra-driver"
_CHANGED: Final = "usr/lib/python3/dist-packages/dra_driver/slices/devices.py"
_LINE: Final = '    yield "productName", _string(gpu.product_name)\n'


def archives() -> Mapping[str, Path]:
    """Return the OCI archive of each image by its tag, making what the cache lacks."""
    base = _base()
    with tempfile.TemporaryDirectory() as name:
        wheel = _wheel(Path(name))
        digest = hashlib.sha256(wheel.read_bytes())
        digest.update((base / ".key").read_bytes())
        for source in (Path(__file__), Path(oci.__file__), _CONTAINERFILE):
            digest.update(source.read_bytes())
        folder = artifact("driver-image", digest.hexdigest(), lambda into: _make(base, wheel, into))
    return {path.stem: path for path in folder.glob("*.tar")}


def _base() -> Path:
    """Return the folder of the layer that holds Debian's and Python's packages."""
    digest = hashlib.sha256(sys.version.encode())
    for source in (*sorted(_FOLDER.glob("*.py")), _REQUIREMENTS, Path(oci.__file__)):
        digest.update(source.read_bytes())
    return artifact("driver-image-base", digest.hexdigest(), _make_base)


def _make_base(into: Path) -> None:
    say("driver image: assembling Debian's and Python's packages")
    (into / "layer.tar").write_bytes(_assembled("base").layer())


def _make(base: Path, wheel: Path, into: Path) -> None:
    say("driver image: assembling")
    root = _assembled("driver", os.fspath(wheel))
    below, settings = (base / "layer.tar").read_bytes(), _settings()
    version = _version()
    for tag in (version, NEWER):
        if tag == NEWER:
            _change(root)
        archive = into / f"{tag}.tar"
        oci.write_layers(archive, f"{_NAME}:{tag}", [below, root.layer()], settings)


def _assembled(layer: str, *arguments: str) -> oci.Root:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "root"
        program = [sys.executable, "-m", "deploy.image.assemble"]
        run(
            [*program, layer, folder, *arguments],
            what=f"assembling of the image's layer {layer}",
            cwd=_CHECKOUT,
        )
        root = oci.Root()
        root.tree(folder)
    return root


def _wheel(into: Path) -> Path:
    uv = Path(sys.executable).with_name("uv")
    options = ("--quiet", "--wheel", "--no-build-isolation", "--offline", "--out-dir", into)
    run([uv, "build", *options, _CHECKOUT], what="build of the wheel")
    (wheel,) = into.glob("*.whl")
    return wheel


def _change(root: oci.Root) -> None:
    """Let slices differ: one more attribute of each device."""
    info, source = root.entries[_CHANGED]
    text = source.decode()
    if text.count(_LINE) != 1:
        raise HarnessError(f"{_CHANGED}: a newer release can't be made of it")
    added = _LINE + f'    yield "{NEW_ATTRIBUTE}", _string("{NEWER}")\n'
    root.file(_CHANGED, text.replace(_LINE, added).encode(), info.mode)
    compiled = [name for name in root.entries if re.search(r"slices/__pycache__/devices\.", name)]
    for name in compiled:
        del root.entries[name]


def _settings() -> Mapping[str, Any]:
    """Read how the image is run from the last stage of the Containerfile."""
    lines = _CONTAINERFILE.read_text().rpartition("\nFROM scratch\n")[2].splitlines()
    (environment,) = (line for line in lines if line.startswith("ENV "))
    (entrypoint,) = (line for line in lines if line.startswith("ENTRYPOINT "))
    return {
        "Env": environment.split()[1:],
        "Entrypoint": json.loads(entrypoint.removeprefix("ENTRYPOINT ")),
    }


def _version() -> str:
    """Return the tag that the chart asks for by default."""
    chart = (_CHECKOUT / "deploy/helm/gpu-dra-driver/Chart.yaml").read_text()
    (version,) = re.findall(r"^appVersion: (\S+)$", chart, re.MULTILINE)
    return str(version)
