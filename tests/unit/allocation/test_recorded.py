"""The evaluator against the answers of the scheduler's own code (Kubernetes 1.37.2)."""

import copy
import json
from typing import Any
from uuid import UUID

import pytest

from dra_driver.allocation import Refusal, Slice
from dra_driver.allocation.expression import ExpressionError, Subject, matches
from dra_driver.model import Quantity
from tests.unit.allocation.asking import answer, as_json
from tests.unit.allocation.build import resource_slice
from tests.unit.allocation.cases import CASES
from tests.unit.allocation.recorded import record

STORED_EXPRESSIONS = json.loads(record.EXPRESSION_ANSWERS.read_text(encoding="utf-8"))
STORED_CASES = json.loads(record.CASE_ANSWERS.read_text(encoding="utf-8"))
RECORD_AGAIN = "run `python -m tests.unit.allocation.recorded.record`"


def test_the_stored_answers_belong_to_these_questions() -> None:
    assert STORED_EXPRESSIONS["device"] == record.fingerprint(record.DEVICE), RECORD_AGAIN
    assert list(STORED_EXPRESSIONS["answers"]) == record.expressions(), RECORD_AGAIN
    asked = {name: record.fingerprint(question) for name, question in CASES.items()}
    assert {name: stored["question"] for name, stored in STORED_CASES.items()} == asked, (
        RECORD_AGAIN
    )


@pytest.mark.parametrize("expression", record.expressions())
def test_expression(expression: str) -> None:
    (device,) = Slice.parse(resource_slice("s", [record.DEVICE])).devices
    stored: dict[str, Any] = STORED_EXPRESSIONS["answers"][expression]
    try:
        found: bool | None = matches(expression, Subject(device))
        text = ""
    except ExpressionError as error:
        found, text = None, str(error)
    assert found == stored.get("matches"), text
    if stored.get("error", "").startswith("no such key: "):
        assert stored["error"] in text


def comparable(allocations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Allocations in which each share has the same id, and amounts have one spelling."""
    for allocation in allocations:
        for result in allocation["devices"]["results"]:
            if "shareID" in result:
                result["shareID"] = str(UUID(result["shareID"]).version)
            for name, text in result.get("consumedCapacity", {}).items():
                result["consumedCapacity"][name] = Quantity.parse(text)
    return allocations


@pytest.mark.parametrize("name", CASES)
def test_claims(name: str) -> None:
    stored: dict[str, Any] = copy.deepcopy(STORED_CASES[name]["answer"])
    outcome = answer(CASES[name])
    if not isinstance(outcome, Refusal):
        found = comparable(as_json(CASES[name], outcome))
        assert found == comparable(stored.get("allocations", []))
        return
    assert "allocations" not in stored, outcome
    # An invalid pool ends the attempt on its node only, although it is told as an error.
    ends_everywhere = "error" in stored and "invalid resource pools" not in stored["error"]
    assert outcome.fatal == ends_everywhere, outcome
