"""What is done in each cell of the take-over: the driver before has ended, the plugin starts."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from dra_driver.model import ClaimRef
from tests.faults.faults import FAULTS
from tests.faults.rows import Row
from tests.faults.scene import DYNAMIC, MADE, OTHER, TARGET, Scene, reason_of
from tests.support.kubelet import eventually
from tests.support.predecessor import PriorDriver, cdi_id, gpu, mig

_PLACE: Final = 2  # first memory slice of `MADE`


@dataclass(frozen=True, slots=True)
class Claims:
    """What the driver before has given out: a whole GPU, and a partition made for its claim."""

    whole: ClaimRef
    made: ClaimRef

    @property
    def all(self) -> list[tuple[ClaimRef, str]]:
        """Each claim with the name of its device."""
        return [(self.whole, f"gpu-{TARGET}"), (self.made, MADE)]


def error_once(scene: Scene, row: Row) -> str:
    """It fails until the cause is gone: then it goes on by itself."""
    with _claims(scene) as claims:
        _start_faulty(scene, row, claims)
        reason = _refused(scene)
        FAULTS[row.name].end(scene, claims.whole)
        scene.bed.wait_ready(scene.process)
        _go_on(scene, claims)
        _end(scene, claims)
    return f"{reason}; goes on by itself"


def error_for_ever(scene: Scene, row: Row) -> str:
    """It fails again after a restart, until somebody mends the cause."""
    with _claims(scene) as claims:
        _start_faulty(scene, row, claims)
        _refused(scene)
        scene.process.kill()
        scene.start_unready()
        reason = _refused(scene)
        refused = reason_of(lambda: scene.unprepare(claims.whole))
        FAULTS[row.name].end(scene, claims.whole)
        scene.bed.wait_ready(scene.process)
        _end(scene, claims)
    return f"{reason} each time; Unprepare: {refused} until mended"


def hang(scene: Scene, row: Row) -> str:
    """The process is halted within, and goes on."""
    with _claims(scene) as claims:
        scene.arm(f"{row.before}=stop")
        scene.start_unready()
        scene.wait_halted()
        scene.go_on()
        scene.bed.wait_ready(scene.process)
        _end(scene, claims)
    return "goes on; Unprepare leaves nothing"


def kill_before(scene: Scene, row: Row) -> str:
    """The process is killed just before, and the Pods are deleted meanwhile."""
    with _claims(scene) as claims:
        _kill(scene, row.before)
        scene.restart()
        _end(scene, claims)
    return "Unprepare leaves nothing"


def kill_after(scene: Scene, row: Row) -> str:
    """The process is killed just after, and the Pods run on."""
    with _claims(scene) as claims:
        _kill(scene, row.after)
        scene.restart()
        _go_on(scene, claims)
        _end(scene, claims)
    return "Prepare changes nothing"


def reboot(scene: Scene, row: Row) -> str:
    """The node goes down just after, with all that does not outlive it."""
    with _claims(scene) as claims:
        _kill(scene, row.after)
        scene.reboot()
        scene.restart()
        _go_on(scene, claims)
        _end(scene, claims)
    return "Prepare completes"


TAKE_OVER_CELLS: Final[Mapping[str, Callable[[Scene, Row], str]]] = {
    "error once": error_once,
    "error for ever": error_for_ever,
    "hang": hang,
    "kill -9 before": kill_before,
    "kill -9 after": kill_after,
    "reboot": reboot,
}


@contextmanager
def _claims(scene: Scene) -> Iterator[Claims]:
    """Let the driver before have prepared its claims, and have ended."""
    scene.check_clean()
    assert scene.process.stop() == 0
    claims = Claims(scene.new_claim(), scene.new_claim(MADE))
    scene.node.state.set_mig_mode(DYNAMIC, on=True)
    scene.node.state.partition(DYNAMIC, "2g.20gb", _PLACE)
    parent = scene.node.gpu(DYNAMIC)
    (instance,) = parent["instances"]
    uuid = instance["computeInstances"][0]["uuid"]
    partition = mig(MADE, uuid, parent["uuid"], instance["id"], parent["minor"])
    prior = PriorDriver(scene.bed.data_folder, scene.bed.cdi_folder)
    whole = gpu(f"gpu-{TARGET}", scene.node.gpu(TARGET)["uuid"])
    prior.complete(claims.whole, whole, named=True)
    prior.complete(claims.made, partition, named=True)
    prior.write()
    yield claims
    # What a person may remove.
    (scene.bed.data_folder / "checkpoint.json.taken-over").unlink()
    (scene.bed.data_folder / "nvidia-cdi-hook").unlink()
    scene.check_clean()


def _start_faulty(scene: Scene, row: Row, claims: Claims) -> None:
    """Start the plugin so that it meets the row's fault."""
    fault = FAULTS[row.name]
    if fault.at:
        scene.arm(f"{fault.at}=stop")
        scene.start_unready()
        scene.wait_halted()
    fault.begin(scene, claims.whole, 0)
    if fault.at:
        scene.go_on()
    else:
        scene.start_unready()


def _refused(scene: Scene) -> str:
    """Wait until /readyz tells that nothing is taken over; gives the reason that Pods are told."""

    def is_told() -> bool:
        return "not taken over yet: cannot" in scene.bed.get("/readyz")[1]

    eventually(is_told, "/readyz tells why nothing is taken over")
    scene.wait_registered()
    return reason_of(lambda: scene.prepare(scene.new_claim(f"gpu-{OTHER}")))


def _kill(scene: Scene, point: str) -> None:
    scene.arm(point)
    scene.start_unready()
    scene.wait_killed()


def _go_on(scene: Scene, claims: Claims) -> None:
    """See that claims keep what their containers have, and that nobody else gets it."""
    late = scene.new_claim(f"gpu-{TARGET}")
    assert reason_of(lambda: scene.prepare(late)) == "DeviceInUse"
    for ref, name in claims.all:
        first = scene.prepare(ref)
        assert [(each.name, list(each.cdi_ids)) for each in first] == [
            (name, [cdi_id(ref.uid, name)])
        ]
        assert scene.prepare(ref) == first


def _end(scene: Scene, claims: Claims) -> None:
    """Unprepare twice: all that is left is what was there before."""
    for ref, _ in claims.all:
        scene.unprepare(ref)
        scene.unprepare(ref)
    assert scene.bed.claim_files().isdisjoint(
        {path for ref, _ in claims.all for path in (scene.cdi_file(ref).name, f"{ref.uid}.json")}
    )
