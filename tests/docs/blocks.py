"""The blocks of code in the pages, and the commands in them, each with its place."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.docs.fields import CHECKOUT

_FENCE: Final = re.compile(r"^(?P<indent> *)```(?P<language>\S*)$")
_PROMPT: Final = re.compile(r"^[$#] (?P<words>.*)$")  # of a user, of root


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code."""

    page: str  # path below the checkout
    line: int
    heading: str
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """What is typed behind one prompt, and what the page shows of its answer."""

    page: str
    line: int
    heading: str
    words: str
    output: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Tell where it stands."""
        return f"{self.page}:{self.line}: {self.words}"


def pages() -> list[str]:
    """Paths of all pages that people read, below the checkout."""
    patterns = ("*.md", "docs/*.md", "deploy/**/*.md", "examples/**/*.md")
    found = (path for pattern in patterns for path in CHECKOUT.glob(pattern))
    return sorted(str(path.relative_to(CHECKOUT)) for path in found)


def blocks() -> list[Block]:
    """All blocks of all pages, in order."""
    return [block for page in pages() for block in _blocks(page)]


def commands() -> list[Command]:
    """All commands of all pages, in order."""
    consoles = (block for block in blocks() if block.language == "console")
    return [command for block in consoles for command in commands_of(block)]


def commands_of(block: Block) -> list[Command]:
    """All commands of one block."""
    found: list[Command] = []
    continued = False
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        prompt = _PROMPT.match(line)
        if continued or prompt is None:
            if not found:
                raise ValueError(f"{block.page}:{number}: no prompt in front of the first command")
            last = found.pop()
            found.append(_longer(last, line, is_words=continued))
        else:
            found.append(Command(block.page, number, block.heading, prompt["words"]))
        continued = found[-1].words.endswith("\\") and (continued or prompt is not None)
    return found


def _longer(command: Command, line: str, *, is_words: bool) -> Command:
    """Add a line to what is typed, or to what is answered."""
    words, output = command.words, command.output
    if is_words:
        words = f"{words.removesuffix(chr(92)).rstrip()} {line.strip()}"
    else:
        output = (*output, line)
    return Command(command.page, command.line, command.heading, words, output)


def _blocks(page: str) -> Iterator[Block]:
    heading, begin, fence, inside = "", 0, None, list[str]()
    for number, line in enumerate((CHECKOUT / page).read_text(encoding="utf-8").splitlines(), 1):
        if fence is None:
            heading = line if line.startswith("#") else heading
            fence, begin, inside = _FENCE.match(line), number, []
        elif line == f"{fence['indent']}```":
            yield Block(page, begin, heading, fence["language"], "\n".join(inside) + "\n")
            fence = None
        else:
            inside.append(line.removeprefix(fence["indent"]))
    if fence is not None:
        raise ValueError(f"{page}:{begin}: the block has no end")
