"""What can be known of a node from outside the plugin, without changing anything."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

import grpc

from dra_driver.cdi import ClaimSpecs
from dra_driver.claims.waiting_policies import with_held_policies
from dra_driver.config import NodeConfig, Settings, configured
from dra_driver.health.foreign import ForeignPartitions
from dra_driver.host import list_folder, read_file
from dra_driver.model import Inventory
from dra_driver.model.errors import DriverNotReady, RecordDamaged, StorageFailed
from dra_driver.nvml import Discovery
from dra_driver.rpc import health_v1_pb2 as health
from dra_driver.rpc.health_v1_pb2_grpc import DRAResourceHealthStub
from dra_driver.state import ClaimRecord, Holding, decode, is_reservation
from dra_driver.state.ownership import holdings
from dra_driver.telemetry import Metrics, set_up_logging

# Which flags lead to the records and CDI files, and which to the hardware.
RECORD_FLAGS: Final = ("driver_name", "plugins_folder", "cdi_root")
HARDWARE_FLAGS: Final = ("driver_root", "container_driver_root", "host_root")
CONFIG_FLAGS: Final = ("config_file", "default_config", "fallback_strategies")
NODE: Final = "this-node"  # a name that settings must have, and that nothing here shows

_LOOK_SECONDS: Final = 10.0
_PLUGIN_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class NodeRecords:
    """Records of claims as they lie on disk now."""

    claims: tuple[ClaimRecord, ...] = ()  # by namespace and name
    damaged: Mapping[str, str] = field(default_factory=dict)  # claim UID: what is wrong with it
    with_cdi_file: frozenset[str] = frozenset()  # claim UIDs
    reservations: tuple[ClaimRecord, ...] = ()  # of GPUs that are getting a layout


def read_records(settings: Settings) -> NodeRecords:
    """Read all records. Raises DriverNotReady where the plugin never ran, and StorageFailed."""
    if not settings.data_folder.is_dir():
        raise DriverNotReady(
            f"{settings.data_folder} does not exist: the plugin has not run on this node yet, or "
            "with another --driver-name or --kubelet-plugins-directory-path"
        )
    # Before the records and after them: claims come and go, and a file is there as long as its
    # record says that it is.
    specs = ClaimSpecs(settings)
    with_cdi_file = specs.claim_uids()
    found: list[ClaimRecord] = []
    damaged: dict[str, str] = {}
    for path in list_folder(settings.records_folder, ".json"):
        try:
            content = read_file(path)
            if content is not None:  # else unprepared a moment ago
                found.append(decode(content, path.stem))
        except (RecordDamaged, StorageFailed) as error:
            damaged[path.stem] = str(error)
    for path in list_folder(settings.data_folder / "damaged", ".json"):
        damaged.setdefault(path.stem, f"the record was set aside as {path}")
    found.sort(key=lambda record: (record.namespace, record.name, record.uid))
    return NodeRecords(
        claims=tuple(record for record in found if not is_reservation(record.ref)),
        damaged=damaged,
        with_cdi_file=frozenset(with_cdi_file | specs.claim_uids()),
        reservations=tuple(record for record in found if is_reservation(record.ref)),
    )


def look_at_hardware(settings: Settings) -> Inventory:
    """Look once, beside the plugin or without it. Raises DriverNotReady."""
    set_up_logging("text", "error")  # what it tells on the way is in the answer too
    discovery = Discovery(settings, Metrics(), lambda _: None, lambda _: None)
    discovery.start()
    try:
        return discovery.look(_LOOK_SECONDS)
    finally:
        discovery.stop()


def look_under(
    config: NodeConfig,
    settings: Settings,
    node_labels: Mapping[str, str],
    records: Callable[[], NodeRecords],
) -> Inventory:
    """Look as the plugin does under that configuration: partitions of others are marked.

    One that no record tells of may have been a claim's that ended meanwhile, so it is looked for
    again. Raises DriverNotReady or StorageFailed.
    """
    foreign = ForeignPartitions(lambda: _holdings(records()))

    def look() -> tuple[Inventory, bool]:
        found = configured(look_at_hardware(settings), config, node_labels)
        return foreign.mark(with_held_policies(found, _holdings(records())))

    inventory, is_unsure = look()
    return look()[0] if is_unsure else inventory


def _holdings(records: NodeRecords) -> Iterator[Holding]:
    for record in (*records.claims, *records.reservations):
        yield from holdings(record)


def told_health(settings: Settings) -> Mapping[str, tuple[str, str]] | None:
    """State and words by device as the running plugin tells the kubelet, None if none answers.

    It knows more than one look shows: what events have told.
    """
    for path in sorted(settings.data_folder.glob("dra*.sock")):
        with suppress(grpc.RpcError), grpc.insecure_channel(f"unix:{quote(str(path))}") as channel:
            reports = DRAResourceHealthStub(channel).NodeWatchResources(
                health.NodeWatchResourcesRequest(), timeout=_PLUGIN_SECONDS
            )
            report = next(iter(reports), None)
            if report is None:
                continue  # it ends at this moment
            return {
                each.device.device_name: (
                    health.HealthStatus.DESCRIPTOR.values_by_number[each.health].name.lower(),
                    each.message,
                )
                for each in report.devices
            }
    return None
