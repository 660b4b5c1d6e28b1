"""What NVIDIA's driver in Go leaves on a node with running claims: its checkpoint and CDI files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dra_driver.model import ClaimRef

DRIVER = "gpu.nvidia.com"
NODE = "node-a"


def cdi_id(uid: str, device: str) -> str:
    """CDI id that the kubelet was told for a device."""
    return f"k8s.gpu.nvidia.com/claim={uid}-{device}"


@dataclass
class PriorDriver:
    """Claims as that driver would have noted them; `write` puts them on the node."""

    data_folder: Path
    cdi_folder: Path
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        """Where all its claims are."""
        return self.data_folder / "checkpoint.json"

    def cdi_file(self, uid: str) -> Path:
        """CDI file of a claim."""
        return self.cdi_folder / f"k8s.gpu.nvidia.com-claim_{uid}.yaml"

    def complete(
        self,
        ref: ClaimRef,
        *devices: dict[str, Any],
        config: Sequence[dict[str, Any]] = (),
        daemon: str = "",
        named: bool = False,
        **of_result: Any,
    ) -> ClaimRef:
        """Note a claim whose containers run; its name is told by a few releases only."""
        entry: dict[str, Any] = {"checkpointState": "PrepareCompleted"}
        names = [_told(device)["DeviceName"] for device in devices]
        entry["status"] = _status(names, config, of_result)
        for number, device in enumerate(devices):
            told = _told(device)
            told |= {"Requests": [f"request-{number}"], "PoolName": NODE}
            told["CDIDeviceIDs"] = [cdi_id(ref.uid, told["DeviceName"])]
        group = {"devices": list(devices), "configState": {"mpsControlDaemonID": daemon}}
        entry["preparedDevices"] = [group]
        if named:
            entry |= {"name": ref.name, "namespace": ref.namespace}
        self.claims[ref.uid] = entry
        self._write_cdi_file(ref.uid, names)
        return ref

    def begin(self, ref: ClaimRef, *names: str) -> ClaimRef:
        """Note a claim whose Prepare was cut off."""
        self.claims[ref.uid] = {
            "checkpointState": "PrepareStarted",
            "status": _status(names, (), {}),
            "name": ref.name,
            "namespace": ref.namespace,
        }
        return ref

    def document(self) -> dict[str, Any]:
        """Content of the checkpoint."""
        old = {
            uid: {key: entry[key] for key in ("status", "preparedDevices")}
            for uid, entry in self.claims.items()
            if entry["checkpointState"] == "PrepareCompleted"
        }
        return {
            "version": "v2",
            "checksum": 1836152187,
            "v1": {"preparedClaims": old},
            "v2": {"checksum": 2705923415, "preparedClaims": self.claims, "nodeBootID": "boot-1"},
        }

    def write(self, content: str | None = None) -> None:
        """Write the checkpoint, or something else in its place."""
        self.data_folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.document(), separators=(",", ":")) if content is None else content
        self.checkpoint.write_text(text)
        for name in ("cp.lock", "pu.lock", "nvidia-cdi-hook"):
            (self.data_folder / name).touch()

    def _write_cdi_file(self, uid: str, names: Sequence[str]) -> None:
        nodes = [{"path": "/dev/nvidia0"}]
        devices = [
            {"name": f"{uid}-{name}", "containerEdits": {"deviceNodes": nodes}} for name in names
        ]
        document = {
            "cdiVersion": "0.5.0",
            "kind": "k8s.gpu.nvidia.com/claim",
            "devices": devices,
            "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
        }
        self.cdi_folder.mkdir(parents=True, exist_ok=True)
        self.cdi_file(uid).write_text(yaml.safe_dump(document))


def gpu(name: str, uuid: str) -> dict[str, Any]:
    """Give a whole GPU, as prepared."""
    return {"gpu": {"info": {"uuid": uuid}, "device": {"DeviceName": name}}, "mig": None}


def mig(name: str, uuid: str, parent: str, gi_id: int, minor: int) -> dict[str, Any]:
    """Give a partition, as prepared; nothing tells who has made it."""
    concrete = {
        "parentMinor": minor,
        "giId": gi_id,
        "ciId": 0,
        "migUUID": uuid,
        "parentUUID": parent,
    }
    return {"gpu": None, "mig": {"concrete": concrete, "device": {"DeviceName": name}}}


def old_mig(name: str, uuid: str) -> dict[str, Any]:
    """Give a partition as releases of 2025 noted it."""
    return {"gpu": None, "mig": {"info": {"uuid": uuid}, "device": {"DeviceName": name}}}


def vfio(name: str, uuid: str) -> dict[str, Any]:
    """Give a GPU that is bound to vfio-pci."""
    info = {"uuid": uuid, "pciBusID": "0000:1b:00.0"}
    told = {"DeviceName": name}
    return {"gpu": None, "mig": None, "vfio": {"info": info, "device": told}}


def _told(device: dict[str, Any]) -> dict[str, Any]:
    kind = next(value for value in device.values() if value is not None)
    told: dict[str, Any] = kind["device"]
    return told


def _status(
    names: Sequence[str], config: Sequence[dict[str, Any]], of_result: dict[str, Any]
) -> dict[str, Any]:
    results = [
        {"request": f"request-{number}", "driver": DRIVER, "pool": NODE, "device": name} | of_result
        for number, name in enumerate(names)
    ]
    entries = [
        {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}
        for parameters in config
    ]
    devices = {"results": results, "config": entries} if entries else {"results": results}
    pod = {"resource": "pods", "name": "pod", "uid": "9a1d3f3e-6a0a-4a5e-9c2b-0d6c3b1f2e4d"}
    return {"allocation": {"devices": devices}, "reservedFor": [pod]}
