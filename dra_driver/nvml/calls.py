"""Calling NVML: an error number becomes CallFailed, and nothing else leaves this package."""

from collections.abc import Callable
from ctypes import byref, c_uint
from typing import Any, Final, TypeAlias

import pynvml

from dra_driver.nvml.errors import CallFailed

# A ctypes pointer; pynvml has no types. Valid in the library and session that gave it, nowhere
# else.
Handle: TypeAlias = Any

MAX_ENTRIES: Final = 32  # room for the instances or placements of one profile; today 8


def ask(function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
    """Give what `function` of pynvml answers; raises CallFailed."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise CallFailed(function.__name__, error.value) from None
    except UnicodeDecodeError:
        raise CallFailed(function.__name__, pynvml.NVML_ERROR_UNKNOWN) from None


def fill(function: Callable[..., Any], parent: Handle, profile_id: int, kind: Any) -> list[Any]:  # noqa: ANN401
    """List what `function` writes into an array of `kind` for a profile; raises CallFailed."""
    found, count = (kind * MAX_ENTRIES)(), c_uint(MAX_ENTRIES)
    ask(function, parent, profile_id, found, byref(count))
    return [found[position] for position in range(count.value)]
