"""Commands to a control daemon, and how its answers are read."""

from pathlib import Path

import pytest

from dra_driver.model.errors import HardwareBusy, HardwareFailed
from dra_driver.mps_agent.control import Control, Limits
from dra_driver.mps_agent.programs import Program

# Answers what is in a file beside it, and writes down what it was told.
_PROGRAM = """\
#!/bin/sh
cat >> "$0.asked"
cat "$0.answer"
exit $(cat "$0.status")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_text(_PROGRAM)
    path.chmod(0o755)
    return path


def control(program: Path, answer: str, status: int = 0) -> Control:
    program.with_name("program.answer").write_text(answer)
    program.with_name("program.status").write_text(f"{status}\n")
    return Control(Program(program, {"PATH": "/usr/bin:/bin"}), program.parent / "pipe")


def asked(program: Path) -> list[str]:
    return program.with_name("program.asked").read_text().splitlines()


def test_servers_by_pid(program: Path) -> None:
    assert control(program, "17\n\n 4711 \n").servers() == [17, 4711]
    assert control(program, "").servers() == []
    assert asked(program) == ["get_server_list"] * 2


@pytest.mark.parametrize("answer", ["Unknown command", "-3", "1.5"])
def test_what_is_no_pid_is_told_of(program: Path, answer: str) -> None:
    with pytest.raises(HardwareFailed, match="process id was expected, answered was"):
        control(program, answer).servers()


def test_a_daemon_that_is_not_there_is_busy(program: Path) -> None:
    words = "Cannot find MPS control daemon process"
    with pytest.raises(HardwareBusy, match=f"get_server_list: {words}"):
        control(program, words, status=1).servers()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("10G\n40.0\n", Limits(40, {0: 10240})),
        ("10240M\n40\n", Limits(40, {0: 10240})),
        ("9G\n50.0\n", Limits(50, {0: 9216})),
        ("0M\n100.0\n", Limits(100, {0: 0})),
        ("none\n100.0\n", Limits(100, {0: -1})),
    ],
)
def test_limits_are_read_as_daemons_show_them(program: Path, answer: str, found: Limits) -> None:
    assert control(program, answer).limits(Limits(40, {0: 10240})) == found
    assert asked(program) == [
        "get_default_device_pinned_mem_limit 0",
        "get_default_active_thread_percentage",
    ]


def test_a_limit_that_is_shown_in_whole_gib_stands_for_what_is_wanted(program: Path) -> None:
    assert control(program, "1G\n").limits(Limits(None, {0: 1044})) == Limits(None, {0: 1044})
    assert control(program, "2G\n").limits(Limits(None, {0: 1044})) == Limits(None, {0: 2048})


def test_without_wishes_nothing_is_asked(program: Path) -> None:
    assert control(program, "").limits(Limits(None, {})) == Limits(None, {})
    assert not program.with_name("program.asked").exists()


@pytest.mark.parametrize("answer", ["", "10G", "10G\n10G\n40.0", "10G\nhalf"])
def test_answers_that_can_not_be_read_are_told_of(program: Path, answer: str) -> None:
    with pytest.raises(HardwareFailed, match="answered was"):
        control(program, answer).limits(Limits(40, {0: 10240}))


def test_limits_are_set_for_daemon_and_servers(program: Path) -> None:
    said = control(program, "30.0\nno\n").set_limits(Limits(30, {0: 100, 2: 200}), [17])
    assert said == "30.0; no"
    assert asked(program) == [
        "set_default_device_pinned_mem_limit 0 100M",
        "set_default_device_pinned_mem_limit 2 200M",
        "set_default_active_thread_percentage 30",
        "set_device_pinned_mem_limit 17 0 100M",
        "set_device_pinned_mem_limit 17 2 200M",
        "set_active_thread_percentage 17 30",
    ]


def test_what_differs_is_left_over() -> None:
    wanted = Limits(30, {0: 100, 1: 200})
    assert wanted.without(Limits(30, {0: 100, 1: 100})) == Limits(None, {1: 200})
    assert wanted.without(Limits(20, {0: 100, 1: 200})) == Limits(30, {})
    assert not wanted.without(wanted)
