"""`dra-driver version`."""

import importlib.metadata
import platform

import click


@click.command()
def version() -> None:
    """Print the version of this driver and of the Python that runs it."""
    release = importlib.metadata.version("gpu-dra-driver")
    click.echo(f"gpu-dra-driver {release} (Python {platform.python_version()})")
