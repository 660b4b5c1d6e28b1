"""The Kubernetes API as this driver uses it: JSON in and out, errors of the model.

The only package that imports `kubernetes`.
"""

from dra_driver.kube.claims import claim_from_json, claim_ref
from dra_driver.kube.client import KubeClient, SliceList, SliceWatch, WatchEvent
from dra_driver.kube.connection import JsonObject
from dra_driver.kube.errors import ApiBusy, Conflict, FieldError, Gone, NotFound, Refused
from dra_driver.kube.events import EventSender
from dra_driver.kube.node_labels import NodeLabels
from dra_driver.kube.status_sender import ClaimStatusSender

__all__ = [
    "ApiBusy",
    "ClaimStatusSender",
    "Conflict",
    "EventSender",
    "FieldError",
    "Gone",
    "JsonObject",
    "KubeClient",
    "NodeLabels",
    "NotFound",
    "Refused",
    "SliceList",
    "SliceWatch",
    "WatchEvent",
    "claim_from_json",
    "claim_ref",
]
