"""How what must survive is written: a line of JSON, and a line with its SHA-256.

The checksum covers the first line's bytes, so fields that a newer version wrote do not spoil it.
"""

import hashlib
import json
from typing import Any

from dra_driver.model.errors import RecordDamaged


def sealed(body: bytes) -> bytes:
    """Bytes of a file with that content, which is one line."""
    seal = json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode()
    return body + b"\n" + seal + b"\n"


def opened(content: bytes, what: str) -> bytes:
    """Body of a sealed file; raises RecordDamaged that says what is wrong with `what`."""
    body, _, seal = content.partition(b"\n")
    try:
        stored: Any = json.loads(seal)
        expected = stored["sha256"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RecordDamaged(f"{what} is cut short or not a record") from error
    if hashlib.sha256(body).hexdigest() != expected:
        raise RecordDamaged(f"{what} does not match its checksum")
    return body
