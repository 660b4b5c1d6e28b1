"""`dra-driver schema`: JSON Schema of what claims and classes may carry for this driver."""

import json

import click

from dra_driver.config import opaque_schema
from dra_driver.config.opaque import KINDS


@click.command()
@click.option("--kind", type=click.Choice(list(KINDS)), help="Only of this kind.")
def schema(kind: str | None) -> None:
    """Print the JSON Schema of the configs that claims and DeviceClasses carry for this driver.

    That of the node configuration is printed by `config schema`.
    """
    click.echo(json.dumps(opaque_schema(kind), indent=2))
