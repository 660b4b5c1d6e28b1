"""Links in the pages lead somewhere, and every page is in the list of pages."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import pages
from tests.docs.fields import CHECKOUT

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
LIST = "docs/README.md"


@cache
def text_of(page: Path) -> str:
    """What stands in a page outside of blocks of code."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """What links can name of a page: its headings, as the hosting site writes them."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", pages())
def test_links_lead_to_files_and_headings(page: str) -> None:
    here = CHECKOUT / page
    for path, anchor in LINK.findall(text_of(here)):
        target = (here.parent / path).resolve() if path else here
        assert target.exists(), path
        assert target.is_relative_to(CHECKOUT), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_every_page_is_in_the_list() -> None:
    here = CHECKOUT / LIST
    listed = {(here.parent / path).resolve() for path, _ in LINK.findall(text_of(here))}
    wanted = {CHECKOUT / page for page in pages() if page.startswith("docs/") and page != LIST}
    assert wanted - listed == set()


def test_a_dead_heading_is_found() -> None:
    page = CHECKOUT / "docs/configuration.md"
    assert "how-hard-limits-of-memory-hold" in anchors(page)
    assert "no-such-heading" not in anchors(page)
