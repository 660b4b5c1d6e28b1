"""A Job whose Pods have a GPU each, some at once, while a test changes something beside them."""

from typing import Final

from tests.cluster import images
from tests.cluster.api import Object
from tests.cluster.claims import from_template
from tests.cluster.workload import Namespace, pod

JOB_SECONDS: Final = 400.0
_AT_ONCE: Final = 6


def succeeded(namespace: Namespace, job: str) -> int:
    """Count the Pods of a Job that ended well; fails when one did not."""
    path = f"/apis/batch/v1/namespaces/{namespace.name}/jobs/{job}"
    status = namespace.cluster.api.get(path).get("status", {})
    assert not status.get("failed"), namespace.warnings()
    return int(status.get("succeeded", 0))


def job_of(name: str, pods: int) -> Object:
    """Build a Job whose Pods fail if they see other than one GPU, and that fails with them."""
    script = "nvidia-smi -L | tee /dev/stderr | grep -c UUID | grep -qx 1 && sleep 2"
    made = pod("", "sh", "-c", script, image=images.DEBIAN, claims=from_template("one"))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completions": pods,
            "parallelism": _AT_ONCE,
            "backoffLimit": 0,
            "template": {"spec": made["spec"]},
        },
    }
