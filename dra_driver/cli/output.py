"""The forms in which commands show what they found."""

import json
from collections.abc import Callable
from typing import Any, Final

import click
import yaml

TABLE: Final = "table"
WIDE: Final = "wide"
JSON: Final = "json"
YAML: Final = "yaml"

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice([TABLE, WIDE, JSON, YAML]),
    default=TABLE,
    show_default=True,
    help="Form of the output.",
)


def show(output: str, document: Any, text: Callable[[bool], str]) -> None:  # noqa: ANN401 - JSON
    """Print the document, or the text for people, whose argument says whether it may be wide."""
    if output == JSON:
        click.echo(json.dumps(document, indent=2))
    elif output == YAML:
        click.echo(yaml.safe_dump(document, sort_keys=False), nl=False)
    else:
        click.echo(text(output == WIDE))
