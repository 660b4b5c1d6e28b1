"""The examples as the cluster runs them: as they are, but for the image and one UUID."""

from typing import Final

import yaml

from tests.cluster import images
from tests.cluster.api import Object
from tests.cluster.driver import CHECKOUT

_FOLDER: Final = CHECKOUT / "examples" / "resourceclaims"
_IMAGE: Final = "debian:12-slim"
_ZEROS: Final = "GPU-00000000-0000-0000-0000-000000000000"


def names() -> set[str]:
    """Names of all examples: their files' without `.yaml`."""
    return {path.stem for path in _FOLDER.glob("*.yaml")}


def objects(name: str, uuid: str = _ZEROS) -> list[Object]:
    """Objects of an example; `uuid` takes the place of the zeros."""
    text = (_FOLDER / f"{name}.yaml").read_text()
    return list(yaml.safe_load_all(text.replace(_IMAGE, images.DEBIAN).replace(_ZEROS, uuid)))
