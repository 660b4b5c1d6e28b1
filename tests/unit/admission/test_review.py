"""Questions of the API server: what is looked at, what is not, and what is no question."""

import json
import logging
from typing import Any

import pytest

from dra_driver.admission.metrics import CATALOGUE
from dra_driver.telemetry import set_up_logging
from tests.unit.admission.build import (
    PLACES,
    PLURALS,
    Asked,
    entry,
    gpu_config,
    mig_config,
    obj,
    question,
    request,
)

BAD = entry(gpu_config(strategy="my-secret-word"))


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.mark.parametrize("kind", PLACES)
def test_an_update_that_leaves_the_configs_alone_is_allowed(asked: Asked, kind: str) -> None:
    """Else what was stored before this webhook was there could not even lose its finalizers."""
    stored = obj(kind, [BAD])
    changed = stored | {"metadata": stored["metadata"] | {"finalizers": []}}
    assert asked.faults(changed, operation="UPDATE", old=stored) == {}
    worse = obj(kind, [BAD, entry(mig_config(more=1))])
    assert len(asked.faults(worse, operation="UPDATE", old=stored)) == 3
    assert asked.faults(obj(kind, []), operation="UPDATE", old=stored) == {}


@pytest.mark.parametrize(
    "more", [{"operation": "DELETE"}, {"operation": "CONNECT"}, {"subresource": "status"}]
)
def test_other_operations_are_allowed(asked: Asked, more: dict[str, Any]) -> None:
    assert asked.ask(obj("ResourceClaim", [BAD]), **more)["allowed"] is True


def test_other_kinds_are_allowed(asked: Asked) -> None:
    other = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": {}}
    assert asked.ask(other)["allowed"] is True
    same_name = obj("ResourceClaim", [BAD]) | {"apiVersion": "example.com/v1"}
    assert asked.ask(same_name)["allowed"] is True


@pytest.mark.parametrize(
    "spec",
    [
        None,
        [],
        {"devices": None},
        {"devices": {"config": {}, "requests": 1}},
        {"devices": {"config": [None, 1, {"opaque": 1}, {"opaque": {"driver": 1}}]}},
        {"devices": {"requests": [{"exactly": None}, {"firstAvailable": [None]}, "x"]}},
    ],
)
def test_objects_of_another_shape_are_left_to_the_api_server(asked: Asked, spec: Any) -> None:
    assert asked.ask(obj("ResourceClaim", []) | {"spec": spec})["allowed"] is True


def test_odd_requests_do_not_hide_a_bad_config(asked: Asked) -> None:
    requests = [{"name": 1, "exactly": {"count": "x", "adminAccess": 1}}, {}]
    made = obj("ResourceClaim", [BAD, {"requests": 1, **BAD}], requests)
    assert len(asked.faults(made)) == 2


DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
QUESTION = question(obj("ResourceClaim", [BAD])).decode()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON: "),
        (b"\xff\xfe\x00", "not JSON: "),
        (b"{", "not JSON: "),
        (b"[]", "the body is not a mapping"),
        (b"null", "the body is not a mapping"),
        (DEEP.encode(), "the JSON is nested too deeply"),
        (QUESTION.replace('"my-secret-word"', "NaN").encode(), "not JSON: NaN is no number"),
        (QUESTION.replace('"my-secret-word"', "9" * 5000).encode(), "not JSON: "),
        (QUESTION.replace("AdmissionReview", "Review").encode(), "kind Review; allowed: "),
        (QUESTION.replace(".io/v1", ".io/v1beta1", 1).encode(), "apiVersion admission.k8s.io/v1b"),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', "request is not a "),
    ],
)
def test_what_is_no_question_is_answered_with_400(asked: Asked, body: bytes, message: str) -> None:
    page = asked.reviewer(body)
    assert page.status == 400
    assert message in page.body.decode()
    assert b"gpu_dra_driver_admission_unreadable_total 1.0" in asked.metrics.exposition()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("request", "uid"), 1),
        (("request", "operation"), None),
        (("request", "kind"), "ResourceClaim"),
        (("request", "resource"), None),
        (("request", "object"), "x"),
        (("request", "oldObject"), [1]),
        (("request", "kind", "kind"), {}),
    ],
)
def test_a_question_with_a_wrong_field_is_answered_with_400(
    asked: Asked, path: tuple[str, ...], value: Any
) -> None:
    document = json.loads(QUESTION)
    target = document
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    page = asked.reviewer(json.dumps(document).encode())
    assert page.status == 400
    assert path[-1] in page.body.decode()


def test_answers_are_counted(asked: Asked) -> None:
    for kind, plural in PLURALS.items():
        asked.ask(obj(kind, []))
        asked.ask(obj(kind, [BAD]))
        text = asked.metrics.exposition().decode()
        for result, count in (("allowed", 1.0), ("refused", 1.0), ("warned", 0.0)):
            line = f'_reviews_total{{resource="{plural}",result="{result}"}} {count}'
            assert line in text
    time_slicing = entry(mig_config(strategy="TimeSlicing"))
    asked.ask(obj("ResourceClaim", [time_slicing], [request("a", "mig.nvidia.com")]))
    text = asked.metrics.exposition().decode()
    assert '_reviews_total{resource="resourceclaims",result="warned"} 1.0' in text
    assert "gpu_dra_driver_admission_duration_seconds_count 7.0" in text
    assert all(metric.name.startswith("gpu_dra_driver_") for metric in CATALOGUE)


def test_the_log_says_which_fields_and_not_what_stands_there(
    asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger("dra_driver")
    before = (root.handlers[:], root.level, root.propagate)
    set_up_logging("text", "debug")
    try:
        asked.ask(obj("ResourceClaim", [BAD]))
        asked.ask(obj("DeviceClass", []))
    finally:
        root.handlers[:], root.level, root.propagate = before
    log = capsys.readouterr().err
    assert (
        "refused resource=resourceclaims object=team/it faults=1 "
        "fields=spec.devices.config[0].opaque.parameters.sharing.strategy"
    ) in log
    assert "allowed resource=deviceclasses object=it" in log
    assert "my-secret-word" not in log
