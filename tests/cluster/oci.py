"""OCI image archives, written without a registry and the same byte for byte each time."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MEDIA = "application/vnd.oci.image"


@dataclass(slots=True)
class Root:
    """The files of an image, gathered in memory; a later entry replaces an earlier one."""

    entries: dict[str, tuple[tarfile.TarInfo, bytes]] = field(default_factory=dict)

    def folder(self, path: str) -> None:
        """Add a folder and those above it."""
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            ancestor = "/".join(parts[:depth])
            if ancestor not in self.entries:
                self._add(ancestor, tarfile.DIRTYPE, 0o755)

    def file(self, path: str, content: bytes | Path, mode: int = 0o755) -> None:
        """Add a regular file with this content, or with that of a file of the machine."""
        data = content if isinstance(content, bytes) else content.read_bytes()
        self._add_parents(path)
        self._add(path, tarfile.REGTYPE, mode, data=data)

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        self._add_parents(path)
        self._add(path, tarfile.SYMTYPE, 0o777, target=target)

    def tree(self, folder: Path) -> None:
        """Add all that is in a folder of the machine, owned by root whoever made it."""
        for path in sorted(folder.rglob("*")):
            name, mode = str(path.relative_to(folder)), path.lstat().st_mode & 0o7777
            if path.is_symlink():
                self.link(name, os.fspath(path.readlink()))
            elif path.is_dir():
                self._add(name, tarfile.DIRTYPE, mode)
            else:
                self.file(name, path, mode)

    def layer(self) -> bytes:
        """Pack the files as one layer."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path in sorted(self.entries):
                info, data = self.entries[path]
                archive.addfile(info, io.BytesIO(data))
        return buffer.getvalue()

    def _add_parents(self, path: str) -> None:
        if "/" in path:
            self.folder(path.rpartition("/")[0])

    def _add(
        self, path: str, kind: bytes, mode: int, *, data: bytes = b"", target: str = ""
    ) -> None:
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.size, info.linkname = kind, mode, len(data), target
        self.entries[path] = (info, data)


def write_archive(archive: Path, image: str, root: Root, command: list[str]) -> None:
    """Write the archive of an image named `host/name:tag` that runs `command`."""
    settings = {"Cmd": command, "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}
    write_layers(archive, image, [root.layer()], settings)


def write_layers(
    archive: Path, image: str, layers: Sequence[bytes], settings: Mapping[str, Any]
) -> None:
    """Write the archive of an image of several layers; `settings` are its `config` (OCI)."""
    config = _json({
        "architecture": "amd64",
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
    })  # fmt: skip
    manifest = _json({
        "schemaVersion": 2,
        "mediaType": f"{_MEDIA}.manifest.v1+json",
        "config": _descriptor(f"{_MEDIA}.config.v1+json", config),
        "layers": [_descriptor(f"{_MEDIA}.layer.v1.tar", layer) for layer in layers],
    })  # fmt: skip
    described = _descriptor(f"{_MEDIA}.manifest.v1+json", manifest)
    described["annotations"] = {
        "io.containerd.image.name": image,
        "org.opencontainers.image.ref.name": image.rpartition(":")[2],
    }
    outer = Root()
    outer.file("oci-layout", _json({"imageLayoutVersion": "1.0.0"}), 0o644)
    outer.file("index.json", _json({"schemaVersion": 2, "manifests": [described]}), 0o644)
    for blob in (*layers, config, manifest):
        outer.file(f"blobs/{_digest(blob).replace(':', '/')}", blob, 0o644)
    archive.write_bytes(outer.layer())


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}
