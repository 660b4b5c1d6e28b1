"""Objects with configs, and the API server's questions about them."""

import json
from collections.abc import Sequence
from typing import Any

from dra_driver.admission.metrics import CATALOGUE
from dra_driver.admission.reviewer import Reviewer
from dra_driver.telemetry import Metrics

DRIVER = "gpu.nvidia.com"
GROUP = "resource.k8s.io"
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"
VERSIONS = ("v1", "v1beta2", "v1beta1")
PLURALS = {
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "DeviceClass": "deviceclasses",
}
PLACES = {
    "ResourceClaim": "spec.devices.config",
    "ResourceClaimTemplate": "spec.spec.devices.config",
    "DeviceClass": "spec.config",
}
API = "resource.nvidia.com/v1beta1"
GPU_CLASS, MIG_CLASS = "gpu.nvidia.com", "mig.nvidia.com"

Object = dict[str, Any]


def entry(parameters: Any, *requests: str, driver: str = DRIVER) -> Object:
    """A config of a claim or a class."""
    made: Object = {"opaque": {"driver": driver, "parameters": parameters}}
    return {"requests": list(requests), **made} if requests else made


def gpu_config(**sharing: Any) -> Object:
    config: Object = {"apiVersion": API, "kind": "GpuConfig"}
    return {**config, "sharing": sharing} if sharing else config


def mig_config(**sharing: Any) -> Object:
    return {**gpu_config(**sharing), "kind": "MigDeviceConfig"}


def request(name: str, device_class: str = GPU_CLASS, **fields: Any) -> Object:
    """A request in the shape of v1, as the API server sends it."""
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1}
    return {"name": name, "exactly": exactly | fields}


def first_of(name: str, **classes: str) -> Object:
    """A request for the first that there is, by the names of the alternatives."""
    several = [{"name": key, "deviceClassName": value} for key, value in classes.items()]
    return {"name": name, "firstAvailable": several}


def obj(
    kind: str,
    configs: Sequence[Object],
    requests: Sequence[Object] = (),
    version: str = "v1",
    name: str = "it",
) -> Object:
    """An object of one of our kinds in the shape of an API version."""
    shaped = [_shaped(each, version) for each in requests or [request("main")]]
    devices: Object = {"requests": shaped, "config": list(configs)}
    specs: dict[str, Object] = {
        "ResourceClaim": {"devices": devices},
        "ResourceClaimTemplate": {"spec": {"devices": devices}},
        "DeviceClass": {"selectors": [], "config": list(configs)},
    }
    metadata: Object = {"name": name}
    if kind != "DeviceClass":
        metadata["namespace"] = "team"
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": kind,
        "metadata": metadata,
        "spec": specs[kind],
    }


def _shaped(each: Object, version: str) -> Object:
    if version != "v1beta1" or "exactly" not in each:
        return each
    return {"name": each["name"], **each["exactly"]}


def question(
    of: Object, operation: str = "CREATE", old: Object | None = None, subresource: str = ""
) -> bytes:
    """AdmissionReview as the API server posts it."""
    group, version = of["apiVersion"].split("/")
    names = {"name": of["metadata"]["name"], "namespace": of["metadata"].get("namespace", "")}
    asked = {
        "uid": UID,
        "kind": {"group": group, "version": version, "kind": of["kind"]},
        "resource": {
            "group": group,
            "version": version,
            "resource": PLURALS.get(of["kind"], "others"),
        },
        "operation": operation,
        "userInfo": {"username": "somebody"},
        "object": None if operation == "DELETE" else of,
        "oldObject": old,
        "dryRun": False,
        **{key: value for key, value in names.items() if value},
    }
    if subresource:
        asked["subResource"] = subresource
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
    return json.dumps(review).encode()


class Asked:
    """A reviewer, and what it answers."""

    def __init__(self, driver: str = DRIVER) -> None:
        self.metrics = Metrics(CATALOGUE)
        self.reviewer = Reviewer(driver, self.metrics)

    def ask(self, of: Object, **more: Any) -> Object:
        """The `response` to the question about an object."""
        page = self.reviewer(question(of, **more))
        assert page.status == 200
        answer: Object = json.loads(page.body)
        assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        response: Object = answer["response"]
        assert response["uid"] == UID
        return response

    def faults(self, of: Object, **more: Any) -> dict[str, str]:
        """Fields that are refused, with the words about each; none if the object is allowed."""
        response = self.ask(of, **more)
        if response["allowed"]:
            assert "status" not in response
            return {}
        status = response["status"]
        assert (status["code"], status["reason"]) == (422, "Invalid")
        assert "\n" not in status["message"]
        causes = status["details"]["causes"]
        for cause in causes:
            assert " ".join(f"{cause['field']}: {cause['message']}".split()) in status["message"]
        return {cause["field"]: cause["message"] for cause in causes}

    def warnings(self, of: Object, **more: Any) -> list[str]:
        """Warnings for an object that is allowed."""
        response = self.ask(of, **more)
        assert response["allowed"], response
        found: list[str] = response.get("warnings", [])
        return found
