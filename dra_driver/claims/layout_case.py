"""One GPU and all that decides what becomes of it."""

from dataclasses import dataclass

from dra_driver.claims.layout_plan import Target, target_of
from dra_driver.claims.layout_status import LayoutState, LayoutStatus
from dra_driver.config import NodeConfig, Wanted, gpu_indexes
from dra_driver.model import Gpu, Inventory, gpu_device_name
from dra_driver.model.errors import SettingInvalid
from dra_driver.state import LayoutNote, LayoutNotes


@dataclass(frozen=True, slots=True)
class Case:
    """A GPU, what its layout wants, and what is noted of it."""

    gpu: Gpu  # with its policy
    wanted: Wanted | None  # None: no layout concerns it, or it can't have it
    misfit: str  # why it can't have it
    note: LayoutNote | None
    target: Target | None  # None: it is as it should be

    @property
    def is_begun(self) -> bool:
        """Whether a change was begun, which may have left anything."""
        return self.note is not None and not self.note.finished

    def status(self, state: LayoutState, why: str = "") -> LayoutStatus:
        """Tell how far the GPU is; one that waits for nobody does so for seconds."""
        former = self.note.layout if self.note and self.target is None else ""
        layout = self.gpu.policy.layout or former
        is_passing = state is LayoutState.WAITING and not why
        name = gpu_device_name(self.gpu)
        return LayoutStatus(self.gpu.uuid, name, layout, state, why, is_passing)


class Cases:
    """Makes them; what a layout wants of a GPU is kept, since finding that out takes a search."""

    def __init__(self, notes: LayoutNotes) -> None:
        """Read `notes` anew each time."""
        self._notes = notes
        self._asked: dict[str, tuple[object, Wanted | SettingInvalid | None]] = {}

    def of(self, inventory: Inventory, config: NodeConfig) -> list[Case]:
        """All GPUs of a snapshot in which each has its policy. Raises StorageFailed."""
        indexes, notes = gpu_indexes(inventory), self._notes.all()
        return [
            self._case(gpu, indexes[gpu.uuid], config, notes.get(gpu.uuid))
            for gpu in inventory.gpus
        ]

    def _case(self, gpu: Gpu, index: int, config: NodeConfig, note: LayoutNote | None) -> Case:
        asked, misfit = self._ask(gpu, index, config), ""
        if isinstance(asked, SettingInvalid):
            asked, misfit = None, str(asked)
        return Case(gpu, asked, misfit, note, target_of(gpu, asked, note))

    def _ask(self, gpu: Gpu, index: int, config: NodeConfig) -> Wanted | SettingInvalid | None:
        key = (config, index, gpu.policy, gpu.mig_capable, gpu.slots)
        known = self._asked.get(gpu.uuid)
        if known is None or known[0] != key:
            try:
                known = (key, config.wanted(gpu, index))
            except SettingInvalid as error:
                known = (key, error)
            self._asked[gpu.uuid] = known
        return known[1]
