"""A namespace of one test, and the Pods and claims in it."""

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster import images
from tests.cluster.api import Object
from tests.cluster.cache import HarnessError
from tests.cluster.cluster import Cluster

RESOURCE_API = "/apis/resource.k8s.io/v1"
_WORKLOADS = (
    ("/apis/batch/v1", "jobs"),
    ("/apis/apps/v1", "deployments"),
    ("/apis/apps/v1", "daemonsets"),
)
_LOG_CHARACTERS = 2000
_LOOK_SECONDS = 0.1
_exec_numbers = itertools.count(1)


def pod(
    name: str,
    *command: str,
    image: str = images.BUSYBOX,
    claims: Mapping[str, Object] | None = None,
    limits: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """Build a Pod of one container, `main`, that runs a command, or sleeps if there is none.

    `claims` maps a name to `{"resourceClaimName": …}` or `{"resourceClaimTemplateName": …}`; the
    container gets them all. Further arguments are fields of the Pod's spec.
    """
    uses = claims or {}
    container: Object = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command) or ["sleep", "100000"],
        "resources": {
            "limits": dict(limits or {}),
            "claims": [{"name": use} for use in uses],
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [container],
            "dnsPolicy": "Default",
            "enableServiceLinks": False,
            "resourceClaims": [{"name": use, **source} for use, source in uses.items()],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,  # with 0 it is gone before the kubelet cleans up
            **spec,
        },
    }


def deployment(made: Object, replicas: int) -> Object:
    """Build a Deployment of so many Pods like this one; they have the label `app` with its name."""
    name = made["metadata"]["name"]
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "strategy": {"type": "Recreate"},
            "template": {
                "metadata": {"labels": labels},
                "spec": {**made["spec"], "restartPolicy": "Always"},
            },
        },
    }


class Namespace:
    """One namespace: what a test makes in it goes with it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        """Name it; `create` makes it."""
        self.cluster = cluster
        self.name = name
        self._api = cluster.api

    def create(self, labels: Mapping[str, str] | None = None) -> None:
        """Make it and wait until Pods can be made in it; fails if the cluster does not run."""
        self.cluster.check()
        metadata = {"name": self.name, "labels": dict(labels or {})}
        self._api.create("/api/v1/namespaces", {"metadata": metadata})
        self._api.wait(f"{self._core}/serviceaccounts/default", bool, "there")

    def remove(self, timeout: float = 90.0) -> None:
        """Delete in this order, each until it is gone: workloads, Pods, claims; then all else."""
        for group, kind in _WORKLOADS:
            path = f"{group}/namespaces/{self.name}/{kind}"
            for item in self._api.get(path)["items"]:
                workload = f"{path}/{item['metadata']['name']}"
                self._delete_workload(workload, timeout)
        for collection in (f"{self._core}/pods", f"{self._dra}/resourceclaims"):
            items = self._api.get(collection)["items"]
            for item in items:
                self._api.delete(f"{collection}/{item['metadata']['name']}")
            for item in items:
                self._api.wait_gone(f"{collection}/{item['metadata']['name']}", timeout)
        self._api.delete(f"/api/v1/namespaces/{self.name}")

    def apply(self, *what: Path | Object) -> None:
        """Apply manifests (files, folders, objects) in this namespace."""
        self.cluster.apply(*what, namespace=self.name)

    def run(self, manifest: Object, phase: str = "Running", timeout: float = 90.0) -> Object:
        """Make a Pod and return it when it has reached the phase."""
        self._api.create(f"{self._core}/pods", manifest)
        return self.wait_pod(manifest["metadata"]["name"], phase, timeout)

    def place(self, *manifests: Object, timeout: float = 60.0) -> None:
        """Make Pods, each when the scheduler has found a place for the one before.

        A scheduler may count a share twice in the moment when it writes it into its claim. Of Pods
        that come at once the last may then wait for minutes, although there is room for it.
        """
        for manifest in manifests:
            self._api.create(f"{self._core}/pods", manifest)
            path = f"{self._core}/pods/{manifest['metadata']['name']}"
            try:
                self._api.wait(path, _is_placed, "placed", timeout)
            except HarnessError as error:
                story = self._pod_story(manifest["metadata"]["name"])
                raise HarnessError(f"{error}\n{story}") from None

    def wait_pod(self, name: str, phase: str, timeout: float = 90.0) -> Object:
        """Wait until a Pod is in this phase; fails at once if it ends in the other one.

        The error shows the Pod's status and its events.
        """
        ends = {"Succeeded", "Failed"}

        def reached(found: Object) -> bool:
            now = found.get("status", {}).get("phase", "")
            if now in ends and now != phase:
                raise HarnessError(f"Pod {name} ended as {now}\n{self._pod_story(name)}")
            return bool(now == phase)

        try:
            return self._api.wait(f"{self._core}/pods/{name}", reached, phase, timeout)
        except HarnessError as error:
            raise HarnessError(f"{error}\n{self._pod_story(name)}") from None

    def pods(self, label: str, **status: str) -> list[str]:
        """Names of the Pods with this label, and with this status: `phase="Running"`."""
        items = self._api.get(f"{self._core}/pods", labelSelector=label)["items"]
        return [
            item["metadata"]["name"] for item in items if status.items() <= item["status"].items()
        ]

    def wait_unschedulable(self, name: str, timeout: float = 60.0) -> str:
        """Wait until the scheduler has said that a Pod fits nowhere, and return its message."""
        found = self._api.wait(
            f"{self._core}/pods/{name}",
            lambda pod: _scheduled(pod).get("reason") == "Unschedulable",
            "found unschedulable",
            timeout,
        )
        return str(_scheduled(found)["message"])

    def wait_restarted(self, name: str, timeout: float = 90.0) -> None:
        """Wait until a Pod's containers run again that have ended once."""

        def restarted(found: Object) -> bool:
            containers = found.get("status", {}).get("containerStatuses", [])
            return bool(containers) and all(
                item["restartCount"] > 0 and "running" in item["state"] for item in containers
            )

        try:
            self._api.wait(f"{self._core}/pods/{name}", restarted, "running again", timeout)
        except HarnessError as error:
            raise HarnessError(f"{error}\n{self._pod_story(name)}") from None

    def wait_health(self, pod_name: str, claim: str, wanted: str, words: str = "") -> None:
        """Wait until a Pod's status shows this health, with these words, of a claim's one device.

        The claim goes by the name that the Pod calls it.
        """

        def shown(found: Object) -> bool:
            devices = _devices_told(found, claim)
            return [item["health"] for item in devices] == [wanted] and words in devices[0].get(
                "message", ""
            )

        path = f"{self._core}/pods/{pod_name}"
        try:
            self._api.wait(path, shown, f"{wanted} {words}", timeout=60.0)
        except HarnessError as error:
            told = _devices_told(self.pod(pod_name), claim)
            raise HarnessError(f"{error}: {json.dumps(told)}") from None

    def wait_event(self, about: str, reason: str, words: str = "", timeout: float = 60.0) -> Object:
        """Wait for an event about an object, with these words in its message, and return it."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for event in self.events(about):
                if event["reason"] == reason and words in event["message"]:
                    return event
            time.sleep(_LOOK_SECONDS)
        raise HarnessError(f"no event {reason} {words!r} about {about}: {self.events(about)}")

    def wait_deployed(self, name: str, timeout: float) -> None:
        """Wait until all Pods of a Deployment are ready."""

        def all_ready(found: Object) -> bool:
            ready = found.get("status", {}).get("readyReplicas", 0)
            return bool(found and ready == found["spec"]["replicas"])

        try:
            self._api.wait(self._deployment(name), all_ready, "with all Pods ready", timeout)
        except HarnessError as error:
            raise HarnessError(f"{error}\n{chr(10).join(self.warnings())}") from None

    def scale(self, name: str, replicas: int) -> None:
        """Let a Deployment have so many Pods."""
        self._api.patch(self._deployment(name), {"spec": {"replicas": replicas}})

    def delete_deployment(self, name: str, timeout: float = 90.0) -> None:
        """Delete a Deployment and wait until its Pods are gone."""
        self._delete_workload(self._deployment(name), timeout)

    def delete_pod(self, name: str, timeout: float = 90.0) -> None:
        """Delete a Pod and wait until it is gone, so until its claims are unprepared."""
        self._api.delete(f"{self._core}/pods/{name}")
        self._api.wait_gone(f"{self._core}/pods/{name}", timeout)

    def pod(self, name: str) -> Object:
        """Get a Pod."""
        return self._api.get(f"{self._core}/pods/{name}")

    def claim(self, name: str) -> Object:
        """Get a ResourceClaim."""
        return self._api.get(f"{self._dra}/resourceclaims/{name}")

    def wait_allocated(self, name: str, timeout: float = 60.0) -> Object:
        """Wait until a claim is allocated and return it."""
        return self._api.wait(
            f"{self._dra}/resourceclaims/{name}",
            lambda claim: bool(claim.get("status", {}).get("allocation")),
            "allocated",
            timeout,
        )

    def wait_memory_limit(self, claim: str, amount: str, level: str) -> None:
        """Wait until a claim's own status tells what its one share may have, and how hard that is.

        It is written after the Pod's Prepare.
        """

        def told(found: Object) -> bool:
            devices = found.get("status", {}).get("devices", [])
            limits = [
                (each["data"].get("memoryLimit"), each["data"].get("memoryLimitLevel"))
                for each in devices
            ]
            return limits == [(amount, level)]

        path = f"{self._dra}/resourceclaims/{claim}"
        self._api.wait(path, told, f"limited to {amount} by {level}")

    def claims_of(self, pod_name: str) -> dict[str, Object]:
        """Get the claims of a Pod by the names that the Pod calls them."""
        statuses = self.pod(pod_name)["status"].get("resourceClaimStatuses", [])
        return {
            item["name"]: self.claim(item["resourceClaimName"])
            for item in statuses
            if "resourceClaimName" in item
        }

    def logs(self, pod_name: str, container: str = "main") -> str:
        """Return a container's log, through API server and kubelet."""
        return self._api.text(f"{self._core}/pods/{pod_name}/log?container={container}")

    def exec(self, pod_name: str, argv: Sequence[str], container: str = "main") -> str:
        """Run a program in a container and return what it prints; fails if the program does.

        Goes through containerd, so it works while kubelet and API server are down, for a container
        whose id was looked up before: `container_id` and `exec_in`.
        """
        return self.exec_in(self.container_id(pod_name, container), argv)

    def exec_in(self, container_id: str, argv: Sequence[str]) -> str:
        """Run a program in a container by the container's id."""
        done = self.cluster.node.exec(container_id, list(argv), f"test-{next(_exec_numbers)}")
        if done.returncode != 0:
            shown = f"status {done.returncode}: {done.stdout}{done.stderr}"
            raise HarnessError(f"{' '.join(argv)} in {container_id[:12]}: {shown}")
        return done.stdout

    def container_id(self, pod_name: str, container: str = "main") -> str:
        """Return containerd's id of a Pod's container."""
        for status in self.pod(pod_name)["status"]["containerStatuses"]:
            if status["name"] == container:
                return str(status["containerID"]).removeprefix("containerd://")
        raise HarnessError(f"Pod {pod_name} has no container {container}")

    def events(self, object_name: str) -> list[Object]:
        """Return the events about one object, oldest first."""
        query = {"fieldSelector": f"involvedObject.name={object_name}"}
        found: list[Object] = self._api.get(f"{self._core}/events", **query)["items"]
        return sorted(found, key=lambda event: str(event["metadata"]["creationTimestamp"]))

    def warnings(self) -> list[str]:
        """Return what went wrong in this namespace by its events, a line each."""
        found = self._api.get(f"{self._core}/events", fieldSelector="type=Warning")["items"]
        return [
            f"{event['lastTimestamp'] or event['eventTime']} "
            f"{event['involvedObject']['name']} {event['reason']}: {event['message']}"
            for event in found
        ]

    def _delete_workload(self, path: str, timeout: float) -> None:
        self._api.delete(path, propagationPolicy="Foreground")
        self._api.wait_gone(path, timeout)

    def _deployment(self, name: str) -> str:
        return f"/apis/apps/v1/namespaces/{self.name}/deployments/{name}"

    @property
    def _core(self) -> str:
        return f"/api/v1/namespaces/{self.name}"

    @property
    def _dra(self) -> str:
        return f"{RESOURCE_API}/namespaces/{self.name}"

    def _pod_story(self, name: str) -> str:
        events = [
            f"  {event['type']} {event['reason']}: {event['message']}"
            for event in self.events(name)
        ]
        status = self.pod(name).get("status", {})
        unmet = [item for item in status.get("conditions", []) if item["status"] != "True"]
        containers = {item["name"]: item["state"] for item in status.get("containerStatuses", [])}
        story = [f"events of {name}:", *events, f"conditions not met: {json.dumps(unmet)}"]
        for container, state in containers.items():
            story.append(f"container {container}: {json.dumps(state)}")
            if "waiting" not in state:
                story.append(self.logs(name, container)[-_LOG_CHARACTERS:])
        return "\n".join(story)


def _scheduled(found: Object) -> Object:
    conditions = found.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == "PodScheduled"), {})


def _devices_told(found: Object, claim: str) -> list[Object]:
    """What a Pod's status says of the devices of a claim."""
    return [
        device
        for container in found.get("status", {}).get("containerStatuses", [])
        for status in container.get("allocatedResourcesStatus", [])
        for device in status["resources"]
        if status["name"] == f"claim:{claim}"
    ]


def _is_placed(found: Object) -> bool:
    return bool(_scheduled(found).get("status") == "True")
