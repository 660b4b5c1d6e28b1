"""Writing and removing CDI files: the last step of Prepare and the first of Unprepare."""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from dra_driver.cdi.device_nodes import DeviceNode, DeviceNodes
from dra_driver.cdi.driver_files import DriverFiles, HostFile
from dra_driver.cdi.driver_root import DriverRoot
from dra_driver.cdi.hook import Hook
from dra_driver.cdi.names import COMMON, CdiDevice, Names
from dra_driver.config import Settings
from dra_driver.host import (
    ensure_folder,
    list_folder,
    read_file,
    remove_file,
    sweep_unfinished,
    write_atomically,
)
from dra_driver.model.errors import Bug

_CDI_VERSION: Final = "0.6.0"  # all we use came by 0.5.0; every runtime that has DRA reads 0.6.0
# CUDA images say `all`, which the nvidia runtime would obey in a container that has a claim.
_ENVIRONMENT: Final = ("NVIDIA_VISIBLE_DEVICES=void",)
_FILE_OPTIONS: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET_OPTIONS: Final = ("nosuid", "nodev", "noexec", "rbind", "rprivate")
_MPS_FOLDER: Final = "/tmp/nvidia-mps"  # noqa: S108 - where programs look; a mount lies over it
_SHM_FOLDER: Final = "/dev/shm"  # noqa: S108 - likewise
_DEVICE_ACCESS: Final = "rw"  # without `m`: containers make no nodes of their own
_WHOLE: Final = "containerEdits"  # for every device of a file
_CAPABILITY_MODE: Final = 0o444  # as nvidia-modprobe makes them


class ClaimSpecs:
    """The CDI files of this driver: one per claim, and one for what all GPUs share.

    Everything is looked up when a claim is prepared, and files are written only when their content
    changes. Safe to call from several threads.
    """

    def __init__(self, settings: Settings) -> None:
        """Keep where things are; nothing is read or written yet."""
        self._root = settings.cdi_root
        self._names = Names(settings.driver_name)
        self._nodes = DeviceNodes(settings)
        self._driver = DriverRoot(settings.driver_root, settings.container_driver_root)
        self._hook = Hook(settings)
        self._last: tuple[object, dict[str, Any]] | None = None  # common edits, what they are from
        self._refreshed: dict[str, Any] | None = None  # edits that all whole files have

    def ids(self, claim_uid: str, device: CdiDevice) -> tuple[str, ...]:
        """CDI ids of a claim's device: its own, then the common one."""
        return self._names.claim_id(claim_uid, device), self._names.common_id

    def apply(
        self, claim_uid: str, devices: Sequence[CdiDevice], note: str = "", *, whole: bool = False
    ) -> None:
        """Write the claim's file, and the common one when it is missing or out of date.

        `note` is kept in the claim's file, for `note` to find when other traces are lost. A `whole`
        file has what all GPUs share as well, for containers that don't know the common id. A file
        of the driver before goes: runtimes refuse a device that two files have. Raises
        DriverFilesMissing before anything is written, StorageFailed with the path.
        """
        common = self._common()
        claim = self._claim(claim_uid, devices, note, common if whole else None)
        self._hook.ensure()
        ensure_folder(self._root)
        self._write(self._names.common_file, self._common_document(common))
        self._write(self._names.claim_file(claim_uid), claim)
        remove_file(self._root / self._names.prior_file(claim_uid))

    def refresh_common(
        self, alone_with: Callable[[str], AbstractContextManager[object]] = nullcontext
    ) -> None:
        """Write what all GPUs share again where it is missing or out of date.

        `alone_with` keeps others from the claim of a UID, whose file would else be put back after
        it was removed. Raises as `apply` does, and what `alone_with` raises.
        """
        common = self._common()
        self._hook.ensure()
        ensure_folder(self._root)
        self._write(self._names.common_file, self._common_document(common))
        if common != self._refreshed:
            for uid in self.claim_uids():
                if self._whole(uid) is not None:
                    with alone_with(uid):
                        self._refresh_whole(uid, common)
            self._refreshed = common

    def note(self, claim_uid: str) -> str:
        """Text left in the claim's file, empty when there is no such file or it is damaged."""
        content = read_file(self._root / self._names.claim_file(claim_uid))
        try:
            return str(json.loads(content or b"")["annotations"][self._names.note_key])
        except (ValueError, TypeError, KeyError):
            return ""

    def undo(self, claim_uid: str) -> None:
        """Remove the claim's file; needs nothing else. Raises StorageFailed with the path."""
        remove_file(self._root / self._names.claim_file(claim_uid))
        remove_file(self._root / self._names.prior_file(claim_uid))

    def undo_common(self) -> None:
        """Remove the common file, when no claim is left. Raises StorageFailed with the path."""
        remove_file(self._root / self._names.common_file)

    def claim_uids(self) -> set[str]:
        """UIDs of the claims that have a file here; files of others don't count."""
        names = (path.name for path in list_folder(self._root, ".json"))
        return {uid for name in names if (uid := self._names.claim_uid(name)) is not None}

    def prior_uids(self) -> set[str]:
        """UIDs of the claims that have a file of NVIDIA's driver in Go. Raises StorageFailed."""
        names = (path.name for path in list_folder(self._root, ".yaml"))
        return {uid for name in names if (uid := self._names.prior_uid(name)) is not None}

    def install_hook(self) -> None:
        """Put our hook in its place on the host and remove what killed writers left.

        Raises StorageFailed with the path.
        """
        self._hook.install()
        sweep_unfinished(self._root, self._names.prefix)

    def _claim(
        self,
        claim_uid: str,
        devices: Sequence[CdiDevice],
        note: str,
        common: dict[str, Any] | None,
    ) -> bytes:
        # One request with admin access and one without may have led to the same device.
        by_name = {self._names.device_name(claim_uid, device): device for device in devices}
        if not by_name:
            raise Bug(f"claim {claim_uid} has no device to write a CDI file for")
        entries = [
            _device(name, deviceNodes=_device_nodes(self._nodes.of(device)), **self._mps(device))
            for name, device in by_name.items()
        ]
        annotations = {self._names.note_key: note} if note else {}
        return _document(self._names.claim_kind, entries, annotations, common)

    def _refresh_whole(self, claim_uid: str, common: dict[str, Any]) -> None:
        """Give a whole file what all GPUs share now, if it is (still) there."""
        document = self._whole(claim_uid)
        if document is not None:
            self._write(self._names.claim_file(claim_uid), _text(document | {_WHOLE: common}))

    def _whole(self, claim_uid: str) -> dict[str, Any] | None:
        """Content of a claim's file if it is whole; others have nothing of what all GPUs share."""
        try:
            content = read_file(self._root / self._names.claim_file(claim_uid))
            document = json.loads(content or b"")
        except ValueError:
            return None
        return document if isinstance(document, dict) and _WHOLE in document else None

    def _mps(self, device: CdiDevice) -> dict[str, list[Any]]:
        """Edits by which programs find the control daemon of MPS that their device has.

        Devices of one set have the same: for runtimes a later mount at a place replaces the
        earlier. With devices of two sets the hook lets no container start.
        """
        if device.mps_folders is None:
            return {}
        places = zip(device.mps_folders, (_MPS_FOLDER, _SHM_FOLDER), strict=True)
        return {
            "env": [f"CUDA_MPS_PIPE_DIRECTORY={_MPS_FOLDER}", *device.environment],
            "mounts": [_mount(HostFile(*place), _SOCKET_OPTIONS) for place in places],
            "hooks": [self._hook.mps_call(device.mps_folders[0])],
        }

    def _common(self) -> dict[str, Any]:
        """Edits for what all GPUs share."""
        files = self._driver.current()
        nodes = tuple(self._nodes.common())
        toolkit = self._hook.toolkit()
        found = (files, nodes, toolkit)
        last = self._last  # read once: another thread may put what it has found there meanwhile
        if last is None or last[0] != found:
            edits: dict[str, Any] = {
                "env": list(_ENVIRONMENT),
                "deviceNodes": _device_nodes(nodes),
                "mounts": _mounts(files),
                "hooks": self._hook.calls(files, toolkit),
            }
            self._last = last = (found, edits)
        return last[1]

    def _common_document(self, edits: dict[str, Any]) -> bytes:
        return _document(self._names.common_kind, [_device(COMMON, **edits)], {})

    def _write(self, name: str, content: bytes) -> None:
        path = self._root / name
        if read_file(path) != content:
            write_atomically(path, content)


def _document(
    kind: str,
    devices: list[dict[str, Any]],
    annotations: dict[str, str],
    edits: dict[str, Any] | None = None,
) -> bytes:
    document: dict[str, Any] = {"cdiVersion": _CDI_VERSION, "kind": kind, "devices": devices}
    if annotations:
        document["annotations"] = annotations
    if edits is not None:
        document[_WHOLE] = edits
    return _text(document)


def _text(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()


def _device(name: str, **edits: list[Any]) -> dict[str, Any]:
    return {"name": name, "containerEdits": edits}


def _device_nodes(nodes: Iterable[DeviceNode]) -> list[dict[str, Any]]:
    return [_device_node(node) for node in nodes]


def _device_node(node: DeviceNode) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": node.path, "permissions": _DEVICE_ACCESS}
    if node.host_path != node.path:
        entry["hostPath"] = node.host_path
    if node.major is not None:
        entry |= {"type": "c", "major": node.major, "minor": node.minor}
        entry["fileMode"] = _CAPABILITY_MODE
    return entry


def _mounts(files: DriverFiles) -> list[dict[str, Any]]:
    return [
        *(_mount(file, _FILE_OPTIONS) for file in (*files.libraries, *files.others)),
        *(_mount(socket, _SOCKET_OPTIONS) for socket in files.sockets),
    ]


def _mount(file: HostFile, options: tuple[str, ...]) -> dict[str, Any]:
    return {
        "hostPath": file.host_path,
        "containerPath": file.container_path,
        "options": list(options),
    }
