"""One pass of the reconciler: learn what the server can, compare, write, confirm."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import is_
from typing import Final, TypeAlias

from dra_driver.config import Settings
from dra_driver.host.succession import Succession
from dra_driver.kube import Conflict, JsonObject, KubeClient, NotFound, Refused
from dra_driver.model import DriverError, Inventory, TryAgain
from dra_driver.slices.abilities import (
    ServerAbilities,
    abilities_from,
    probe_slice,
    without_dropped,
)
from dra_driver.slices.builder import PoolPlan
from dra_driver.slices.compare import same_spec
from dra_driver.slices.left_out import LeftOut
from dra_driver.slices.mirror import SliceMirror
from dra_driver.slices.planner import Planner
from dra_driver.slices.refusals import refused_devices, refuses_counters
from dra_driver.slices.taint_times import TaintTimes
from dra_driver.slices.writes import Accepted, Writes, plan_writes
from dra_driver.telemetry import Metrics, logger

log = logger(__name__)

_Send: TypeAlias = Callable[[JsonObject], JsonObject]
_ROUNDS: Final = 8  # one is enough unless something is refused or dropped


class Superseded(Exception):
    """A newer instance of this driver is there: the slices are its business now."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass that succeeded did."""

    writes: int
    left_out: tuple[LeftOut, ...]


class Reconciler:
    """Brings the API server to what a snapshot asks for; used by one thread."""

    def __init__(
        self,
        kube: KubeClient,
        settings: Settings,
        mirror: SliceMirror,
        metrics: Metrics,
        instances: Succession,
        held: Callable[[], Mapping[str, str]],
    ) -> None:
        """Keep the parts; nothing is sent yet. Only the last of `instances` writes.

        `held` says which claims hold partitions, by GPU UUID; it may raise DriverError.
        """
        self._kube = kube
        self._settings = settings
        self._mirror = mirror
        self._metrics = metrics
        self._instances = instances
        self._held = held
        self._last_held: Mapping[str, str] = {}
        self._abilities = ServerAbilities()
        self._epoch = 0  # list of the mirror for which the abilities hold
        self._floor = 0  # highest generation ever used
        self._refused: dict[str, tuple[JsonObject, str]] = {}
        self._accepted: dict[str, Accepted] = {}
        self._planner = Planner(settings)
        self._taint_times = TaintTimes()
        self._settled = PoolPlan(())  # the plan that needed no write, and the slices then
        self._settled_slices: tuple[JsonObject, ...] = ()
        self._written = 0

    def run(self, inventory: Inventory) -> Outcome:
        """Do what is to be done; raises DriverError when it did not get there, or Superseded.

        An instance counts as new from its first pass on: then it has seen hardware and API server
        and can do better than the one before it.
        """
        self._instances.join()
        self._stop_if_superseded()
        self._written = 0
        for _ in range(_ROUNDS):
            self._learn()
            plan = self._planner.plan(
                inventory, self._abilities, self._refused, self._partitions_held()
            )
            writes = self._plan_writes(plan)
            if not writes or self._carry_out(plan, writes):
                return Outcome(self._written, plan.left_out)
        raise TryAgain("the API server refuses or drops something new each time; tried again later")

    def _stop_if_superseded(self) -> None:
        """Ask before each write. One on its way carries the version that it is to replace."""
        if not self._instances.is_last():
            raise Superseded

    def _learn(self) -> None:
        """Find out what this server keeps, anew after every list: it may be another one."""
        epoch = self._mirror.epoch
        if epoch == 0:
            raise TryAgain(self._mirror.problem() or "the slices have not been listed yet")
        if epoch == self._epoch:
            return
        settings, version = self._settings, self._kube.server_version()
        probe = probe_slice(settings.driver_name, settings.node_name, settings.pool, version)
        try:
            answer = self._kube.create_slice(probe, dry_run=True)
        except Refused as error:
            log.warning("the API server refuses the probe: no optional field is used", err=error)
            answer = {}
        abilities = abilities_from(answer, version)
        if abilities != self._abilities:
            dropped = " ".join(abilities.dropped()) or "none"
            log.info("API server", version=".".join(map(str, version)), gates_off=dropped)
        self._refused.clear()
        self._accepted.clear()
        self._abilities = abilities
        self._epoch = epoch

    def _partitions_held(self) -> Mapping[str, str]:
        """Ask who holds partitions; a failed read proves nothing and stops no other news."""
        try:
            self._last_held = self._held()
        except DriverError as error:
            log.warning("who holds partitions is not known now", err=error)
        return self._last_held

    def _plan_writes(self, plan: PoolPlan) -> Writes:
        """Compare; what is created belongs to the Node that exists now."""
        found = self._mirror.slices()
        if plan is self._settled and _are_same(found, self._settled_slices):
            return Writes(self._floor)
        self._taint_times.note(found)
        timed = self._taint_times.applied(plan)
        writes = plan_writes(timed, found, "", self._floor, self._accepted)
        if writes.creates:
            uid = self._node_uid()
            writes = plan_writes(timed, found, uid, self._floor, self._accepted)
        if not writes:
            self._settled, self._settled_slices = plan, found
        return writes

    def _node_uid(self) -> str:
        name = self._settings.node_name
        try:
            return self._kube.node_uid(name)
        except NotFound as error:
            raise NotFound(
                f"Node {name!r} does not exist yet; slices are published when the kubelet has "
                "created it"
            ) from error

    def _carry_out(self, plan: PoolPlan, writes: Writes) -> bool:
        """Delete, update, create, in this order; False when the plan is void and to be redone."""
        self._floor = max(self._floor, writes.generation)
        relied_on = self._abilities
        try:
            for obj in writes.deletes:
                self._delete(obj)
            for verb, send, obj in self._sends(writes):
                self._confirm(obj, self._send(verb, send, obj))
                if self._abilities != relied_on:
                    return False  # what follows relies on what was dropped
        except _RefusedSlice as refusal:
            self._leave_out(plan, refusal)
            return False
        except (Conflict, NotFound):
            self._mirror.refresh()  # somebody was faster: look again
            raise
        return True

    def _sends(self, writes: Writes) -> Iterator[tuple[str, _Send, JsonObject]]:
        yield from (("update", self._kube.replace_slice, obj) for obj in writes.updates)
        yield from (("create", self._kube.create_slice, obj) for obj in writes.creates)

    def _delete(self, obj: JsonObject) -> None:
        metadata = obj["metadata"]
        with self._write("delete"):
            self._kube.delete_slice(metadata["name"], metadata["uid"], metadata["resourceVersion"])
        self._mirror.forget(obj)

    def _send(self, verb: str, send: _Send, obj: JsonObject) -> JsonObject:
        try:
            with self._write(verb):
                return send(obj)
        except Refused as error:
            raise _RefusedSlice(obj, error) from error

    def _confirm(self, obj: JsonObject, answer: JsonObject) -> None:
        """Note what the server made of it; what it dropped is not relied on from now on."""
        self._mirror.put(answer)
        if same_spec(obj["spec"], answer["spec"]):
            return
        left = without_dropped(self._abilities, obj["spec"], answer["spec"])
        name = obj["metadata"]["name"]
        if left != self._abilities:
            self._abilities = left
            log.warning("fields were dropped", slice=name, gates_off=" ".join(left.dropped()))
            return
        self._accepted[name] = Accepted(obj["spec"], answer["spec"])
        log.warning("the API server stored something else than was sent", slice=name)

    def _leave_out(self, plan: PoolPlan, refusal: "_RefusedSlice") -> None:
        """Find the devices that were refused; raises the refusal when it is none of them.

        Counters that are refused are not relied on, as those that are dropped. A server of another
        release, behind the same address while the cluster is upgraded, wants them laid out
        otherwise: that is learned first.
        """
        if self._kube.server_version() != self._abilities.version:
            self._epoch = 0
            return
        words = refused_devices(self._kube, refusal.obj, refusal.error)
        if not words and refuses_counters(self._kube, refusal.obj):
            log.warning("the API server refuses counters", err=refusal.error)
            self._abilities = replace(self._abilities, counters=False)
            return
        if not words:
            raise refusal.error
        for part in plan.slices:
            for device in part.devices:
                if device["name"] in words:
                    self._refused[device["name"]] = (device, words[device["name"]])

    @contextmanager
    def _write(self, verb: str) -> Iterator[None]:
        """Count one write, which only the newest instance makes."""
        self._stop_if_superseded()
        result = "error"
        try:
            yield
            result = "ok"
            self._written += 1
        finally:
            self._metrics.count("gpu_dra_driver_publish_writes_total", verb=verb, result=result)


def _are_same(found: Sequence[JsonObject], before: Sequence[JsonObject]) -> bool:
    """Whether these are the very same objects: the mirror never changes one in place."""
    return len(found) == len(before) and all(map(is_, found, before))


class _RefusedSlice(Exception):
    """Carries a refusal from the write to where the plan is known."""

    def __init__(self, obj: JsonObject, error: Refused) -> None:
        super().__init__(str(error))
        self.obj = obj
        self.error = error
