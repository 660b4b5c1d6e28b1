"""The bill of materials of a layer, as an SPDX 2.3 document in JSON.

It lists what package metadata in the layer tells: Debian's (`var/lib/dpkg/status.d`) and Python's
(`*.dist-info`). The same content gives the same document, byte for byte.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email import message_from_string
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

_UNKNOWN = "NOASSERTION"
_FOLDER = "usr/share/sbom"


@dataclass(frozen=True, slots=True)
class Package:
    """One package: `url` is its package URL, `licence` an SPDX expression or unknown."""

    name: str
    version: str
    licence: str
    url: str


def write(root: Path, layer: str, site: Path) -> None:
    """Write the document of a layer to `usr/share/sbom/LAYER.spdx.json` below its root."""
    packages = sorted(
        [*_of_debian(root), *_of_python(site)], key=lambda item: (item.url, item.name)
    )
    path = root / _FOLDER / f"{layer}.spdx.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_document(layer, packages), indent=1) + "\n")


def _of_debian(root: Path) -> Iterator[Package]:
    for path in (root / "var/lib/dpkg/status.d").glob("*"):
        fields = message_from_string(path.read_text())
        name, version, machine = (fields[key] for key in ("Package", "Version", "Architecture"))
        url = f"pkg:deb/debian/{name}@{version}?arch={machine}"
        yield Package(name, version, _UNKNOWN, url)  # licences stand in usr/share/doc


def _of_python(site: Path) -> Iterator[Package]:
    for item in distributions(path=[str(site)]):
        name = re.sub(r"[-_.]+", "-", item.metadata["Name"]).lower()
        yield Package(name, item.version, _licence(item), f"pkg:pypi/{name}@{item.version}")


def _licence(item: Distribution) -> str:
    """Return the licence where the package states it as an SPDX expression (PEP 639)."""
    expressions = item.metadata.get_all("License-Expression", [])
    return str(expressions[0]) if expressions else _UNKNOWN


def _document(layer: str, packages: list[Package]) -> dict[str, Any]:
    content = repr(packages).encode()
    entries = [_entry(package) for package in packages]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"gpu-dra-driver-image-{layer}",
        "documentNamespace": f"urn:sha256:{hashlib.sha256(content).hexdigest()}",
        "creationInfo": {
            "created": "1970-01-01T00:00:00Z",  # the same content gives the same document
            "creators": ["Tool: gpu-dra-driver-sbom"],
        },
        "packages": entries,
        "relationships": [
            {
                "spdxElementId": "SPDXRef-DOCUMENT",
                "relationshipType": "DESCRIBES",
                "relatedSpdxElement": entry["SPDXID"],
            }
            for entry in entries
        ],
    }


def _entry(package: Package) -> dict[str, Any]:
    kind = package.url.removeprefix("pkg:").partition("/")[0]
    reference = {
        "referenceCategory": "PACKAGE-MANAGER",
        "referenceType": "purl",
        "referenceLocator": package.url,
    }
    return {
        "SPDXID": f"SPDXRef-{kind}-" + re.sub(r"[^A-Za-z0-9.-]", "-", package.name),
        "name": package.name,
        "versionInfo": package.version,
        "downloadLocation": _UNKNOWN,
        "filesAnalyzed": False,
        "licenseConcluded": _UNKNOWN,
        "licenseDeclared": package.licence,
        "copyrightText": _UNKNOWN,
        "externalRefs": [reference],
    }
