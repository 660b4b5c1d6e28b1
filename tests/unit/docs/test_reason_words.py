"""`docs/troubleshooting.md` has every reason word that the code can say, and no other."""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import dra_driver
from dra_driver.model import DriverError
from dra_driver.slices import Why

PACKAGE = Path(dra_driver.__file__).parent
PAGE = PACKAGE.parent / "docs/troubleshooting.md"
TAINTS = ("_ILL", "_UNMONITORED", "_LAYOUT_PENDING")  # that no reason word of a health makes


def documented() -> list[str]:
    """Words in the first column of the page's tables."""
    return re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@cache
def trees() -> tuple[ast.Module, ...]:
    return tuple(
        ast.parse(path.read_text(encoding="utf-8"), str(path))
        for path in sorted(PACKAGE.rglob("*.py"))
        if "rpc" not in path.parts
    )


@cache
def constants() -> dict[str, str]:
    """Texts that the package's modules give a name."""
    found = {}
    for tree in trees():
        for node in tree.body:
            value = getattr(node, "value", None)
            if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(value, ast.Constant):
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                if isinstance(target, ast.Name) and isinstance(value.value, str):
                    found[target.id] = value.value
    return found


def arguments(function: str, position: int) -> set[str]:
    """Texts that are given to calls of a function at one position, directly or by name."""
    known, found = constants(), set()
    for tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or len(node.args) <= position:
                continue
            if getattr(node.func, "id", "") != function:
                continue
            given = node.args[position]
            if isinstance(given, ast.Constant):
                found.add(str(given.value))
            elif isinstance(given, ast.Name):
                found.add(known[given.id])
    return found


def errors(branch: type[DriverError] = DriverError) -> Iterator[str]:
    yield branch.reason
    for leaf in branch.__subclasses__():
        yield from errors(leaf)


@cache
def words() -> frozenset[str]:
    for module in pkgutil.walk_packages([str(PACKAGE)], "dra_driver."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = {branch for branch in errors() if branch}
    taints = {constants()[name] for name in TAINTS}
    said = arguments("Event", 0) | arguments("Health", 1) | {why.value for why in Why}
    return frozenset(ours | taints | said)


def test_the_collection_finds_all_kinds() -> None:
    found = words()
    assert {"DeviceInUse", "EvaluatorMissing", "DeviceNotPublished", "gpu-lost", "xid"} <= found
    assert {"unmonitored", "held"} <= found


def test_every_word_is_explained_and_none_is_left_over() -> None:
    assert sorted(set(documented())) == sorted(words())


def test_every_row_has_cause_and_remedy() -> None:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 3, line
            assert all(cells), line
