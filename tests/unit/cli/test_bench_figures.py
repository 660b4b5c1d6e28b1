"""Figures of the benchmark: percentiles, JSON, tables, comparisons."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dra_driver.cli import main
from dra_driver.cli.bench.command import bench
from dra_driver.cli.bench.figures import Figure, Result, distribution, read_result
from dra_driver.cli.bench.floor import FLOOR
from dra_driver.cli.bench.process import listener, usage
from dra_driver.cli.bench.text import comparison_text, result_text
from dra_driver.model.errors import SettingInvalid, StorageFailed


def result(prepare: float, floor: float) -> Result:
    return Result(
        {"driver": "gpu.nvidia.com"},
        (
            Figure("prepare", "ms", 10, prepare, prepare, prepare, 400, 1),
            Figure(FLOOR, "ms", 10, floor, floor, floor, 400, 1),
            Figure("memory", "MB", 1, 60.0, live=0),
        ),
    )


@pytest.mark.parametrize(
    ("count", "expected"), [(1, (1, 1, 1)), (2, (1, 2, 2)), (10, (5, 9, 10)), (100, (50, 90, 99))]
)
def test_percentiles_are_samples(count: int, expected: tuple[int, int, int]) -> None:
    figure = distribution("x", "ms", list(range(count, 0, -1)))
    assert figure.count == count
    assert (figure.p50, figure.p90, figure.p99) == expected


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    saved = result(4.0, 2.0)
    path.write_text(saved.to_json())
    assert read_result(path) == saved
    assert read_result(path).figure("prepare", 400, 1).p50 == 4.0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "is not the JSON of a benchmark"),
        ("{}", "is not the JSON of a benchmark: KeyError('schema')"),
        ('{"schema": 99}', "has schema 99, not 1"),
        ('{"schema": 1, "about": {}, "figures": [{"name": "x"}]}', "is not the JSON"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(SettingInvalid, match=str(path)) as caught:
        read_result(path)
    assert error in str(caught.value)


def test_a_missing_result_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="No such file"):
        read_result(tmp_path / "none.json")


def test_times_are_shown_over_the_floor_of_their_own_load() -> None:
    line = next(line for line in result_text(result(5.0, 2.0)).splitlines() if "prepare" in line)
    assert line.split() == ["prepare", "400", "1", "10", "5", "5", "5", "ms", "2.50"]


def test_a_comparison_takes_the_machines_out() -> None:
    """Twice as slow on a machine whose floor is twice as high is equally fast."""
    text = comparison_text(result(4.0, 2.0), result(8.0, 4.0))
    line = next(line for line in text.splitlines() if line.startswith("prepare"))
    assert line.split() == ["prepare", "400", "1", "ms", "4", "8", "2.00", "1.00"]


def test_a_comparison_names_what_it_leaves_out() -> None:
    other = Result({}, (Figure("threads", "", 1, 30.0),))
    text = comparison_text(result(4.0, 2.0), other)
    assert text.endswith(f"in one result only: {FLOOR}, memory, prepare, threads")


def test_compare_is_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    path.write_text(result(4.0, 2.0).to_json())
    with pytest.raises(SystemExit) as ended:
        main(["bench", "compare", str(path), str(path)])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("FIGURE")
    with pytest.raises(SystemExit) as ended:
        main(["bench", "compare", str(path), str(tmp_path / "none.json")])
    assert ended.value.code == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give --embedded, or --socket with --kubeconfig and --node"),
        (["--socket=/x", "--node=n"], "give --embedded, or --socket"),
        (["--embedded", "--socket=/x"], "exclude each other"),
        (["--embedded", "--live=4,2"], "each number must be larger"),
        (["--embedded", "--live=many"], "give numbers such as 0,100,400"),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(bench, arguments, env={"KUBECONFIG": ""})
    assert result.exit_code == 2 or isinstance(result.exception, SettingInvalid)
    assert words in result.output + str(result.exception)


def test_a_process_that_is_gone_has_no_usage(tmp_path: Path) -> None:
    assert usage(2**22) is None
    assert listener(tmp_path / "none.sock") is None


def test_a_result_holds_no_nulls() -> None:
    document = json.loads(result(4.0, 2.0).to_json())
    assert document["figures"][2] == {
        "name": "memory",
        "unit": "MB",
        "count": 1,
        "p50": 60.0,
        "live": 0,
    }
