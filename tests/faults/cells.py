"""What is done in each cell of the fault matrix; each tells in a few words what came of it."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from dra_driver.model import ClaimRef
from tests.faults.faults import FAULTS, HANGS
from tests.faults.rows import MPS_PARTS, Row
from tests.faults.scene import MADE, OTHER, PATIENCE, Scene, is_given_up, reason_of

_FOR_EVER: Final = 1 << 30
_CALL_SECONDS: Final = 0.5  # after which the kubelet gives a hanging call up


def error_once(scene: Scene, row: Row) -> str:
    """It fails once: the same call or the next one works."""
    with _claim(scene, row) as ref:
        if row.operation == "unprepare":
            scene.prepare(ref)
        with _faulty(scene, row, ref, times=1) as call:
            reason = reason_of(call)
        holds = scene.record_file(ref).exists()
        scene.full_turn(ref)
    if not reason:
        return "the same call works"
    kept = ", which finds what was begun" if holds and row.operation == "prepare" else ""
    return f"{reason}; the next call works{kept}"


def error_for_ever(scene: Scene, row: Row) -> str:
    """It fails again and again, then it is mended: every call says why, and all works again."""
    with _claim(scene, row) as ref:
        if row.operation == "unprepare":
            scene.prepare(ref)
        with _faulty(scene, row, ref, times=_FOR_EVER) as call:
            reason = reason_of(call)
            again = reason_of(_call(scene, row, ref))
            if FAULTS[row.name].is_harmless:
                assert not reason, "it is only left for the next claim"
                assert not again
                text = "works; the next claim puts it right"
            else:
                assert reason, "it cannot work"
                assert again, "it cannot work now either"
                text = f"{reason} each time"
            if row.operation == "prepare":
                refused = reason_of(lambda: scene.unprepare(ref))
                text += f"; Unprepare: {refused} until mended" if refused else "; Unprepare works"
        scene.unprepare(ref)
        # The common file may still be gone, and what does no harm still be there.
        if not row.part.startswith("replace") and not FAULTS[row.name].is_harmless:
            scene.check_clean()
        scene.full_turn(ref)
    return text


def hang(scene: Scene, row: Row) -> str:
    """It hangs until the kubelet has given up: nothing comes of that call after Unprepare."""
    with _claim(scene, row) as ref:
        if row.operation == "unprepare":
            scene.prepare(ref)
        with ThreadPoolExecutor(1) as kubelet:
            with _hanging(scene, row, ref):
                assert is_given_up(_call(scene, row, ref, _CALL_SECONDS))
                unprepared = kubelet.submit(scene.unprepare, ref)
                time.sleep(0.05)
            unprepared.result(PATIENCE)
        scene.wait_idle()
        scene.check_clean()
        scene.full_turn(ref)
    return "given up; Unprepare leaves nothing"


def kill_before(scene: Scene, row: Row) -> str:
    """The process is killed just before, and the Pod is deleted meanwhile."""
    with _claim(scene, row, partition=False) as ref:
        _kill(scene, row, ref, row.before)
        scene.restart()
        scene.unprepare(ref)
        scene.check_clean()
        scene.full_turn(ref)
    return "Unprepare leaves nothing"


def kill_after(scene: Scene, row: Row) -> str:
    """The process is killed just after, and the kubelet goes on with the Pod."""
    with _claim(scene, row, partition=False) as ref:
        _kill(scene, row, ref, row.after)
        scene.restart()
        scene.full_turn(ref)
    return "Prepare completes"


def reboot(scene: Scene, row: Row) -> str:
    """The node goes down just after, with all that does not outlive it."""
    with _claim(scene, row, partition=False) as ref:
        _kill(scene, row, ref, row.after)
        scene.reboot()
        scene.restart()
        scene.full_turn(ref)
    return "Prepare completes"


CELLS: Final[Mapping[str, Callable[[Scene, Row], str]]] = {
    "error once": error_once,
    "error for ever": error_for_ever,
    "hang": hang,
    "kill -9 before": kill_before,
    "kill -9 after": kill_after,
    "reboot": reboot,
}


@contextmanager
def _claim(scene: Scene, row: Row, *, partition: bool = True) -> Iterator[ClaimRef]:
    """Allocate a claim for which the step has something to do."""
    scene.check_clean()
    if row.part.startswith("replace"):
        scene.common_file.unlink()  # both files are written then
    if row.step == "resolve" and partition:
        with scene.partition() as ref:  # the step has to look for it
            yield ref
    elif row.part in MPS_PARTS:
        yield scene.new_mps_claim()
    elif row.step == "mig":
        yield scene.new_claim(MADE)
    elif row.step == "sharing":
        yield scene.new_share()
    else:
        yield scene.new_claim()
    scene.check_clean()


def _call(scene: Scene, row: Row, ref: ClaimRef, timeout: float = 45.0) -> Callable[[], object]:
    work = scene.prepare if row.operation == "prepare" else scene.unprepare
    return lambda: work(ref, timeout)


@contextmanager
def _faulty(scene: Scene, row: Row, ref: ClaimRef, times: int) -> Iterator[Callable[[], object]]:
    """Give a call that meets the row's fault; afterwards the fault is gone."""
    fault = FAULTS[row.name]

    def call() -> None:
        if not fault.at:
            fault.begin(scene, ref, times)
            _call(scene, row, ref)()
            return
        scene.arm(f"{fault.at}=stop")
        with ThreadPoolExecutor(1) as kubelet:
            result = kubelet.submit(_call(scene, row, ref))
            scene.wait_halted()
            fault.begin(scene, ref, times)
            scene.go_on()
            result.result(PATIENCE)

    yield call
    fault.end(scene, ref)


@contextmanager
def _hanging(scene: Scene, row: Row, ref: ClaimRef) -> Iterator[None]:
    """Let the step hang inside, by what it waits for or with the whole process."""
    cause = HANGS.get(row.name)
    if cause is None:
        scene.arm(f"{row.before}=stop")
        yield
        scene.wait_halted()
        scene.go_on()
        return
    end = cause.begin(scene, ref)
    yield
    if cause.others_go_on:
        other = scene.new_claim(f"gpu-{OTHER}")
        scene.prepare(other)
        scene.unprepare(other)
    end()


def _kill(scene: Scene, row: Row, ref: ClaimRef, point: str) -> None:
    if row.operation == "unprepare":
        scene.prepare(ref)
    scene.arm(point)
    assert is_given_up(_call(scene, row, ref))
    scene.wait_killed()
