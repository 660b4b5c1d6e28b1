"""What is in the driver's image; it is made by the script that the Containerfile runs."""

import io
import json
import re
import tarfile
from pathlib import PurePosixPath
from typing import Any, Final

import pytest

from deploy.image.assemble import PACKAGES
from tests.cluster.driver import CHECKOUT
from tests.cluster.settings import inside

_LARGEST: Final = 200 << 20  # bytes; docs/install.md says what it has
_NOT_THERE: Final = {  # by which somebody inside could build, fetch or run something else
    *("sh", "bash", "dash", "busybox", "perl"),
    *("cc", "gcc", "ld", "as", "make"),
    *("apt", "apt-get", "dpkg", "pip", "pip3", "uv", "curl", "wget"),
}


@pytest.fixture(scope="module")
def layers() -> list[tarfile.TarFile]:
    """Open the layers of the image, in memory."""
    settings = inside()
    assert settings is not None
    path = next(path for tag, path in settings.driver_images.items() if tag != "newer")
    with tarfile.open(path) as archive:

        def blob(digest: str) -> bytes:
            found = archive.extractfile(f"blobs/{digest.replace(':', '/')}")
            assert found is not None
            return found.read()

        index = archive.extractfile("index.json")
        assert index is not None
        manifest = json.loads(blob(json.load(index)["manifests"][0]["digest"]))
        blobs = [blob(layer["digest"]) for layer in manifest["layers"]]
    return [tarfile.open(fileobj=io.BytesIO(data)) for data in blobs]


def test_it_has_no_shell_no_compiler_and_no_package_manager(layers: list[tarfile.TarFile]) -> None:
    members = [member for layer in layers for member in layer]
    files = [member for member in members if not member.isdir()]
    programs = {PurePosixPath(member.name).name for member in files if member.mode & 0o111}
    assert "dra-driver" in programs
    assert not programs & _NOT_THERE
    assert not [member.name for member in files if member.mode & 0o6000]
    size = sum(member.size for member in members)
    print(f"{len(members)} entries, {size / 1e6:.0f} MB")
    assert size < _LARGEST


def test_its_bill_of_materials_lists_every_package(layers: list[tarfile.TarFile]) -> None:
    base, driver = (
        {item["name"]: item for item in _document(layer, name)["packages"]}
        for layer, name in zip(layers, ("base", "driver"), strict=True)
    )
    locked = dict(
        re.findall(
            r"^([\w.-]+)==(\S+)", (CHECKOUT / "requirements/image.txt").read_text(), re.MULTILINE
        )
    )
    assert driver.keys() == {"gpu-dra-driver"}
    assert base.keys() == {*PACKAGES, *locked}
    for name, version in locked.items():
        assert base[name]["versionInfo"] == version
        (reference,) = base[name]["externalRefs"]
        assert reference["referenceLocator"] == f"pkg:pypi/{name}@{version}"
    assert all(item["versionInfo"] for item in base.values())


def test_each_of_debians_packages_brings_its_licence(layers: list[tarfile.TarFile]) -> None:
    names = {member.name for member in layers[0]}
    links = {member.name: member.linkname for member in layers[0] if member.issym()}
    for package in PACKAGES:
        folder = f"usr/share/doc/{package}"
        folder = f"usr/share/doc/{links.get(folder, package)}"
        assert f"{folder}/copyright" in names, package


def _document(layer: tarfile.TarFile, name: str) -> Any:
    found = layer.extractfile(f"usr/share/sbom/{name}.spdx.json")
    assert found is not None
    document = json.load(found)
    assert document["spdxVersion"] == "SPDX-2.3"
    described = {item["relatedSpdxElement"] for item in document["relationships"]}
    assert described == {item["SPDXID"] for item in document["packages"]}
    return document
