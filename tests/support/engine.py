"""The engine in this process: real records and CDI files, hardware and API server made up."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_driver.cdi import ClaimSpecs
from dra_driver.claims import Engine, Janitor
from dra_driver.claims.effects import GpuEffects
from dra_driver.config import Settings
from dra_driver.model import (
    AllocatedDevice,
    ClaimRef,
    ClaimStatus,
    DriverError,
    Inventory,
    Placement,
    PreparedClaim,
    ResourceClaim,
)
from dra_driver.model.errors import ClaimChanged, ClaimNotFound
from dra_driver.state import ClaimRecord, DeviceRecord, Records
from dra_driver.telemetry import EventQueue, Metrics
from tests.support.driver_tree import DriverTree

NODE = "node-a"


class FakeApi:
    """Claims by name, as the API server has them; or the error with which it answers."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], ResourceClaim] = {}
        self.error: DriverError | None = None
        self.asked: list[ClaimRef] = []

    def get_claim(self, ref: ClaimRef, timeout: float) -> ResourceClaim:
        self.asked.append(ref)
        if self.error is not None:
            raise self.error
        found = self.claims.get((ref.namespace, ref.name))
        if found is None:
            raise ClaimNotFound(f"claim {ref} does not exist")
        if found.ref.uid != ref.uid:
            raise ClaimChanged(f"claim {ref} was replaced")
        return found


class FakeHardware:
    """A snapshot that the test sets; None until then."""

    def __init__(self, inventory: Inventory | None) -> None:
        self.inventory = inventory
        self.looks = 0

    def current(self) -> Inventory | None:
        return self.inventory

    def look(self, timeout: float) -> Inventory:
        self.looks += 1
        assert self.inventory is not None
        return self.inventory

    def refresh(self) -> None:
        self.looks += 1

    def not_ready(self) -> str:
        return "" if self.inventory else "NVML has not answered yet"


class FakeStatuses:
    """Statuses that wait, by claim UID; none is ever written."""

    def __init__(self) -> None:
        self.waiting: dict[str, ClaimStatus] = {}

    def add(self, status: ClaimStatus) -> None:
        self.waiting[status.ref.uid] = status

    def forget(self, uid: str) -> None:
        self.waiting.pop(uid, None)


class FakePartitions:
    """Step `mig` on partitions that are only remembered; outlives engines, not a `reboot`."""

    name = "mig"

    def __init__(self) -> None:
        self.made: dict[tuple[str, int | None, Placement | None], int] = {}
        self.calls = 0

    def check(self, record: ClaimRecord) -> None:
        """Nothing is in the way."""

    def apply(self, record: ClaimRecord) -> ClaimRecord:
        return record.model_copy(
            update={"devices": tuple(self._make(device) for device in record.devices)}
        )

    def undo(self, record: ClaimRecord) -> None:
        for device in record.devices:
            if device.made and device.span is not None:
                self.made.pop(_slot_of(device), None)

    def reboot(self) -> None:
        self.made.clear()

    def _make(self, device: DeviceRecord) -> DeviceRecord:
        if not device.made or device.span is None:
            return device
        slot = _slot_of(device)
        if slot not in self.made:
            used = {gi for (gpu, _, _), gi in self.made.items() if gpu == device.gpu_uuid}
            self.made[slot] = next(gi for gi in range(1, 8) if gi not in used)
            self.calls += 1
        gi = self.made[slot]
        uuid = f"MIG-{device.gpu_uuid}-{gi}-{self.calls}"
        ids = {"gi_id": gi, "ci_id": 0, "ci_profile_id": 0, "uuid": device.uuid or uuid}
        return device.model_copy(update=ids)


class FakeSharing:
    """Step `sharing` on settings that are only remembered."""

    name = "sharing"

    def __init__(self) -> None:
        self.set: dict[str, object] = {}

    def apply(self, record: ClaimRecord) -> ClaimRecord:
        for device in record.devices:
            if device.sharing:
                self.set[device.gpu_uuid] = device.sharing
        return record

    def undo(self, record: ClaimRecord) -> None:
        for device in record.devices:
            if device.sharing:
                self.set.pop(device.gpu_uuid, None)

    def assert_again(
        self,
        records: Sequence[ClaimRecord],
        undisturbed: Callable[[ClaimRecord], AbstractContextManager[bool]],
    ) -> None:
        for record in records:
            with undisturbed(record) as is_live:
                if is_live:
                    self.apply(record)


def _slot_of(device: DeviceRecord) -> tuple[str, int | None, Placement | None]:
    return device.gpu_uuid, device.gi_profile_id, device.span


@dataclass
class EngineBed:
    """Folders, hardware and API server that outlive engines: `start` is a new process."""

    folder: Path
    inventory: Inventory | None = None
    retry_seconds: float = 0.0
    api: FakeApi = field(default_factory=FakeApi)

    def __post_init__(self) -> None:
        self.tree = DriverTree(self.folder / "root", gpus=8).build()
        self.tree.settle()
        self.hardware = FakeHardware(self.inventory)
        self.partitions = FakePartitions()
        self.sharing = FakeSharing()
        self.statuses = FakeStatuses()
        self.pod_resources = self.folder / "kubelet.sock"

    @property
    def records_folder(self) -> Path:
        return self.settings.records_folder

    @property
    def settings(self) -> Settings:
        return self.tree.settings(
            plugins_folder=self.folder / "plugins", retry_seconds=self.retry_seconds
        )

    def start(self) -> "EngineBed":
        """Begin anew from what is on disk."""
        self.metrics, self.events = Metrics(), EventQueue()
        self.specs = ClaimSpecs(self.settings)
        self.engine = Engine(
            self.settings,
            self.api,  # type: ignore[arg-type]
            self.hardware,
            GpuEffects(self.partitions, self.sharing),
            self.specs,
            self.statuses,
            self.metrics,
            self.events,
        )
        self.engine.start()
        self.specs.install_hook()
        return self

    @property
    def records(self) -> Records:
        return self.engine.records

    def janitor(self, interval: float = 0.0) -> Janitor:
        """Build a janitor that is swept by hand."""
        api: Any = self.api
        return Janitor(self.engine, self.specs, api, self.pod_resources, interval)

    def claim(self, name: str, *devices: str | AllocatedDevice, uid: str = "") -> ClaimRef:
        """Let the API server have a claim that is allocated to these devices."""
        ref = ClaimRef("default", name, uid or f"uid-of-{name}")
        allocated = tuple(
            AllocatedDevice(f"request-{number}", NODE, device)
            if isinstance(device, str)
            else device
            for number, device in enumerate(devices)
        )
        self.api.claims[ref.namespace, ref.name] = ResourceClaim(ref, allocated)
        return ref

    def prepare(self, *refs: ClaimRef) -> PreparedClaim:
        """Prepare; gives the first answer. Raises its error."""
        return _first(self.engine.prepare(refs, lambda: False), refs)

    def unprepare(self, *refs: ClaimRef) -> None:
        """Unprepare; raises the first error."""
        answers = self.engine.unprepare(refs, lambda: False)
        for ref in refs:
            error = answers[ref.uid]
            if error is not None:
                raise error

    def claim_files(self) -> set[str]:
        """Claim UIDs of CDI files, record files and damaged files, by kind."""
        data, prefix = self.settings.data_folder, "k8s.gpu.nvidia.com-claim_"
        cdi_files = self.settings.cdi_root.glob(f"{prefix}*.json")
        return (
            {f"cdi {path.stem.removeprefix(prefix)}" for path in cdi_files}
            | {f"record {path.stem}" for path in (data / "claims").glob("*.json")}
            | {f"damaged {path.stem}" for path in (data / "damaged").glob("*")}
        )

    def leftovers(self) -> list[str]:
        """All files that are there only while claims are prepared, or never."""
        folders = [self.settings.cdi_root, self.settings.data_folder]
        return sorted(
            str(path.relative_to(self.folder))
            for folder in folders
            if folder.is_dir()
            for path in folder.rglob("*")
            if path.is_file() and path.suffix != ".lock"
        )


def _first(answers: Any, refs: Sequence[ClaimRef]) -> PreparedClaim:
    answer = answers[refs[0].uid]
    if isinstance(answer, DriverError):
        raise answer
    assert isinstance(answer, PreparedClaim)
    return answer
