"""The cache: complete or absent, made once, never twice at the same time; needs no cluster."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster import cache
from tests.cluster.binaries import DEFAULT_VERSION, kubernetes_versions, tools_for
from tests.cluster.cache import HarnessError, artifact
from tests.cluster.golang import parse_version
from tests.cluster.settings import parse_gates

_CHECKOUT = Path(__file__).parents[2]
_MAKER = """
import sys, time
from pathlib import Path
from tests.cluster.cache import artifact
def make(into):
    (into / "half").write_text("")
    print("making", flush=True)
    while not Path(sys.argv[1]).exists():
        time.sleep(0.05)
    (into / "whole").write_text("")
print(artifact("thing", "key", make), flush=True)
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPU_DRA_DRIVER_CACHE", str(tmp_path))
    return tmp_path


def test_a_thing_is_made_once_for_a_key_and_anew_for_another(own_cache: Path) -> None:
    made = []

    def make(into: Path) -> None:
        made.append(into)
        (into / f"file-{len(made)}").write_text("")

    for key in ("one", "one", "two"):
        folder = artifact("thing", key, make)
    assert folder == own_cache / "thing"
    assert len(made) == 2
    assert sorted(path.name for path in folder.iterdir()) == [".key", "file-2"]
    assert sorted(path.name for path in own_cache.iterdir()) == ["locks", "thing"]


def test_what_fails_half_way_is_not_in_the_cache(own_cache: Path) -> None:
    def fail(into: Path) -> None:
        (into / "half").write_text("")
        raise HarnessError("no such package")

    with pytest.raises(HarnessError, match="no such package"):
        artifact("thing", "key", fail)
    assert sorted(path.name for path in own_cache.iterdir()) == ["locks"]


def test_a_killed_maker_leaves_nothing_that_counts(own_cache: Path) -> None:
    maker = _maker(until=own_cache / "never")
    assert maker.stdout is not None
    assert maker.stdout.readline() == "making\n"
    maker.kill()
    maker.communicate()
    assert not (own_cache / "thing").exists()
    artifact("thing", "key", lambda into: (into / "whole").touch())
    assert sorted(path.name for path in own_cache.iterdir()) == ["locks", "thing"]


def test_what_a_killed_maker_runs_ends_with_it() -> None:
    code = "from tests.cluster import cache; cache.run(['sleep', '1000'], what='it')"
    maker = subprocess.Popen([sys.executable, "-c", code], cwd=_CHECKOUT)
    children = Path(f"/proc/{maker.pid}/task/{maker.pid}/children")
    deadline = time.monotonic() + 60
    while not (found := children.read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child = os.pidfd_open(int(found[0]))
    maker.kill()
    maker.wait()
    assert select.select([child], [], [], 60)[0] == [child]
    os.close(child)


def test_two_makers_make_it_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    both_are_there = tmp_path_factory.mktemp("told") / "both"
    makers = [_maker(until=both_are_there), _maker(until=both_are_there)]
    first_words = [maker.stdout.readline() for maker in makers if maker.stdout is not None]
    assert sum(line == "making\n" for line in first_words) == 1
    assert sum("waiting for another process" in line for line in first_words) == 1
    both_are_there.touch()
    outputs = [maker.communicate(timeout=60)[0] for maker in makers]
    assert not any("making" in output for output in outputs)


def test_a_failing_program_is_quoted() -> None:
    with pytest.raises(HarnessError, match=r"(?s)it failed with status 3:.*no such file"):
        cache.run(["sh", "-c", "echo no such file >&2; exit 3"], what="it")


def test_each_version_has_all_programs_and_one_kubectl() -> None:
    programs = {"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"}
    kubectls = set()
    for version in kubernetes_versions():
        tools = {tool.name: tool for tool in tools_for(version)}
        built = {package.rpartition("/")[2] for package in tools[f"k8s-{version}"].packages}
        assert built == programs
        assert f"gitVersion=v{version}" in tools[f"k8s-{version}"].linker_flags
        kubectls.add(tools["kubectl"].key)
    assert len(kubectls) == 1
    assert DEFAULT_VERSION in kubernetes_versions()
    with pytest.raises(HarnessError, match=r"no tool module for Kubernetes 1\.2\.3"):
        tools_for("1.2.3")


def test_versions_and_gates_are_read() -> None:
    assert parse_version("1.27rc1") < parse_version("1.27.3")
    assert parse_version("1.26.8") > parse_version("1.9")
    assert parse_gates("A=true,B=false") == {"A": True, "B": False}
    with pytest.raises(HarnessError, match="wanted NAME=true or NAME=false"):
        parse_gates("A=yes")


def _maker(until: Path) -> subprocess.Popen[str]:
    """Start one that is at work until a file is there."""
    return subprocess.Popen(
        [sys.executable, "-c", _MAKER, until],
        cwd=_CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
