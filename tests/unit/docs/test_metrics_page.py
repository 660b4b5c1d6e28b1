"""`docs/metrics.md` has the catalogue as it is, and no page names a metric that does not exist."""

import re
from pathlib import Path

import pytest

from tests.docs.metrics import ALL, PAGE, groups, made

CHECKOUT = PAGE.parent.parent
METRICS = {metric.name: metric for group in ALL.values() for metric in group}
NAMED = re.compile(r"\b((?:gpu_dra_driver|nvidia_dra)_[a-z_]+)(?:\{([^}]*)\})?")
PAGES = sorted({CHECKOUT / "README.md", *(CHECKOUT / "docs").glob("*.md")})


def test_the_tables_are_the_catalogue() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == made(text), "run `make docs`"
    assert groups(text) == list(ALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_metric_and_label_that_a_page_names_exists(page: Path) -> None:
    for name, labels in NAMED.findall(page.read_text(encoding="utf-8")):
        if name.endswith("_"):
            continue  # a prefix
        metric = METRICS.get(name) or METRICS[re.sub("_(bucket|count|sum)$", "", name)]
        used = {re.split("[=!]", each)[0].strip() for each in labels.split(",") if each}
        assert used <= {*metric.labels, "le"}, f"{name}: {metric.labels}"
