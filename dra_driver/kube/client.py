"""The requests this driver makes, each a method. JSON objects in, JSON objects or model data out.

There is no limit on requests per second on this side: the API server has its own, and its answer
"too many requests" is honoured by the callers that retry.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from dra_driver.config import Settings
from dra_driver.kube.claims import claim_from_json, claim_ref
from dra_driver.kube.configuration import configure
from dra_driver.kube.connection import Connection, JsonObject, Request, Stream
from dra_driver.kube.device_status import is_told, status_patch, why_refused
from dra_driver.kube.errors import Gone, NotFound, Refused, Subject
from dra_driver.model import ClaimRef, ClaimStatus, ResourceClaim
from dra_driver.model.errors import ApiUnavailable, Bug, ClaimChanged, ClaimNotFound

_SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
_SLICES_NAME: Final = "resourceslices.resource.k8s.io"
_CLAIMS_NAME: Final = "resourceclaims.resource.k8s.io"
_APPLY: Final = "application/apply-patch+yaml"  # of which JSON is a part
_MERGE: Final = "application/merge-patch+json"
_USER_AGENT: Final = "gpu-dra-driver"
_SECONDS: Final = 10.0  # for everything but claims, whose callers say how long they can wait
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class SliceList:
    """Slices of this driver on this node at one moment, the starting point of a watch."""

    items: tuple[JsonObject, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """ADDED, MODIFIED or DELETED with the slice; BOOKMARK with a resourceVersion only."""

    kind: str
    object: JsonObject


class SliceWatch:
    """An open watch: iterate over it in one thread, close it from any."""

    def __init__(self, stream: Stream) -> None:
        """Take over the stream."""
        self._stream = stream

    def __iter__(self) -> Iterator[WatchEvent]:
        """Yield events until the server ends the watch; raises Gone when a list is due."""
        for line in self._stream:
            kind, obj = str(line.get("type", "")), line.get("object")
            if not isinstance(obj, dict):
                continue
            if kind == "ERROR":
                code, message = obj.get("code"), obj.get("message")
                if code == 410:  # noqa: PLR2004
                    raise Gone(f"watch of {_SLICES_NAME} is too far behind: {message}")
                raise ApiUnavailable(f"watch of {_SLICES_NAME} ended: {code} {message}")
            yield WatchEvent(kind, obj)

    def close(self) -> None:
        """End the iteration, wherever it waits."""
        self._stream.close()


class KubeClient:
    """The API server as seen by this driver; safe to use from many threads.

    Every method raises ApiUnavailable when there is no answer in time, and PermissionMissing with
    the verb and the resource when the account may not do what is asked.
    """

    def __init__(self, settings: Settings) -> None:
        """Read the configuration; raises SettingInvalid. Nothing is sent yet."""
        self._driver = settings.driver_name
        self._node = settings.node_name
        self._pool = settings.pool
        self._connection = Connection(configure(settings), _USER_AGENT)
        # Told of the resources that the kubelet counts each time that this Node is read anyway.
        self.on_allocatable: Callable[[Mapping[str, Any]], None] = lambda _resources: None

    def close(self) -> None:
        """Drop idle connections."""
        self._connection.close()

    def get_claim(self, ref: ClaimRef, timeout: float) -> ResourceClaim:
        """Read an allocated claim in one request, without what belongs to other drivers or pools.

        Raises ClaimNotFound, ClaimChanged when another claim has the name now, and what
        `claim_from_json` raises.
        """
        request = Request(Subject("get", _CLAIMS_NAME, str(ref)), _claim_path(ref))
        try:
            obj = self._connection.call(request, timeout)
        except NotFound as error:
            raise _no_claim(ref) from error
        found = claim_ref(obj)
        if found.uid != ref.uid:
            raise ClaimChanged(
                f"claim {ref} was replaced: the kubelet asks for UID {ref.uid}, the API server "
                f"has {found.uid}"
            )
        return claim_from_json(obj, self._driver, self._pool)

    def apply_claim_status(self, status: ClaimStatus) -> bool:
        """Tell in a claim's status what became of its devices; false: the server drops such words.

        A server-side apply under this driver's name: entries are merged by driver, pool, device and
        share, so those of others stay, and what an earlier call told and this one does not goes.
        The server writes nothing when nothing differs. Raises ClaimNotFound, ClaimChanged when
        another claim has the name now, ClaimNotAllocated when it does not hold these devices.
        """
        patch = Request(
            Subject("patch", f"{_CLAIMS_NAME}/status", str(status.ref)),
            f"{_claim_path(status.ref)}/status",
            {"fieldManager": self._driver, "force": "true"},
            status_patch(status, self._driver),
            _APPLY,
        )
        try:
            answer = self._connection.call(patch, _SECONDS)
        except NotFound as error:
            raise _no_claim(status.ref) from error
        except Refused as error:
            raise why_refused(status.ref, error, self._driver) from error
        return is_told(answer, self._driver)

    def server_version(self) -> tuple[int, int, int]:
        """Release of the API server, such as (1, 37, 2); pre-releases count as the release."""
        answer = self._connection.call(Request(Subject("get", "/version"), "/version"), _SECONDS)
        text = str(answer.get("gitVersion", ""))
        match = _VERSION.match(text)
        if match is None:
            raise ApiUnavailable(f"the API server's version {text!r} is not a version")
        return int(match[1]), int(match[2]), int(match[3] or 0)

    def node_uid(self, name: str) -> str:
        """UID of a Node; raises NotFound until the kubelet has created it."""
        uid = _metadata(self._node_object(name)).get("uid")
        if not isinstance(uid, str) or not uid:
            raise ApiUnavailable(f"Node {name!r} came without UID")
        return uid

    def node_labels(self) -> dict[str, str]:
        """Labels of this Node; raises NotFound until the kubelet has created it."""
        labels = _metadata(self._node_object(self._node)).get("labels")
        return {str(key): str(value) for key, value in (labels or {}).items()}

    def label_node(self, key: str, value: str) -> None:
        """Set one label of this Node; needs verb patch on nodes."""
        name = self._node
        body = {"metadata": {"labels": {key: value}}}
        subject = Subject("patch", "nodes", name)
        path = f"/api/v1/nodes/{_part(name)}"
        query = {"fieldManager": self._driver}
        self._connection.call(Request(subject, path, query, body, _MERGE), _SECONDS)

    def list_slices(self) -> SliceList:
        """Slices of this driver on this node."""
        request = Request(Subject("list", _SLICES_NAME), _SLICES, self._own_slices())
        answer = self._connection.call(request, _SECONDS)
        items = tuple(item for item in answer.get("items") or () if isinstance(item, dict))
        return SliceList(items, str(_metadata(answer).get("resourceVersion", "")))

    def watch_slices(self, resource_version: str, seconds: int, silence: float) -> SliceWatch:
        """Watch the same slices from there on, for so many seconds at most.

        A server that sends nothing for `silence` seconds, no bookmark either, counts as ended.
        """
        query = {
            **self._own_slices(),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
        }
        request = Request(Subject("watch", _SLICES_NAME), _SLICES, query)
        return SliceWatch(self._connection.stream(request, silence))

    def create_slice(self, obj: JsonObject, *, dry_run: bool = False) -> JsonObject:
        """Create a slice, or with `dry_run` only hear what the server would make of it.

        Raises Refused with the fields that are wrong, Conflict when the name is taken.
        """
        query = {"dryRun": "All"} if dry_run else {}
        subject = Subject("create", _SLICES_NAME, _name(obj))
        return self._connection.call(Request(subject, _SLICES, query, obj), _SECONDS)

    def replace_slice(self, obj: JsonObject) -> JsonObject:
        """Update a slice; raises Conflict unless its resourceVersion is the current one."""
        subject = Subject("update", _SLICES_NAME, _name(obj))
        path = f"{_SLICES}/{_part(_name(obj))}"
        return self._connection.call(Request(subject, path, {}, obj), _SECONDS)

    def delete_slice(self, name: str, uid: str, resource_version: str) -> None:
        """Delete exactly that version of that slice; one that is gone is a success."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        subject = Subject("delete", _SLICES_NAME, name)
        try:
            self._connection.call(Request(subject, f"{_SLICES}/{_part(name)}", {}, body), _SECONDS)
        except NotFound:
            return

    def create_event(self, namespace: str, obj: JsonObject) -> None:
        """Post a core/v1 Event."""
        path = f"/api/v1/namespaces/{_part(namespace)}/events"
        request = Request(Subject("create", "events", _name(obj)), path, {}, obj)
        self._connection.call(request, _SECONDS)

    def _node_object(self, name: str) -> JsonObject:
        request = Request(Subject("get", "nodes", name), f"/api/v1/nodes/{_part(name)}")
        obj = self._connection.call(request, _SECONDS)
        status = obj.get("status")
        if name == self._node:
            found = status.get("allocatable") if isinstance(status, dict) else None
            self.on_allocatable(found if isinstance(found, dict) else {})
        return obj

    def _own_slices(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.driver={self._driver},spec.nodeName={self._node}"}


def _claim_path(ref: ClaimRef) -> str:
    namespace = f"/apis/resource.k8s.io/v1/namespaces/{_part(ref.namespace)}"
    return f"{namespace}/resourceclaims/{_part(ref.name)}"


def _no_claim(ref: ClaimRef) -> ClaimNotFound:
    return ClaimNotFound(f"claim {ref} ({ref.uid}) does not exist (any more)")


def _part(name: str) -> str:
    """One path segment: a name can't leave its place in the path."""
    if name in ("", ".", ".."):
        raise Bug(f"{name!r} is not the name of an object")
    return quote(name, safe="")


def _metadata(obj: JsonObject) -> dict[str, Any]:
    metadata = obj.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _name(obj: JsonObject) -> str:
    metadata = _metadata(obj)
    return str(metadata.get("name") or metadata.get("generateName") or "")
