"""Asks the scheduler's own code and stores its answers beside this file.

Run `python -m tests.unit.allocation.recorded.record` after changing `expressions.txt` or
`cases.py`. It needs Go and, the first time, a minute; the tests read only the stored answers.
"""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

from tests.unit.allocation.build import DRIVER, Manifest
from tests.unit.allocation.cases import CASES

HERE = Path(__file__).parent
EXPRESSIONS = HERE / "expressions.txt"
EXPRESSION_ANSWERS = HERE / "expressions.json"
CASE_ANSWERS = HERE / "cases.json"

# The device that the expressions are about: also of what our own devices never have.
DEVICE: Manifest = {
    "name": "gpu-1",
    "attributes": {
        "type": {"string": "gpu"},
        "resourceName": {"string": "gpu"},
        "index": {"int": 1},
        "healthy": {"bool": True},
        "uuid": {"string": "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "architecture": {"string": "Hopper"},
        "driverVersion": {"version": "580.95.5"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "resource.kubernetes.io/pciBusID": {"string": "0000:1b:00.0"},
        "resource.kubernetes.io/numaNode": {"int": 0},
    },
    "capacity": {"memory": {"value": "81559Mi"}, "multiprocessors": {"value": "132"}},
}


def expressions() -> list[str]:
    """Return the expressions of the text file without blank lines and comments."""
    lines = EXPRESSIONS.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def fingerprint(question: object) -> str:
    """Return a short digest that tells whether a stored answer belongs to the question."""
    text = json.dumps(question, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def ask(questions: list[Manifest]) -> list[dict[str, Any]]:
    """Return the answers of the scheduler's code."""
    done = subprocess.run(
        ["go", "run", "."],
        cwd=HERE / "oracle",
        input=json.dumps(questions).encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def main() -> None:
    """Ask everything once and store it."""
    selectors = [{"expression": text, "driver": DRIVER, "device": DEVICE} for text in expressions()]
    answers = ask(selectors + list(CASES.values()))
    by_expression = {
        "device": fingerprint(DEVICE),
        "answers": dict(zip(expressions(), answers[: len(selectors)], strict=True)),
    }
    by_case = {
        name: {"question": fingerprint(question), "answer": answer}
        for (name, question), answer in zip(CASES.items(), answers[len(selectors) :], strict=True)
    }
    for path, document in ((EXPRESSION_ANSWERS, by_expression), (CASE_ANSWERS, by_case)):
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
