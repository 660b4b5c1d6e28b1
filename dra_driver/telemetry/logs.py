"""Log lines as text or JSON; every line of one call carries its operation id.

Levels: error for states that stay broken until somebody acts; warning for what failed and is tried
again; info for what changed; debug for the rest.
"""

import json
import logging
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

_OPERATION: ContextVar[str] = ContextVar("operation", default="")
_FIELDS: Final = "dra_fields"
_ROOT: Final = "dra_driver"


class Logger:
    """A named logger whose calls take key=value fields; `err` comes last."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, **fields: object) -> None:
        """Log a detail."""
        self._log(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: object) -> None:
        """Log a change."""
        self._log(logging.INFO, message, fields)

    def warning(self, message: str, **fields: object) -> None:
        """Log a failure that is tried again."""
        self._log(logging.WARNING, message, fields)

    def error(self, message: str, **fields: object) -> None:
        """Log a state that stays broken until somebody acts."""
        self._log(logging.ERROR, message, fields)

    def exception(self, message: str, **fields: object) -> None:
        """Log a bug, with the stack of the exception being handled."""
        self._logger.exception(message, extra={_FIELDS: fields})  # noqa: LOG004 - callers handle one

    def _log(self, level: int, message: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, message, extra={_FIELDS: fields})


def logger(name: str) -> Logger:
    """Make the logger of a module, to be called with its `__name__`."""
    return Logger(name)


@contextmanager
def operation(existing: str = "") -> Iterator[str]:
    """Give all lines inside one id of eight hex digits; `existing` carries it into a thread."""
    identity = existing or secrets.token_hex(4)
    token = _OPERATION.set(identity)
    try:
        yield identity
    finally:
        _OPERATION.reset(token)


def operation_id() -> str:
    """Id of the operation this thread works on, empty outside of one."""
    return _OPERATION.get()


def set_up_logging(form: str, level: str) -> None:
    """Write the driver's lines to standard error as `text` or `json`, from `level` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    root = logging.getLogger(_ROOT)
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = dict(getattr(record, _FIELDS, {}))
    if operation_id():
        fields = {"op": operation_id(), **fields}
    if "err" in fields:
        fields["err"] = fields.pop("err")
    return fields


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds")


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        parts = [_moment(record), record.levelname, record.name, record.getMessage()]
        parts += [f"{key}={_quote(value)}" for key, value in _fields(record).items()]
        if record.exc_info:
            parts.append("\n" + self.formatException(record.exc_info))
        return " ".join(parts)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _moment(record),
            "level": record.levelname,
            "logger": record.name,
            "msg": record.getMessage(),
        }
        entry |= {key: _plain(value) for key, value in _fields(record).items()}
        if record.exc_info:
            entry["stack"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float) or value is None else str(value)


def _quote(value: object) -> str:
    text = str(value)
    plain = text and not any(mark in text for mark in ' "=\n')
    return text if plain else json.dumps(text, ensure_ascii=False)
