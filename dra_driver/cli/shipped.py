"""Manifests that come with the driver: DeviceClasses and examples."""

from pathlib import Path
from typing import Any, Final

import yaml

import dra_driver
from dra_driver.model.errors import Bug

_PACKAGE: Final = Path(dra_driver.__file__).parent
# In a checkout at its top, in a wheel inside the package (`force-include` in pyproject.toml).
_FOLDERS: Final = {
    "deviceclasses": (_PACKAGE.parent / "deviceclasses", _PACKAGE / "shipped/deviceclasses"),
    "examples": (
        _PACKAGE.parent / "examples/resourceclaims",
        _PACKAGE / "shipped/resourceclaims",
    ),
}

Manifest = dict[str, Any]


def device_classes() -> list[Manifest]:
    """Return the DeviceClasses that come with the driver."""
    paths = sorted(_folder("deviceclasses").glob("*.yaml"))
    return [manifest for path in paths for manifest in parse(path.read_text(encoding="utf-8"))]


def example(name: str) -> str:
    """Return the text of an example by its file name without `.yaml`."""
    return (_folder("examples") / f"{name}.yaml").read_text(encoding="utf-8")


def parse(text: str) -> list[Manifest]:
    """Return the manifests in a text with one or more documents."""
    return [document for document in yaml.safe_load_all(text) if document]


def _folder(name: str) -> Path:
    for folder in _FOLDERS[name]:
        if folder.is_dir():
            return folder
    raise Bug(f"{_FOLDERS[name][1]} is missing: this installation is not complete")
