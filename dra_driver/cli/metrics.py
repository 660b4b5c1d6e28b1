"""`dra-driver metrics`: the catalogue of metrics, without starting anything."""

from collections.abc import Sequence
from typing import Final

import click

from dra_driver.cli.output import output_option, show
from dra_driver.cli.tables import table
from dra_driver.telemetry import CATALOGUE, Metric

_HEAD: Final = ("NAME", "KIND", "LABELS", "MEANING")


@click.command()
@click.option(
    "--program",
    type=click.Choice(["serve", "webhook"]),
    default="serve",
    show_default=True,
    help="Whose metrics.",
)
@output_option
def metrics(program: str, output: str) -> None:
    """Show the metrics that a program offers at its --http-endpoint."""
    catalogue = _catalogue(program)
    document = [
        {
            "name": metric.name,
            "kind": metric.kind,
            "labels": list(metric.labels),
            "text": metric.text,
        }
        for metric in catalogue
    ]
    rows = [(m.name, m.kind, ",".join(m.labels) or "-", m.text) for m in catalogue]
    show(output, document, lambda _: table(_HEAD, rows))


def _catalogue(program: str) -> Sequence[Metric]:
    if program == "serve":
        return CATALOGUE
    from dra_driver.admission.metrics import CATALOGUE as OF_WEBHOOK  # noqa: PLC0415 - rarely needed

    return OF_WEBHOOK
