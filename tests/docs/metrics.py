"""Tables of metrics, made from their catalogues into the page on them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from dra_driver.admission.metrics import CATALOGUE as OF_WEBHOOK
from dra_driver.telemetry import GROUPS, Metric

PAGE: Final = Path(__file__).parents[2] / "docs/metrics.md"
ALL: Final[Mapping[str, Iterable[Metric]]] = {**GROUPS, "webhook": OF_WEBHOOK}
_REGION: Final = re.compile(
    r"(?<=<!-- made by `make docs`: metrics )(?P<group>\w+) -->\n.*?(?=<!-- end -->)", re.DOTALL
)


def made(page: str) -> str:
    """Page with its tables as they are to be."""
    return _REGION.sub(lambda match: "\n".join(_region(match["group"])), page)


def groups(page: str) -> list[str]:
    """Which groups of metrics a page has a table of."""
    return [match["group"] for match in _REGION.finditer(page)]


def _region(group: str) -> Iterator[str]:
    yield f"{group} -->"
    yield ""
    yield "| metric | kind | labels | meaning |"
    yield "|---|---|---|---|"
    for metric in ALL[group]:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.text} |"
    yield "\n"
