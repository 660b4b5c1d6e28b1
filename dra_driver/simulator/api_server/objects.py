"""Objects of the API stand-in: resourceVersions, conflicts, preconditions, watch history."""

import copy
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias

from dra_driver.simulator.api_server.kinds import (
    RESOURCES,
    ApiError,
    JsonObject,
    Resource,
    Selector,
    selects,
)

Admit: TypeAlias = Callable[[JsonObject, JsonObject | None], JsonObject]

_NAME_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"  # of generated names, as the real server's
_NAME_TRIES: Final = 8


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the watch history."""

    version: int
    kind: str  # ADDED, MODIFIED, DELETED
    plural: str
    object: JsonObject


class Objects:
    """All objects of the cluster, by plural name of their kind; safe to use from many threads.

    What goes in and comes out is copied. `admit` changes or refuses an object before it is stored.
    """

    def __init__(self, admit: Mapping[str, Admit], history: int) -> None:
        """Remember `history` changes for watches that come back."""
        self._admit = admit
        self._changed = threading.Condition()
        self._objects: dict[tuple[str, str, str], JsonObject] = {}
        self._changes: deque[Change] = deque(maxlen=history)
        self._version = 1
        self._forgotten = 0  # changes up to this version are no longer known

    def admit_with(self, admit: Mapping[str, Admit]) -> None:
        """Let others check new objects from now on."""
        with self._changed:
            self._admit = admit

    @property
    def version(self) -> int:
        """The resourceVersion of the last change."""
        with self._changed:
            return self._version

    def create(self, plural: str, obj: JsonObject, *, dry_run: bool = False) -> JsonObject:
        """Store a new object; the answer is what was stored. Raises ApiError."""
        resource = RESOURCES[plural]
        new = copy.deepcopy(obj)
        metadata = new.setdefault("metadata", {})
        with self._changed:
            self._name(plural, metadata)
            if resource.namespaced:
                metadata.setdefault("namespace", "default")
            key = _key(resource, metadata.get("namespace", ""), metadata["name"])
            new = self._admitted(plural, new, None)
            if key in self._objects:
                raise ApiError(
                    409, "AlreadyExists", f'{plural} "{metadata["name"]}" already exists'
                )
            new |= {"apiVersion": resource.api_version, "kind": resource.kind}
            new["metadata"] |= {
                "uid": str(uuid.uuid4()),
                "creationTimestamp": _now(),
                "generation": 1,
            }
            return new if dry_run else self._store(plural, key, "ADDED", new)

    def get(self, plural: str, name: str, namespace: str = "default") -> JsonObject:
        """One object; raises ApiError 404."""
        with self._changed:
            return copy.deepcopy(self._found(plural, name, namespace))

    def select(
        self, plural: str, selector: Selector | None = None, namespace: str = ""
    ) -> list[JsonObject]:
        """Objects that a field selector matches, by name."""
        return self.snapshot(plural, selector, namespace)[0]

    def snapshot(
        self, plural: str, selector: Selector | None = None, namespace: str = ""
    ) -> tuple[list[JsonObject], int]:
        """Objects that a field selector matches, and the resourceVersion of this moment."""
        with self._changed:
            found = [
                copy.deepcopy(obj)
                for (kind, _, _), obj in sorted(self._objects.items(), key=lambda item: item[0])
                if kind == plural and selects(obj, selector or {}, namespace)
            ]
            return found, self._version

    def replace(
        self, plural: str, obj: JsonObject, *, part: str = "", dry_run: bool = False
    ) -> JsonObject:
        """Put a new version of an object; with `part` ("status") only that part of it.

        Raises ApiError 404, and 409 when it carries another UID or an old resourceVersion.
        """
        given = copy.deepcopy(obj)
        metadata = given.get("metadata", {})
        with self._changed:
            old = self._found(plural, metadata.get("name", ""), metadata.get("namespace", ""))
            _require(plural, old, metadata.get("uid"), metadata.get("resourceVersion"))
            new = _merged(old, given, part)
            new = self._admitted(plural, new, old)
            if new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
            if dry_run or new == old:
                return copy.deepcopy(new)
            return self._store(plural, self._key_of(plural, old), "MODIFIED", new)

    def delete(
        self,
        plural: str,
        name: str,
        namespace: str = "default",
        *,
        uid: str | None = None,
        version: str | None = None,
    ) -> JsonObject:
        """Remove an object; raises ApiError 404, and 409 when a precondition does not hold."""
        with self._changed:
            old = self._found(plural, name, namespace)
            _require(plural, old, uid, version)
            del self._objects[self._key_of(plural, old)]
            return self._record(plural, "DELETED", copy.deepcopy(old))

    def changes_after(self, version: int, plural: str, timeout: float) -> tuple[list[Change], int]:
        """Tell the changes of a kind since a resourceVersion, and the version reached.

        Waits until there are some or `timeout` seconds have passed. Raises ApiError 410 when that
        version is too old.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                if version < self._forgotten:
                    raise ApiError(410, "Expired", f"too old resource version: {version}")
                found = [c for c in self._changes if c.version > version and c.plural == plural]
                left = deadline - time.monotonic()
                if found or left <= 0:
                    return found, self._version
                self._changed.wait(left)

    def forget_history(self) -> None:
        """Make every watch that starts from an earlier resourceVersion fail with 410."""
        with self._changed:
            self._version += 1
            self._forgotten = self._version
            self._changes.clear()
            self._changed.notify_all()

    def wake(self) -> None:
        """Let waiting watches look around."""
        with self._changed:
            self._changed.notify_all()

    def _name(self, plural: str, metadata: JsonObject) -> None:
        prefix = metadata.get("generateName", "")
        if metadata.get("name"):
            return
        if not prefix:
            raise ApiError(422, "Invalid", "name or generateName is required")
        taken = {name for kind, _, name in self._objects if kind == plural}
        for _ in range(_NAME_TRIES):
            letters = uuid.uuid4().bytes[:5]
            name = prefix + "".join(_NAME_LETTERS[byte % len(_NAME_LETTERS)] for byte in letters)
            if name not in taken:
                metadata["name"] = name
                return
        raise ApiError(409, "AlreadyExists", f"no free name that starts with {prefix}")

    def _admitted(self, plural: str, new: JsonObject, old: JsonObject | None) -> JsonObject:
        admit = self._admit.get(plural)
        return new if admit is None else admit(new, copy.deepcopy(old))

    def _found(self, plural: str, name: str, namespace: str) -> JsonObject:
        found = self._objects.get(_key(RESOURCES[plural], namespace, name))
        if found is None:
            raise ApiError(404, "NotFound", f'{plural} "{name}" not found')
        return found

    def _key_of(self, plural: str, obj: JsonObject) -> tuple[str, str, str]:
        metadata = obj["metadata"]
        return _key(RESOURCES[plural], metadata.get("namespace", ""), metadata["name"])

    def _store(
        self, plural: str, key: tuple[str, str, str], kind: str, obj: JsonObject
    ) -> JsonObject:
        self._objects[key] = obj
        return self._record(plural, kind, obj)

    def _record(self, plural: str, kind: str, obj: JsonObject) -> JsonObject:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        if len(self._changes) == self._changes.maxlen:
            self._forgotten = self._changes[0].version
        self._changes.append(Change(self._version, kind, plural, copy.deepcopy(obj)))
        self._changed.notify_all()
        return copy.deepcopy(obj)


def _key(resource: Resource, namespace: str, name: str) -> tuple[str, str, str]:
    return resource.plural, namespace if resource.namespaced else "", name


def _require(plural: str, old: JsonObject, uid: str | None, version: str | None) -> None:
    metadata = old["metadata"]
    name = metadata["name"]
    if uid and uid != metadata["uid"]:
        raise ApiError(
            409, "Conflict", f'{plural} "{name}": UID is {metadata["uid"]}, not {uid} as required'
        )
    if version and version != metadata["resourceVersion"]:
        raise ApiError(
            409,
            "Conflict",
            f'Operation cannot be fulfilled on {plural} "{name}": the object has been modified; '
            "please apply your changes to the latest version and try again",
        )


def _merged(old: JsonObject, given: JsonObject, part: str) -> JsonObject:
    """Object to store: identity is the server's; a part replaces only itself, and who owns it."""
    if part:
        new = {**copy.deepcopy(old), part: given.get(part, {})}
        if "managedFields" in given["metadata"]:
            new["metadata"]["managedFields"] = given["metadata"]["managedFields"]
        return new
    new = given
    kept = ("uid", "creationTimestamp", "generation", "namespace", "resourceVersion")
    new["metadata"] |= {key: old["metadata"][key] for key in kept if key in old["metadata"]}
    new |= {"apiVersion": old["apiVersion"], "kind": old["kind"]}
    if "status" in old:
        new["status"] = copy.deepcopy(old["status"])
    return new


def _now() -> str:
    return datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
