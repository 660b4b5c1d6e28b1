"""The demo where the evaluator of selectors is not installed."""

import subprocess
import sys

_WITHOUT = """
import sys
sys.modules["cel_expr_python"] = None
from dra_driver.cli import main
main(["demo"])
"""


def test_one_line_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: selectors of claims can't be evaluated: ")
    assert done.stderr.endswith("install gpu-dra-driver[cli]\n")
    assert done.stderr.count("\n") == 1
