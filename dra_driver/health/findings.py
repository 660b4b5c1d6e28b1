"""What events have told of GPUs and partitions: whom it concerns, and when it is over. No I/O.

An event comes once; nothing says when its cause is gone. A finding ends with the first look, begun
after its last event, at which one of these holds:

* the GPU driver was loaded anew, or the GPU is not there any more;
* the partition that it is about was removed: one made anew has a new start;
* the GPU itself was found ill meanwhile (lost, or with a recovery action), and is well now;
* the GPU answers and asks for no recovery action, and no further event came for a while.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from dra_driver.health.xids import meaning
from dra_driver.model import Gpu, Health, HealthState, Inventory, Partition, combined
from dra_driver.nvml import EventKind, HardwareEvent, Look

XID: Final = "xid"
ECC: Final = "ecc"
_XIDS_KEPT: Final = 4  # of one device: the first is the cause, later ones often its consequence

Key: TypeAlias = tuple[str, str, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with a GPU, or with one of its GPU instances (`gi_id`)."""

    gpu_uuid: str
    reason: str
    since: float  # Unix seconds of the first event
    last: float  # monotonic seconds of the newest
    xids: tuple[int, ...] = ()
    gi_id: int | None = None
    ci_id: int | None = None
    located: bool = False  # its GPU instance was seen: when it is gone, so is this
    confirmed: bool = False  # the GPU itself was found ill since: when it is well, this is over

    @property
    def health(self) -> Health:
        """Health of the devices that it concerns."""
        if self.reason == ECC:
            message = "a memory error that could not be corrected"
            return Health(HealthState.UNHEALTHY, ECC, message, self.since)
        first, *later = self.xids
        message = meaning(first) + "".join(f", then {xid}" for xid in later)
        return Health(HealthState.UNHEALTHY, XID, message, self.since, value=str(first))


Findings: TypeAlias = Mapping[Key, Finding]


def with_event(findings: Findings, event: HardwareEvent, now: float, moment: float) -> Findings:
    """Add an event that is the hardware's fault, heard at Unix time `now`."""
    reason = XID if event.kind is EventKind.XID else ECC
    key = (event.gpu_uuid, reason, event.gi_id, event.ci_id)
    known = findings.get(key)
    if known is None:
        first = (event.xid,) if reason == XID else ()
        new = Finding(event.gpu_uuid, reason, now, moment, first, event.gi_id, event.ci_id)
        return {**findings, key: new}
    xids = known.xids
    if reason == XID and event.xid not in xids and len(xids) < _XIDS_KEPT:
        xids = (*xids, event.xid)
    return {**findings, key: replace(known, last=moment, xids=xids)}


def located(findings: Findings, inventory: Inventory) -> Findings:
    """Mark the findings whose GPU instance is in the snapshot."""
    return {
        key: replace(finding, located=True)
        if not finding.located and _instances(finding, inventory.gpu(finding.gpu_uuid))
        else finding
        for key, finding in findings.items()
    }


def settled(findings: Findings, look: Look, quiet_seconds: float) -> Findings:
    """Keep the findings that are not over after this look."""
    left: dict[Key, Finding] = {}
    for key, finding in located(findings, look.inventory).items():
        gpu = look.inventory.gpu(finding.gpu_uuid)
        if gpu is not None and gpu.health.state is HealthState.UNHEALTHY:
            left[key] = replace(finding, confirmed=True)
        elif finding.last >= look.began or not _is_over(finding, gpu, look, quiet_seconds):
            left[key] = finding
    return left


def since(findings: Findings, moment: float) -> Findings:
    """Keep the findings whose last event came after that moment (monotonic)."""
    return {key: finding for key, finding in findings.items() if finding.last >= moment}


def applied(findings: Findings, inventory: Inventory) -> Inventory:
    """Snapshot in which each device has the findings that concern it in its health."""
    ill = {finding.gpu_uuid for finding in findings.values()}
    return replace(
        inventory,
        gpus=tuple(
            _with_findings(gpu, [f for f in findings.values() if f.gpu_uuid == gpu.uuid])
            if gpu.uuid in ill
            else gpu
            for gpu in inventory.gpus
        ),
    )


def _is_over(finding: Finding, gpu: Gpu | None, look: Look, quiet_seconds: float) -> bool:
    if gpu is None:
        return True
    if gpu.health.state is not HealthState.HEALTHY:
        return False
    in_full = all(problem.subject != gpu.uuid for problem in look.inventory.problems)
    if finding.located and in_full and not _instances(finding, gpu):
        return True
    return finding.confirmed or look.began - finding.last >= quiet_seconds


def _instances(finding: Finding, gpu: Gpu | None) -> list[Partition]:
    """Partitions that it is about; a compute instance that is none of ours stands for its parent's.

    Empty: it is about the whole GPU, or about a GPU instance that is not there.
    """
    if gpu is None or finding.gi_id is None:
        return []
    parts = [part for part in gpu.partitions if part.gi_id == finding.gi_id]
    return [part for part in parts if finding.ci_id == part.ci_id] or parts


def _with_findings(gpu: Gpu, findings: Iterable[Finding]) -> Gpu:
    """GPU with its findings. One about an instance that nobody has seen concerns all of the GPU."""
    whole: list[Health] = [gpu.health]
    parts: dict[int, list[Health]] = {part.gi_id: [part.health] for part in gpu.partitions}
    for finding in sorted(findings, key=lambda finding: finding.since):
        concerned = _instances(finding, gpu)
        for part in concerned:
            parts[part.gi_id].append(finding.health)
        if not concerned and not finding.located:
            whole.append(finding.health)
    return replace(
        gpu,
        health=combined(whole),
        partitions=tuple(
            replace(part, health=combined(parts[part.gi_id])) for part in gpu.partitions
        ),
    )
