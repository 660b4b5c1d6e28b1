"""What the demo prints, without running it."""

import io
from typing import Any

import pytest
from rich.console import Console

from dra_driver.allocation import Claim, Refusal
from dra_driver.cli.demo_claims import Served
from dra_driver.cli.demo_picture import letter, picture
from dra_driver.cli.demo_view import View, make_console
from dra_driver.cli.shipped import device_classes, example
from dra_driver.model import ClaimRef


def _whole(number: int) -> dict[str, Any]:
    attributes = {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA H100 80GB HBM3"}}
    return {"name": f"gpu-{number}", "attributes": attributes, "capacity": {}}


def _partition(number: int, profile: str, start: int, size: int) -> dict[str, Any]:
    slices = {f"memorySlice{index}": {"value": "1"} for index in range(start, start + size)}
    return {
        "name": f"gpu-{number}-mig-{profile.replace('.', '')}-0-{start}",
        "attributes": {"type": {"string": "mig"}, "profile": {"string": profile}},
        "capacity": {"memory": {"value": "10Gi"}, **slices},
    }


def _slices(*devices: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"spec": {"devices": list(devices)}}, {"spec": {}}]


def test_a_gpu_is_a_bar_and_a_partition_its_part_of_it() -> None:
    slices = _slices(
        _partition(11, "3g.40gb", 4, 4),
        _partition(11, "1g.10gb", 0, 1),
        _partition(11, "2g.20gb", 2, 2),
        _whole(2),
    )
    holders = {"gpu-2": 0, "gpu-11-mig-1g10gb-0-0": 2}
    assert picture(slices, holders).plain.splitlines() == [
        "  gpu-2  [A NVIDIA H100 80GB HBM3                       ]  taken",
        "  gpu-11 [C 1g]      [- 2g.20gb ][- 3g.40gb             ]  3 partitions, 2 free",
    ]


def test_colours_follow_the_letters() -> None:
    drawn = picture(_slices(_whole(0), _whole(1)), {"gpu-1": 1})
    styles = {drawn.plain[span.start : span.end][:2]: str(span.style) for span in drawn.spans}
    assert styles["[-"] == "green"
    assert styles["[" + letter(1)] == "bold magenta"


def test_nothing_published_is_an_empty_picture() -> None:
    assert picture(_slices(), {}).plain == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_words_are_the_same_with_and_without_terminal(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    output = io.StringIO()
    console = Console(file=output, width=100, force_terminal=terminal, highlight=False)
    view = View(console)
    with view.step("waiting") as say:
        say("it is done")
    view.cdi_file("claim.json", '{"kind": "k", "annotations": {"note": "x"}}')
    text = output.getvalue()
    assert "[1/6]" in text
    assert "it is done" in text
    assert '"kind": "k"' in text
    assert "annotations" not in text
    assert "\x1b[3" not in text  # no colour
    assert terminal or "\x1b" not in text


def test_a_failed_step_is_not_told_as_done() -> None:
    output = io.StringIO()
    view = View(Console(file=output, width=100))
    with pytest.raises(RuntimeError), view.step("trying"):
        raise RuntimeError
    assert "[1/6]" not in output.getvalue()


def test_a_pod_that_waits_says_why() -> None:
    output = io.StringIO()
    view = View(Console(file=output, width=60, highlight=False))
    claim = Claim("default", "c", ())
    refusal = Refusal("default/c", "request gpu wants 1 device, 0 found", fatal=False)
    view.pod(0, "A GPU.", Served("p", claim, ClaimRef("default", "c", "u"), refusal))
    assert output.getvalue().splitlines()[1:] == [
        "  -  p: A GPU.",
        "     pending     request gpu wants 1 device, 0 found",
    ]


def test_no_terminal_has_a_fixed_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert make_console().width == 100
    assert capsys.readouterr().out == ""


def test_classes_and_examples_are_found() -> None:
    names = {manifest["metadata"]["name"] for manifest in device_classes()}
    assert {"gpu.nvidia.com", "mig.nvidia.com"} <= names
    assert "kind: Pod" in example("01-one-gpu")
