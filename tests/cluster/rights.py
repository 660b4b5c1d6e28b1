"""Rights that manifests grant, and those that were used by the API server's audit log."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.cluster.api import Object

_PROGRAMS: Final = {"gpu-dra-driver", "gpu-dra-driver-webhook"}  # how they name themselves
_ACCOUNTS: Final = "system:serviceaccounts:gpu-dra-driver"  # group of all of the namespace's


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource, `resource/subresource`, for one user."""

    user: str
    group: str
    resource: str
    verb: str


@dataclass(frozen=True, slots=True)
class Grant:
    """A right, and for which objects; empty: for all."""

    right: Right
    names: frozenset[str] = field(default_factory=frozenset)
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Use:
    """A request that one of our programs has made, and whether admission has refused it."""

    right: Right
    name: str
    namespace: str
    is_refused: bool

    def is_granted(self, grants: Iterable[Grant]) -> bool:
        """Whether any of them permits it."""
        return any(
            grant.right == self.right
            and (not grant.names or self.name in grant.names)
            and grant.namespace in ("", self.namespace)
            for grant in grants
        )


def grants_of(objects: list[Object]) -> Iterator[Grant]:
    """Yield what the roles in these manifests grant to ServiceAccounts through their bindings."""
    roles = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    for binding in objects:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        role = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
        for subject in binding["subjects"]:
            user = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
            for rule in role["rules"]:
                yield from _of_rule(user, rule, binding["metadata"].get("namespace", ""))


def _of_rule(user: str, rule: Object, namespace: str) -> Iterator[Grant]:
    names = frozenset(rule.get("resourceNames", ()))
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                yield Grant(Right(user, group, resource, verb), names, namespace)


def uses_in(events: Iterable[Object]) -> set[Use]:
    """Give the requests of our programs in an audit log; what tests ask in their name is left out.

    A request that was refused by RBAC is one that was made; `is_refused` is about admission.
    """
    return {
        _use(event)
        for event in events
        if _ACCOUNTS in event["user"].get("groups", ()) and event.get("userAgent", "") in _PROGRAMS
    }


def _use(event: Object) -> Use:
    subject = event["objectRef"]
    parts = (subject["resource"], subject.get("subresource"))
    right = Right(
        event["user"]["username"],
        subject.get("apiGroup", ""),
        "/".join(part for part in parts if part),
        event["verb"],
    )
    allowed = event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow"
    is_refused = allowed and event.get("responseStatus", {}).get("code") == 403
    return Use(right, subject.get("name", ""), subject.get("namespace", ""), is_refused)
