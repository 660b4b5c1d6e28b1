"""AdmissionReview of `admission.k8s.io/v1`: the API server's question and our answer, as JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from dra_driver.admission.checks import Findings
from dra_driver.config.yaml_text import path_text

API_VERSION: Final = "admission.k8s.io/v1"
_MOST_TOLD: Final = 20  # faults in one answer; a config has room for thousands
_LONGEST_FIELD: Final = 300  # characters; keys of what is unknown are as long as authors like
_LONGEST_WORDS: Final = 600


class Unreadable(ValueError):
    """What was posted is no review; the message says why."""


@dataclass(frozen=True, slots=True)
class Review:
    """What the API server is about to store."""

    uid: str
    operation: str  # CREATE, UPDATE, DELETE, CONNECT
    group: str
    kind: str
    resource: str  # plural; of the form in which the object is sent
    subresource: str
    namespace: str
    name: str  # empty while the API server has not generated it
    object: Mapping[str, Any]
    old_object: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def read_review(body: bytes) -> Review:
    """Read a question; raises Unreadable."""
    try:
        document = json.loads(body, parse_constant=_no_number)
    except RecursionError as error:
        raise Unreadable("the JSON is nested too deeply") from error
    except ValueError as error:
        raise Unreadable(f"not JSON: {error}") from error
    review = _mapping(document, "the body")
    version = review.get("apiVersion")
    if version != API_VERSION or review.get("kind") != "AdmissionReview":
        raise Unreadable(
            f"apiVersion {version!s:.80}, kind {review.get('kind')!s:.80}; allowed: {API_VERSION}, "
            "AdmissionReview"
        )
    request = _mapping(review.get("request"), "request")
    kind = _mapping(request.get("kind"), "request.kind")
    resource = _mapping(request.get("resource"), "request.resource")
    obj = _mapping(request.get("object") or {}, "request.object")
    return Review(
        uid=_word(request, "uid"),
        operation=_word(request, "operation"),
        group=_word(kind, "group"),
        kind=_word(kind, "kind"),
        resource=_word(resource, "resource"),
        subresource=_word(request, "subResource"),
        namespace=_word(request, "namespace"),
        name=_word(request, "name"),
        object=obj,
        old_object=_mapping(request.get("oldObject") or {}, "request.oldObject"),
    )


def answer(review: Review, findings: Findings) -> bytes:
    """Write the answer to a question."""
    response: dict[str, Any] = {"uid": review.uid, "allowed": not findings.faults}
    if findings.warnings:
        response["warnings"] = list(findings.warnings[:_MOST_TOLD])
    if findings.faults:
        response["status"] = _refusal(review, findings)
    return json.dumps(
        {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}
    ).encode()


def _refusal(review: Review, findings: Findings) -> dict[str, Any]:
    """Say no in the API server's own form for invalid objects, one cause a field."""
    causes = [
        {
            "reason": "FieldValueInvalid",
            "field": path_text(fault.path)[:_LONGEST_FIELD],
            "message": " ".join(fault.words.split())[:_LONGEST_WORDS],
        }
        for fault in findings.faults[:_MOST_TOLD]
    ]
    told = [f"{cause['field']}: {cause['message']}" for cause in causes]
    left = len(findings.faults) - len(causes)
    more = f" (and {left} more)" if left else ""
    message = told[0] if len(told) == 1 else f"[{', '.join(told)}]{more}"
    return {
        "status": "Failure",
        "code": 422,
        "reason": "Invalid",
        "message": " ".join(message.split()),
        "details": {
            "name": review.name,
            "group": review.group,
            "kind": review.kind,
            "causes": causes,
        },
    }


def _mapping(value: Any, what: str) -> Mapping[str, Any]:  # noqa: ANN401 - any JSON value
    if not isinstance(value, dict):
        raise Unreadable(f"{what} is not a mapping")
    return value


def _word(mapping: Mapping[str, Any], key: str) -> str:
    value = mapping.get(key, "")
    if not isinstance(value, str):
        raise Unreadable(f"request: {key} is not a string")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
