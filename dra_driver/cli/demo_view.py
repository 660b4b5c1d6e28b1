"""What the demo prints: steps as they happen, claims, the picture of the node, a CDI file.

On a terminal with colours and a spinner; elsewhere, and with NO_COLOR, the same words plainly.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from dra_driver.allocation import Allocation, Refusal
from dra_driver.cli.demo_claims import Served
from dra_driver.cli.demo_picture import Holders, colour, letter, picture

STEPS: Final = 6
_WIDTH: Final = 100  # where there is no terminal that has one
_INDENT: Final = " " * 17

Say = Callable[[str], None]


def make_console() -> Console:
    """Return a console for standard output."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH)


class View:
    """Prints the demo's story."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._steps = 0

    def title(self, text: str, explanation: str) -> None:
        """Say what this is."""
        self._console.print(Text(text, style="bold"))
        self._console.print(explanation, style="dim")
        self._console.print()

    @contextmanager
    def step(self, doing: str) -> Iterator[Say]:
        """Show that a step is on its way; what is told to the yielded function is its result."""
        results: list[str] = []
        begin = time.monotonic()
        waiting = self._console.status(doing) if self._console.is_terminal else nullcontext()
        with waiting:
            yield results.append
        seconds = time.monotonic() - begin
        self._steps += 1
        line = Text(f"[{self._steps}/{STEPS}] ", style="bold green")
        line.append("; ".join(results) or doing, style="default not bold")
        line.append(f"  {seconds:.1f} s", style="dim not bold")
        self._console.print(line)

    def node(self, slices: list[dict[str, Any]], holders: Holders) -> None:
        """Draw the node."""
        self._console.print()
        self._console.print(picture(slices, holders), soft_wrap=True)

    def pod(self, position: int, summary: str, served: Served) -> None:
        """Tell what a Pod asked for and what came of it."""
        given = isinstance(served.outcome, Allocation)
        mark = letter(position) if given else "-"
        style = f"bold {colour(position)}" if given else "bold"
        self._console.print()
        self._console.print(Text(f"  {mark}  {served.pod}: {summary}", style=style))
        for request in served.claim.requests:
            for alternative in request.alternatives:
                self._line("class", alternative.class_name)
                for selector in alternative.selectors:
                    self._line("selector", selector)
        if isinstance(served.outcome, Refusal):
            self._line("pending", served.outcome.message)
            return
        self._line("claim", str(served.ref))
        for device in served.prepared:
            uuid = served.uuids[device.name]
            self._line("got", f"{device.name} ({uuid}) in {served.seconds * 1000:.1f} ms")
            for cdi_id in device.cdi_ids:
                self._line("CDI device", cdi_id)

    def cdi_file(self, name: str, text: str) -> None:
        """Show a CDI file without its annotations, which are the plugin's own notes."""
        document = json.loads(text)
        document.pop("annotations", None)
        shown = json.dumps(document, indent=2)
        self._console.print(Text(f"  The runtime reads {name}:", style="bold"))
        if self._console.is_terminal and not self._console.no_color:
            self._console.print(Syntax(shown, "json", background_color="default", padding=(0, 4)))
        else:
            self._console.print(Text("\n".join(f"    {line}" for line in shown.splitlines())))
        self._console.print()

    def end(self, text: str) -> None:
        """Say how it ended."""
        self._console.print(Text(f"\n{text}", style="bold"))

    def _line(self, name: str, value: str) -> None:
        room = max(self._console.width - len(_INDENT), 20)
        for index, line in enumerate(Text(value).wrap(self._console, room, overflow="ignore")):
            head = f"     {name:<12}" if index == 0 else _INDENT
            self._console.print(Text(head, style="dim"), line, sep="", soft_wrap=True)
