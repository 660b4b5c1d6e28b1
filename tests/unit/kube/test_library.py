"""What the Kubernetes client library costs this driver."""

import subprocess
import sys

PROGRAM = """
import sys
import dra_driver.kube
from dra_driver.kube.library import load
client, _ = load()
loaded = [name for name in sys.modules if name.startswith("kubernetes.client.models.")]
assert not loaded, loaded[:3]
for heavy in ("requests", "oauthlib", "websocket", "kubernetes.informer"):
    assert heavy not in sys.modules, heavy
assert not {"kubernetes", "kubernetes.client"} & sys.modules.keys()
from kubernetes import watch
from kubernetes.client import ApiClient, CoreV1Api
assert ApiClient is client and watch.Watch and CoreV1Api
assert load()[0] is client
"""


def test_only_what_talks_http_is_loaded_and_the_library_stays_whole() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
