"""The rules of a CDI document (SPEC.md of the CDI project), as its own Go library applies them."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema

_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"
_KIND = r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
_ABSOLUTE = {"type": "string", "pattern": "^/.+"}
_TEXTS = {"type": "array", "items": {"type": "string"}}

_DEVICE_NODE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["path"],
    "properties": {
        "path": _ABSOLUTE,
        "hostPath": _ABSOLUTE,
        "type": {"enum": ["b", "c", "u", "p"]},
        "major": {"type": "integer", "minimum": 0},
        "minor": {"type": "integer", "minimum": 0},
        "fileMode": {"type": "integer"},
        "permissions": {"type": "string", "pattern": "^[rwm]+$"},
    },
}
_MOUNT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["hostPath", "containerPath"],
    "properties": {"hostPath": _ABSOLUTE, "containerPath": _ABSOLUTE, "options": _TEXTS},
}
_HOOK = {
    "type": "object",
    "additionalProperties": False,
    "required": ["hookName", "path"],
    "properties": {
        "hookName": {"enum": ["createRuntime", "createContainer", "startContainer"]},
        "path": _ABSOLUTE,
        "args": _TEXTS,
    },
}
_EDITS = {
    "type": "object",
    "additionalProperties": False,
    "minProperties": 1,  # a device must change something
    "properties": {
        "env": {"type": "array", "items": {"type": "string", "pattern": "^[^=]+="}},
        "deviceNodes": {"type": "array", "items": _DEVICE_NODE},
        "mounts": {"type": "array", "items": _MOUNT},
        "hooks": {"type": "array", "items": _HOOK},
    },
}
_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["cdiVersion", "kind", "devices"],
    "properties": {
        "cdiVersion": {"const": "0.6.0"},
        "kind": {"type": "string", "pattern": f"^{_KIND}$"},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
        "containerEdits": _EDITS,
        "devices": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "containerEdits"],
                "properties": {
                    "name": {"type": "string", "pattern": f"^{_NAME}$"},
                    "containerEdits": _EDITS,
                },
            },
        },
    },
}


def read_document(path: Path) -> dict[str, Any]:
    """Read a CDI file, checked against the rules; the mode must let every runtime read it."""
    document: dict[str, Any] = json.loads(path.read_text())
    jsonschema.validate(document, _SCHEMA)
    names = [device["name"] for device in document["devices"]]
    assert len(set(names)) == len(names), f"a device is named twice: {names}"
    for device in document["devices"]:
        assert any(device["containerEdits"].values()), f"{device['name']} has no edits"
    assert path.stat().st_mode & 0o7777 == 0o644
    return document


def edits(path: Path, device: str) -> dict[str, Any]:
    """Container edits of one device of a CDI file."""
    devices = read_document(path)["devices"]
    (found,) = [entry["containerEdits"] for entry in devices if entry["name"] == device]
    assert isinstance(found, dict)
    return found


def is_id(text: str) -> bool:
    """Whether a text is a fully qualified CDI device name."""
    return re.fullmatch(f"{_KIND}={_NAME}", text) is not None
