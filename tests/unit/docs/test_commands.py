"""Every command and manifest in the pages is run or checked by a test, or it is said why not."""

import re
import shlex
import subprocess
import tomllib

import click
import pytest
from click.testing import CliRunner

from dra_driver.cli import root
from tests.docs.blocks import Block, blocks, commands, commands_of, pages
from tests.docs.fields import CHECKOUT
from tests.docs.ways import NOT_RUN, NotCovered, Way, objects_of, way_of
from tests.unit.admission.build import Asked, entry, gpu_config, obj

LANGUAGES = {"", "console", "toml", "yaml"}  # `console` is what commands stand in


def block(language: str, text: str) -> Block:
    return Block("docs/page.md", 1, "# Page", language, text)


def test_no_block_hides_from_these_tests() -> None:
    for each in blocks():
        assert each.language in LANGUAGES, f"{each.page}:{each.line}"
        if each.language != "console":
            assert "\n$ " not in f"\n{each.text}", f"{each.page}:{each.line}: call it `console`"


def test_every_command_is_run_by_a_test() -> None:
    ways = {way_of(command) for command in commands()}
    assert ways == set(Way)


def test_what_is_not_run_stands_in_a_page() -> None:
    for begin in NOT_RUN:
        assert any(command.words.startswith(begin) for command in commands()), begin


def test_a_command_of_nobody_is_told() -> None:
    (command,) = commands_of(block("console", "$ frobnicate --all\n"))
    with pytest.raises(NotCovered, match=r"docs/page.md:2: frobnicate --all"):
        way_of(command)


def test_commands_over_several_lines_and_their_answers() -> None:
    first, second = commands_of(block("console", "$ one \\\n    two\nsaid\n\nagain\n# three\n"))
    assert (first.words, first.output) == ("one two", ("said", "", "again"))
    assert (second.words, second.output) == ("three", ())


@pytest.mark.parametrize(
    "command", [each for each in commands() if way_of(each) is Way.MAKE], ids=str
)
def test_what_make_is_told_exists(command: object) -> None:
    words = str(command).partition(": ")[2].partition(" #")[0].split()
    done = subprocess.run(
        [*words, "--dry-run"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_flags_of_what_is_not_run_exist() -> None:
    skipped = [each.words.partition(" #")[0] for each in commands() if way_of(each) is Way.NOBODY]
    ours = [words.partition("dra-driver ")[2] for words in skipped if "dra-driver " in words]
    assert ours
    for words in ours:
        done = CliRunner().invoke(root, [*shlex.split(words), "--help"])
        assert done.exit_code == 0, f"{words}: {done.output}"


def named_in_text() -> list[str]:
    """What sentences and tables of the pages call a command of ours, without the program's name."""
    texts = ((CHECKOUT / page).read_text(encoding="utf-8") for page in pages())
    return sorted({each for text in texts for each in re.findall(r"`dra-driver ([^`]+)`", text)})


@pytest.mark.parametrize("words", named_in_text())
def test_commands_that_a_sentence_names_exist_with_their_flags(words: str) -> None:
    command: click.Command = root
    flags = shlex.split(words)
    while isinstance(command, click.Group) and flags and not flags[0].startswith("-"):
        found = command.get_command(click.Context(command), flags.pop(0))
        assert found is not None
        command = found
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    assert {word.partition("=")[0] for word in flags if word.startswith("-")} <= known


def test_what_the_page_shows_of_the_webhook_is_what_it_says() -> None:
    (command,) = (each for each in commands() if each.page == "docs/webhook.md")
    assert way_of(command) is Way.NOBODY
    head, *shown = command.output
    assert head == 'The ResourceClaim "mine" is invalid:'
    wrong = (gpu_config(strategy="Both"), gpu_config(strategy="TimeSlicing", interval="Long"))
    faults = Asked().faults(obj("ResourceClaim", [entry(each) for each in wrong]))
    assert shown == [f"* {field}: {words}" for field, words in faults.items()]


@pytest.mark.parametrize(
    "manifest",
    [each for each in blocks() if each.language == "yaml"],
    ids=lambda each: f"{each.page}:{each.line}",
)
def test_every_manifest_is_read(manifest: Block) -> None:
    objects_of(manifest)


def test_a_manifest_of_no_kind_is_told() -> None:
    with pytest.raises(NotCovered, match=r"docs/page.md:1"):
        objects_of(block("yaml", "colour: red\n"))


def test_settings_of_others_are_well_formed() -> None:
    found = [each for each in blocks() if each.language == "toml"]
    for each in found:
        assert tomllib.loads(each.text), f"{each.page}:{each.line}"
    assert found
