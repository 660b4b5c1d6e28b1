"""A simulated GPU node: a driver root with devices, libraries and programs, `/proc` and `/sys`.

What hardware does by itself is in the state (`native_library.SimState`); here is what goes beyond
it: files that follow the state. Everything below ROOT is relative, so the tree can move.
"""

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from dra_driver.host import HostRoot
from dra_driver.model.errors import DriverFilesMissing, SettingInvalid, StorageFailed
from dra_driver.simulator import driver_files, models
from dra_driver.simulator.device_nodes import DeviceNodes, NodeKind, pick_majors
from dra_driver.simulator.host_files import HostFiles, PciGpu
from dra_driver.simulator.identities import identity
from dra_driver.simulator.native_library import ANY_START, SimState
from dra_driver.simulator.node_file import (
    NodeSpec,
    PlannedGpu,
    check_driver_version,
    plan_gpus,
)


class Node:
    """One simulated node.

    `state` is the hardware; changes that concern files of the node as well are methods here.
    Several processes may use one node at the same time.
    """

    def __init__(self, root: Path) -> None:
        """Open the node in `root`.

        Raises:
            DriverFilesMissing: there is no node.

        """
        self.root = root
        folder = root / driver_files.LIBRARY_FOLDER
        if not any(folder.glob("libnvidia-simstate.so.*")):
            raise DriverFilesMissing(
                f"{root} holds no simulated node; make one with `dra-driver simulate create`"
            )
        self.state = SimState(root)

    @classmethod
    def create(
        cls,
        root: Path,
        spec: NodeSpec,
        *,
        device_nodes: NodeKind = NodeKind.AUTO,
        seed: str | None = None,
    ) -> Self:
        """Make a node in `root`, a folder that is empty or does not exist yet.

        With the same `seed` the GPUs have the same UUIDs and serial numbers each time.

        Raises:
            SettingInvalid: the folder is not empty, or the node can't be as described.
            SimulatorError: a partition does not exist or has no room.

        """
        version = check_driver_version(spec.driver_version)
        gpus = plan_gpus(spec.gpus, seed or str(uuid.uuid4()))
        existed = root.exists()
        with _storage(root):
            root.mkdir(parents=True, exist_ok=True)
            with _locked(root):  # who makes one at the same time finds it not empty
                return cls._create(root, spec, version, gpus, device_nodes, keep=existed)

    @classmethod
    def _create(
        cls,
        root: Path,
        spec: NodeSpec,
        version: str,
        gpus: list[PlannedGpu],
        kind: NodeKind,
        *,
        keep: bool,
    ) -> Self:
        if any(root.iterdir()):
            raise SettingInvalid(f"{root} is not empty; remove it or choose another folder")
        try:
            _make_tree(root, spec, version, gpus, kind)
            node = cls(root)
            node._sync()
            _set_up(node.state, gpus)
        except BaseException:
            _remove_tree(root, keep=keep)
            raise
        return node

    def close(self) -> None:
        """Let go of the state; the node stays."""
        self.state.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def show(self) -> dict[str, Any]:
        """Give the whole state as `dra-driver simulate show ROOT -o json` prints it."""
        return self.state.show()

    def add_gpu(self, model: str, seed: str | None = None) -> int:
        """Plug a GPU in; gives its position. The positions of others may change.

        Raises:
            SettingInvalid: the model is not known, or there is no room.

        """
        with self._changing():
            gpus = self._gpus()
            chosen = models.model(model)
            taken = [(gpu.domain, gpu.bus) for gpu in gpus]
            new = identity(chosen, seed or str(uuid.uuid4()), taken)
            self.state.add_model(chosen)
            self.state.add_gpu(new)
            if chosen.abilities & models.MIG and not any(gpu.mig for gpu in gpus):
                self._device_nodes().restore_capabilities()
        return self.state.find_gpu(new.uuid)

    def remove_gpu(self, gpu: int) -> None:
        """Take a GPU out, with what runs on it."""
        with self._changing():
            self.state.remove_gpu(gpu)

    def set_minor(self, gpu: int, minor: int) -> None:
        """Give a GPU another device minor, as a reboot may."""
        with self._changing():
            self.state.set_minor(gpu, minor)

    def reboot(self) -> None:
        """Reboot the node: a new boot id, and all goes that does not survive a reboot."""
        with self._changing():
            self.state.reboot()

    def set_driver_version(self, version: str) -> None:
        """Upgrade the GPU driver: files change name, and the driver is reloaded.

        Can be repeated if it was interrupted.
        """
        check_driver_version(version)
        with self._changing():
            driver_files.install(self.root, version)
            if self.state.driver_version() != version:
                self.state.set_driver_version(version, models.cuda_version(version))
            driver_files.link(self.root, version)
            driver_files.remove_others(self.root, version)

    def remove_capability_nodes(self) -> None:
        """Take /dev/nvidia-caps away: on real nodes nothing may have made it yet."""
        with self._changing():
            self._device_nodes().remove_capabilities()

    def restore_capability_nodes(self) -> None:
        """Make /dev/nvidia-caps as nvidia-modprobe does, also for partitions that exist."""
        with self._changing():
            self._device_nodes().restore_capabilities()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One change at a time; afterwards the files follow the state."""
        with _storage(self.root), _locked(self.root):
            yield
            self._sync()

    def _sync(self) -> None:
        shown = self.state.show()
        gpus = self._gpus(shown)
        HostFiles(self.root).sync(gpus, shown["driverVersion"], shown["bootId"])
        self._device_nodes().sync_gpus({gpu.minor for gpu in gpus})

    def _device_nodes(self) -> DeviceNodes:
        return DeviceNodes(self.root, HostRoot(self.root).device_majors())

    def _gpus(self, shown: dict[str, Any] | None = None) -> list[PciGpu]:
        return [_pci_gpu(gpu) for gpu in (shown or self.state.show())["gpus"]]


def _pci_gpu(shown: dict[str, Any]) -> PciGpu:
    model = models.model(shown["model"])
    domain, bus, device = (int(part, 16) for part in shown["pci"].removesuffix(".0").split(":"))
    return PciGpu(
        minor=shown["minor"],
        uuid=shown["uuid"],
        name=model.name,
        domain=domain,
        bus=bus,
        device=device,
        pci_device_id=model.pci_device_id,
        pci_subsystem_id=model.pci_subsystem_id,
        numa_node=shown["numaNode"],
        mig=bool(model.abilities & models.MIG),
    )


def _make_tree(
    root: Path, spec: NodeSpec, version: str, gpus: list[PlannedGpu], kind: NodeKind
) -> None:
    driver_files.install(root, version)
    driver_files.link(root, version)
    majors = pick_majors()
    HostFiles(root).create(majors)
    mig = any(gpu.model.abilities & models.MIG for gpu in gpus)
    DeviceNodes(root, majors).create(kind, mig=mig, nvswitches=spec.nvswitches)
    SimState.create(
        root,
        version,
        models.cuda_version(version),
        list({gpu.model.key: gpu.model for gpu in gpus}.values()),
        [gpu.identity for gpu in gpus],
    ).close()


def _set_up(state: SimState, gpus: list[PlannedGpu]) -> None:
    """MIG modes and partitions that the node has from the start."""
    for position, gpu in enumerate(gpus):
        if gpu.spec.persistence_mode:
            state.set_persistence(position, on=True)
        if gpu.spec.mig_mode or gpu.spec.partitions:
            state.set_mig_mode(position, on=True)
            state.reset(position)  # Ampere: pending until then
        for wanted in gpu.spec.partitions:
            start = ANY_START if wanted.start is None else wanted.start
            state.partition(
                position, wanted.profile, start, compute_instance=wanted.compute_instance
            )


@contextmanager
def _storage(root: Path) -> Iterator[None]:
    """Explain a file system that refuses."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"cannot change the simulated node in {root}: {error}") from error


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold a lock on ROOT itself, which the kernel drops with its holder."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_tree(root: Path, *, keep: bool) -> None:
    """Remove what a failed creation left."""
    if not root.exists():
        return
    for entry in root.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    if not keep:
        root.rmdir()
