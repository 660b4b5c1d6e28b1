"""`dra-driver metrics`: the catalogue of metrics, without starting anything."""

from typing import Final

import click

from dra_driver.cli.output import output_option, show
from dra_driver.cli.tables import table
from dra_driver.telemetry import CATALOGUE

_HEAD: Final = ("NAME", "KIND", "LABELS", "MEANING")


@click.command()
@output_option
def metrics(output: str) -> None:
    """Show the metrics that `serve --http-endpoint` offers."""
    document = [
        {
            "name": metric.name,
            "kind": metric.kind,
            "labels": list(metric.labels),
            "text": metric.text,
        }
        for metric in CATALOGUE
    ]
    rows = [(m.name, m.kind, ",".join(m.labels) or "-", m.text) for m in CATALOGUE]
    show(output, document, lambda _: table(_HEAD, rows))
