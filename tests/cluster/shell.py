"""What `python -m tests.cluster shell` starts in the sandbox: a cluster, and a shell beside it."""

import os
import subprocess
import sys

from tests.cluster.cache import HarnessError, say
from tests.cluster.cluster import Cluster
from tests.cluster.mounts import STATE
from tests.cluster.settings import inside


def main() -> int:
    """Boot the cluster and return the shell's exit status."""
    settings = inside()
    if settings is None:
        raise HarnessError("runs only in the sandbox: python -m tests.cluster shell")
    cluster = Cluster(settings)
    cluster.boot(say)
    folders = {os.path.dirname(path) for path in settings.programs.values()}  # noqa: PTH120
    say(f"state and logs: {STATE}; kubectl and ctr are on PATH; the cluster ends with this shell")
    env = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "CONTAINERD_ADDRESS": f"{STATE}/containerd.sock",
        "CONTAINERD_NAMESPACE": "k8s.io",
        "PATH": ":".join([*sorted(folders), os.environ["PATH"]]),
    }
    return subprocess.run(
        [os.environ.get("SHELL", "/bin/sh")], env={**os.environ, **env}, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
