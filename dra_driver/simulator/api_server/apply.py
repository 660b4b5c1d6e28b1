"""Server-side apply to a claim's status, as far as drivers use it.

Lists are merged by their keys (api/resource/v1/types.go), `data` is replaced as a whole. Who owns
what stands in `metadata.managedFields`, in the API's own form: what a manager applied before and
does not apply now goes, unless another manager applied it too. Only applies with `force` are
served, since conflicts with fields that were written otherwise are not tracked.
"""

import copy
import json
from datetime import UTC, datetime
from typing import Any, Final

from dra_driver.simulator.api_server.calls import Call
from dra_driver.simulator.api_server.kinds import ApiError, JsonObject

CONTENT_TYPE: Final = "application/apply-patch+yaml"
_PART: Final = "status"
_KEYS: Final = {
    "f:devices": ("driver", "device", "pool", "shareID"),
    "f:conditions": ("type",),
}
_ATOMIC: Final = "f:data"


def apply(old: JsonObject, given: JsonObject, call: Call) -> JsonObject:
    """Object with the given status applied to it; raises ApiError 415, 422 and 501."""
    manager = call.query.get("fieldManager", "")
    if call.resource.plural != "resourceclaims" or call.part != _PART:
        raise ApiError(415, "UnsupportedMediaType", "only a claim's status can be applied to here")
    if not manager:
        causes = (("fieldManager", "Required value: is required for apply patch"),)
        raise ApiError(422, "Invalid", "PatchOptions.meta.k8s.io is invalid: fieldManager", causes)
    if call.query.get("force") != "true":
        raise ApiError(501, "NotImplemented", "apply without force is not served here")
    status = given.get(_PART) or {}
    new = copy.deepcopy(old)
    wanted = _fields(status, "")
    before = new["metadata"].get("managedFields", [])
    mine = [each for each in before if each["manager"] == manager]
    others = [each for each in before if each["manager"] != manager]
    merged = _merge(new.get(_PART) or {}, status, "")
    kept = [wanted, *(each["fieldsV1"].get("f:status", {}) for each in others)]
    for each in mine:
        _remove(merged, each["fieldsV1"].get("f:status", {}), kept)
    if [each["fieldsV1"] for each in mine] != [{"f:status": wanted}] or merged != old.get(_PART):
        mine = [_note(manager, wanted)]
    new["metadata"]["managedFields"] = [*mine, *others]
    new[_PART] = merged
    return new


def _note(manager: str, fields: JsonObject) -> JsonObject:
    return {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": "resource.k8s.io/v1",
        "time": datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:status": fields},
        "subresource": _PART,
    }


def _key(item: JsonObject, name: str) -> str:
    """Name that an item of a list has in managedFields; keys that it lacks are left out."""
    keys = {key: item[key] for key in sorted(_KEYS[name]) if key in item}
    return "k:" + json.dumps(keys, separators=(",", ":"))


def _fields(value: Any, name: str) -> JsonObject:  # noqa: ANN401 - any JSON value
    """All fields of a value, as managedFields lists them."""
    if name == _ATOMIC:
        return {}
    if name in _KEYS:
        return {_key(item, name): {".": {}, **_fields(item, "")} for item in value}
    if isinstance(value, dict):
        return {f"f:{key}": _fields(item, f"f:{key}") for key, item in value.items()}
    return {}


def _merge(old: Any, new: Any, name: str) -> Any:  # noqa: ANN401 - any JSON value
    if name in _KEYS:
        items = {_key(item, name): item for item in old or ()}
        for item in new:
            key = _key(item, name)
            items[key] = _merge(items.get(key, {}), item, "")
        return list(items.values())
    if isinstance(old, dict) and isinstance(new, dict) and name != _ATOMIC:
        return old | {key: _merge(old.get(key), new[key], f"f:{key}") for key in new}
    return new


def _remove(value: JsonObject, fields: JsonObject, kept: list[JsonObject]) -> None:
    """Take out the fields that nobody among `kept` has."""
    for name, inner in fields.items():
        key = name.removeprefix("f:")
        keepers = [each[name] for each in kept if name in each]
        if name == "." or key not in value:
            continue
        if not keepers:
            del value[key]
        elif name in _KEYS:
            value[key] = _left(value[key], name, inner, keepers)
        elif isinstance(value[key], dict) and name != _ATOMIC:
            _remove(value[key], inner, keepers)


def _left(
    items: list[JsonObject], name: str, fields: JsonObject, kept: list[JsonObject]
) -> list[JsonObject]:
    """Items of a list after `_remove`: one that lost all but its keys is gone."""
    left = []
    for item in items:
        key = _key(item, name)
        if key in fields:
            keepers = [each[key] for each in kept if key in each]
            keys: JsonObject = {f"f:{each}": {} for each in _KEYS[name]}
            _remove(item, fields[key], [*keepers, keys])
            if not keepers and item.keys() <= set(_KEYS[name]):
                continue
        left.append(item)
    return left
