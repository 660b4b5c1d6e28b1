"""Claims with allocations that the benchmark writes itself, in place of the scheduler."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from dra_driver.cli.bench.sharing import Wish
from dra_driver.config import Settings
from dra_driver.kube import Conflict, JsonObject, NotFound
from dra_driver.kube.configuration import configure
from dra_driver.kube.connection import Connection, Request
from dra_driver.kube.errors import Subject
from dra_driver.model import ClaimRef, DriverError

_CLAIMS: Final = "resourceclaims.resource.k8s.io"
_SECONDS: Final = 10.0
_REQUEST: Final = "gpu"
_ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"  # the server asks for it


@dataclass(frozen=True, slots=True)
class Place:
    """Where the allocations lead to."""

    driver: str
    node: str
    pool: str


class Claims:
    """Creates and deletes ResourceClaims in one namespace of the API server."""

    def __init__(
        self,
        kubeconfig: Path,
        namespace: str,
        place: Place,
        wish: Wish,
        pod: Callable[[], str] | None = None,
    ) -> None:
        """Keep where to write, and what claims ask for; raises SettingInvalid. Nothing is sent yet.

        `pod` begins a Pod for each claim and gives its UID; without it claims are reserved for
        nobody.
        """
        settings = Settings(node_name=place.node, kubeconfig=kubeconfig)
        self._connection = Connection(configure(settings), "dra-driver-bench")
        self._namespace = namespace
        self._place = place
        self._wish = wish
        self._pod = pod
        self._made = 0

    @contextmanager
    def namespace(self) -> Iterator[None]:
        """Have the namespace, and remove it afterwards if it was not there before."""
        metadata = {"name": self._namespace, "labels": {_ADMIN_LABEL: "true"}}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        mine = True
        try:
            self._call("create", "namespaces", "/api/v1/namespaces", body)
        except Conflict:
            mine = False
        try:
            yield
        finally:
            if mine:
                self._call("delete", "namespaces", f"/api/v1/namespaces/{self._namespace}")
            self._connection.close()

    @contextmanager
    def made(self, devices: Sequence[str], *, admin: bool = False) -> Iterator[list[ClaimRef]]:
        """Have one claim for each of the devices; they are deleted afterwards."""
        refs: list[ClaimRef] = []
        try:
            refs.extend(self.create(device, admin=admin) for device in devices)
            yield refs
        finally:
            for ref in refs:
                self.delete(ref)

    def create(self, device: str, *, admin: bool = False) -> ClaimRef:
        """Create a claim that is allocated to a device. Raises DriverError."""
        self._made += 1
        name = f"bench-{int(time.time())}-{self._made}"
        claim = self._call("create", _CLAIMS, self._path(), self._claim(name, admin=admin))
        claim["status"] = {"allocation": self._allocation(device, admin=admin)}
        if self._pod is not None:
            user = {"resource": "pods", "name": name, "uid": self._pod()}
            claim["status"]["reservedFor"] = [user]
        self._call("update", _CLAIMS, self._path(name, "status"), claim)
        return ClaimRef(self._namespace, name, str(claim["metadata"]["uid"]))

    def read(self, ref: ClaimRef) -> None:
        """Read a claim, as a driver must for each Prepare."""
        self._call("get", _CLAIMS, self._path(ref.name))

    def delete(self, ref: ClaimRef) -> None:
        """Delete a claim; one that is gone is a success, and a failure is nobody's loss."""
        with suppress(NotFound, DriverError):
            self._call("delete", _CLAIMS, self._path(ref.name))

    def _call(self, verb: str, resource: str, path: str, body: JsonObject | None = None) -> Any:  # noqa: ANN401 - JSON
        return self._connection.call(
            Request(Subject(verb, resource, path.rpartition("/")[2]), path, {}, body), _SECONDS
        )

    def _path(self, *parts: str) -> str:
        base = f"/apis/resource.k8s.io/v1/namespaces/{self._namespace}/resourceclaims"
        return "/".join((base, *parts))

    def _claim(self, name: str, *, admin: bool) -> JsonObject:
        exactly: JsonObject = {"deviceClassName": self._place.driver}
        if admin:
            exactly["adminAccess"] = True
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"namespace": self._namespace, "name": name},
            "spec": {"devices": {"requests": [{"name": _REQUEST, "exactly": exactly}]}},
        }

    def _allocation(self, device: str, *, admin: bool) -> JsonObject:
        """Allocation as the scheduler writes it."""
        result: JsonObject = {
            "request": _REQUEST,
            "driver": self._place.driver,
            "pool": self._place.pool,
            "device": device,
        }
        if admin:
            result["adminAccess"] = True
        elif self._wish.consumed is not None:
            result |= {"shareID": str(uuid4()), "consumedCapacity": dict(self._wish.consumed)}
        devices: JsonObject = {"results": [result]}
        if self._wish.config is not None:
            opaque = {"driver": self._place.driver, "parameters": self._wish.config}
            devices["config"] = [{"source": "FromClaim", "opaque": opaque}]
        term = {"key": "metadata.name", "operator": "In", "values": [self._place.node]}
        return {
            "devices": devices,
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [term]}]},
        }
