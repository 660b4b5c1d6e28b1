"""Kinds of values that flags take."""

from typing import Final

import click

from dra_driver.config import FALLBACK_STRATEGIES
from dra_driver.config.durations import parse_duration

_DEBUG_VERBOSITY: Final = 6  # klog's number from which requests and answers are shown
_LEVELS: Final = ("debug", "info", "warning", "error")


class Duration(click.ParamType[float]):
    """Seconds, or a number with ms, s, m or h."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Give seconds."""
        text = str(value)
        try:
            seconds = parse_duration(text if text[-1:].isalpha() else f"{text}s")
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not seconds:
            self.fail(f"{text!r} is not a positive duration", param, ctx)
        return seconds


class NodeLabel(click.ParamType[tuple[str, str]]):
    """A label of the Node and its value."""

    name = "KEY=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Give key and value."""
        key, separator, text = str(value).partition("=")
        if not key or not separator:
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        return key, text


class Xids(click.ParamType[frozenset[int]]):
    """Numbers with commas between them."""

    name = "numbers"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[int]:
        """Give the set of numbers."""
        if isinstance(value, frozenset):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        for part in parts:
            if part and not (part.isascii() and part.isdecimal()):
                self.fail(f"{part!r} is not an XID; give numbers such as 61,62", param, ctx)
        return frozenset(int(part) for part in parts if part)


class Strategies(click.ParamType[tuple[str, ...]]):
    """Fallback strategies with commas between them."""

    name = "words"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Give them in order."""
        if isinstance(value, tuple):
            return value
        words = tuple(word.strip() for word in str(value).split(",") if word.strip())
        for word in words:
            if word not in FALLBACK_STRATEGIES:
                self.fail(f"{word!r} is none of {', '.join(FALLBACK_STRATEGIES)}", param, ctx)
        return words


class Level(click.ParamType[str]):
    """A level by name, or klog's number for it."""

    name = "level"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Give the name of the level."""
        text = str(value).lower().removeprefix("=")  # klog's -v=4
        if text.isdecimal():
            return "debug" if int(text) >= _DEBUG_VERBOSITY else "info"
        if text not in _LEVELS:
            self.fail(f"{text!r} is none of {', '.join(_LEVELS)} or a number", param, ctx)
        return text
