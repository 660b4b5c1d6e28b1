"""Requests to the API stand-in, understood: paths, verbs, selectors, bodies."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from dra_driver.simulator.api_server.kinds import RESOURCES, ApiError, JsonObject, Resource

_PATH: Final = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>[^/]+))?"
)
_VERBS: Final[Mapping[str, tuple[str, str]]] = {  # method: verb without and with a name
    "GET": ("list", "get"),
    "POST": ("create", "create"),
    "PUT": ("update", "update"),
    "PATCH": ("patch", "patch"),
    "DELETE": ("deletecollection", "delete"),
}
_POOL_SELECTOR_SINCE: Final = (1, 37)


@dataclass(frozen=True, slots=True)
class Call:
    """One request, understood."""

    verb: str
    resource: Resource
    namespace: str
    name: str
    part: str  # subresource: "status" or nothing
    query: Mapping[str, str]

    @property
    def dry_run(self) -> bool:
        """Whether nothing may be stored."""
        return self.query.get("dryRun") == "All"


def merge_patch(old: Any, patch: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def identify(method: str, path: str, query: Mapping[str, str]) -> tuple[str, str]:
    """Verb and resource for the log, whatever the path is."""
    try:
        call = understand(method, path, query)
    except ApiError:
        return method.lower(), path
    return call.verb, call.resource.plural


def understand(method: str, path: str, query: Mapping[str, str]) -> Call:
    """Read method and path; raises ApiError 404 for what is not served."""
    match = _PATH.fullmatch(path)
    resource = RESOURCES.get(match["plural"]) if match else None
    if match is None or resource is None or (match["group"] or "") != resource.group:
        raise ApiError(404, "NotFound", "the server could not find the requested resource")
    if match["version"] != resource.version:
        raise ApiError(404, "NotFound", "the server could not find the requested resource")
    name = unquote(match["name"] or "")
    verb = _VERBS[method][bool(name)]
    if verb == "list" and query.get("watch") in ("true", "1"):
        verb = "watch"
    namespace = unquote(match["namespace"] or "")
    return Call(verb, resource, namespace, name, match["part"] or "", query)


def decode(body: bytes) -> JsonObject:
    """Read a body; raises ApiError 400."""
    try:
        obj = json.loads(body)
    except ValueError as error:
        raise ApiError(400, "BadRequest", f"the body is not JSON: {error}") from error
    if not isinstance(obj, dict):
        raise ApiError(400, "BadRequest", "the body is not an object")
    return obj


def place(obj: JsonObject, call: Call) -> None:
    """Let the path say which object it is; what contradicts it is refused."""
    metadata = obj.setdefault("metadata", {})
    for key, value in (("name", call.name), ("namespace", call.namespace)):
        if value and metadata.setdefault(key, value) != value:
            raise ApiError(400, "BadRequest", f"metadata.{key} is not the one in the path")


def selector(call: Call, version: tuple[int, int, int]) -> dict[str, str]:
    """Fields and values to select by; raises ApiError 400 for a field that can't be selected."""
    wanted: dict[str, str] = {}
    known = call.resource.selectable | {"metadata.name", "metadata.namespace"}
    if version[:2] < _POOL_SELECTOR_SINCE:
        known -= {"spec.pool.name"}
    for term in filter(None, call.query.get("fieldSelector", "").split(",")):
        path, equals, value = term.partition("=")
        if not equals or path not in known:
            raise ApiError(400, "BadRequest", f"field label not supported: {path}")
        wanted[path] = value.removeprefix("=")
    return wanted
