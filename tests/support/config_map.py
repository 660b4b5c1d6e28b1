"""A folder as the kubelet mounts a ConfigMap: links into `..data`, which is moved at once."""

from itertools import count
from pathlib import Path

HEAD = "apiVersion: config.gpu-dra-driver.dev/v1alpha1\nkind: NodeConfig\n"


class ConfigMap:
    """Entries of a mounted ConfigMap."""

    def __init__(self, folder: Path, **entries: str) -> None:
        """Mount it at `folder`; underscores in names stand for dots."""
        self.folder = folder
        self._numbers = count(1)
        folder.mkdir()
        self.write(**entries)

    def write(self, **entries: str) -> None:
        """Replace all entries at once, as the kubelet does (volume/util/atomic_writer.go)."""
        files = {name.replace("_", "."): text for name, text in entries.items()}
        data = self.folder / "..data"
        before = data.resolve() if data.is_symlink() else None
        new = self.folder / f"..{next(self._numbers)}"
        new.mkdir()
        for name, text in files.items():
            (new / name).write_text(text, encoding="utf-8")
        link = self.folder / "..data_tmp"
        link.symlink_to(new.name)
        link.replace(data)
        for name in files:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        for path in self.folder.iterdir():
            if not path.name.startswith("..") and path.name not in files:
                path.unlink()
        for old in before.iterdir() if before else ():
            old.unlink()
        if before:
            before.rmdir()
