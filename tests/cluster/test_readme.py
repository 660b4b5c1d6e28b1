"""The README's first claim on a real cluster, command by command as it stands there."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import images, view
from tests.cluster.driver import CHECKOUT, Driver, eventually
from tests.cluster.workload import Namespace

_SECTION = "## A first claim on a real cluster"
_READY = "http://localhost:8080/readyz"
_IMAGE = "docker.io/library/debian:12-slim"
_COMMAND_SECONDS = 120
# The shell that types the commands: the set-up is done, `sudo` adds where the simulated node is,
# and the person waits for the Pod before looking at its log.
_PRELUDE = """
set -eu
make() { :; }
sudo() { "$@" $SIMULATED > serve.log 2>&1 & echo $! > serve.pid; }
kubectl() {
  if [ "$1" = logs ]; then
    command kubectl wait --for=condition=Ready --timeout=90s "pod/$2" > wait.log
  fi
  command kubectl "$@"
}
"""


@pytest.fixture
def person(driver: Driver, tmp_path: Path) -> Iterator["Person"]:
    """Take the driver's main instance away for one that is started by the README."""
    driver.cluster.node.ctr("images", "tag", images.DEBIAN, _IMAGE)
    driver.main.process.stop()
    made = Person(driver, tmp_path)
    yield made
    made.ends_serving()
    driver.main.start()


def test_the_first_claim_of_the_readme(driver: Driver, person: "Person") -> None:
    access, serve, look, run = _blocks()
    person.types(access)
    assert (person.folder / "plugin.kubeconfig").stat().st_mode & 0o077 == 0
    person.types(serve)

    def ready() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(_READY) as page:
            return bool(page.read() == b"ok\n")
        return False

    eventually(ready, "the README's plugin is ready")
    assert f" {driver.cluster.node_name} " in person.types(look)
    namespace = Namespace(driver.cluster, "default")
    try:
        shown = person.types(run)
        (name,) = view.devices_of(namespace, "one-gpu")
        wanted = view.expected(driver.node, [name])
        assert shown.splitlines()[-1:] == list(wanted.gpus)
        assert view.seen(namespace, "one-gpu") == wanted
    finally:
        namespace.delete_pod("one-gpu")
        person.types("kubectl delete -f examples/resourceclaims/01-one-gpu.yaml --ignore-not-found")
    assert driver.leftovers() == set()


class Person:
    """Someone who follows the README in a folder that looks like the checkout."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        """Lay out the folder."""
        self.folder = folder
        for name in ("deploy", "deviceclasses", "examples"):
            (folder / name).symlink_to(CHECKOUT / name)
        (folder / ".venv").symlink_to(sys.prefix)
        programs = Path(driver.cluster.settings.program("kubectl")).parent
        self._env = {
            **os.environ,
            "KUBECONFIG": str(driver.cluster.kubeconfig),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SIMULATED": " ".join(driver.hardware_flags()),
        }

    def types(self, commands: str) -> str:
        """Run commands one after the other and give what they print; each must succeed."""
        done = subprocess.run(
            ["bash", "-c", _PRELUDE + commands],
            cwd=self.folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}"
        return done.stdout

    def ends_serving(self) -> None:
        """Press Ctrl-C where the plugin runs, if it was started."""
        note = self.folder / "serve.pid"
        if note.exists():
            process = Path("/proc") / note.read_text().strip()
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGINT)
            eventually(lambda: not process.exists(), "the README's plugin has ended")


def _blocks() -> list[str]:
    """Give the commands of each block of the section, without their prompts."""
    section = (CHECKOUT / "README.md").read_text().partition(_SECTION)[2].partition("\n## ")[0]
    blocks = re.findall(r"^ *```console\n(.*?)^ *```", section, re.MULTILINE | re.DOTALL)
    return [re.sub(r"^ *(\$ )?", "", block, flags=re.MULTILINE) for block in blocks]
