"""`dra-driver prepared`: the claims that are prepared on this node."""

import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from dra_driver.cli import EXIT_FINDING
from dra_driver.cli.node_state import NODE, RECORD_FLAGS, NodeRecords, read_records
from dra_driver.cli.output import output_option, show
from dra_driver.cli.settings_options import make_settings, settings_options
from dra_driver.cli.tables import table
from dra_driver.state import ClaimRecord, DeviceRecord, Phase

_HEAD: Final = ("NAMESPACE", "NAME", "UID", "PHASE", "DEVICES")
_WIDE: Final = ("REQUESTS", "CDI DEVICES", "CDI FILE")


@click.command()
@settings_options(*RECORD_FLAGS)
@output_option
def prepared(*, output: str, **flags: Any) -> None:  # noqa: ANN401 - fields of Settings
    """Show the claims of this node as their records tell: devices and CDI ids.

    Changes nothing, and needs neither the plugin nor the GPU driver nor the API server. A claim in
    phase `preparing` is being prepared at this moment, or was left by a crash. Exit code 1 when a
    record is damaged or a prepared claim has no CDI file.
    """
    records = read_records(make_settings({"node_name": NODE} | flags))
    show(output, document(records), lambda wide: records_text(records, wide=wide))
    if records.damaged or _without_file(records):
        sys.exit(EXIT_FINDING)


def document(records: NodeRecords) -> dict[str, Any]:
    """Give the records as JSON."""
    return {
        "claims": [_claim(record, records) for record in records.claims],
        "damaged": [{"uid": uid, "message": why} for uid, why in sorted(records.damaged.items())],
    }


def records_text(records: NodeRecords, *, wide: bool) -> str:
    """Show the records as a table, and what is wrong with them."""
    head = _HEAD + _WIDE if wide else _HEAD
    rows = [_row(record, records, wide=wide) for record in records.claims]
    parts = [table(head, rows) if rows else "no claims"]
    wrong = [f"damaged: {why}" for _, why in sorted(records.damaged.items())]
    wrong += [f"{record.ref} has no CDI file" for record in _without_file(records)]
    return "\n\n".join([*parts, *(["\n".join(wrong)] if wrong else [])])


def _without_file(records: NodeRecords) -> list[ClaimRecord]:
    return [
        record
        for record in records.claims
        if record.phase is Phase.PREPARED and record.uid not in records.with_cdi_file
    ]


def _claim(record: ClaimRecord, records: NodeRecords) -> dict[str, Any]:
    return {
        "namespace": record.namespace,
        "name": record.name,
        "uid": record.uid,
        "phase": record.phase.value,
        "cdiFile": record.uid in records.with_cdi_file,
        "devices": [_device(device) for device in record.devices],
    }


def _device(device: DeviceRecord) -> dict[str, Any]:
    span = device.span
    return {
        "request": device.request,
        "pool": device.pool,
        "device": device.device,
        "uuid": device.uuid,
        "gpuUUID": device.gpu_uuid,
        "placement": None if span is None else {"start": span.start, "size": span.size},
        "shareID": device.share_id,
        "adminAccess": device.admin_access,
        "cdiDeviceIDs": list(device.cdi_ids),
    }


def _row(record: ClaimRecord, records: NodeRecords, *, wide: bool) -> Sequence[object]:
    held = record.devices
    cells = (
        record.namespace,
        record.name,
        record.uid,
        record.phase.value,
        ",".join(device.device for device in held) or "-",
    )
    if not wide:
        return cells
    ids = dict.fromkeys(each for device in held for each in device.cdi_ids)
    return (
        *cells,
        ",".join(device.request for device in held) or "-",
        ",".join(ids) or "-",
        "yes" if record.uid in records.with_cdi_file else "no",
    )
