"""What a container gets of MPS, and the hook that lets none start with two daemons' devices."""

from pathlib import Path

import pytest

from tests.support.container import BUILT_HOOK, Container, compile_hook, mount_namespace
from tests.support.mps_agent import MakeMpsBed, mps_config

# Mounts folder $0 at $1, as the runtime has it done before it calls the hook that follows.
_BIND = 'mount --bind "$0" "$1" && shift && exec "$@"'


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_hook(tmp_path_factory.mktemp("hook"))


@pytest.fixture
def container(tmp_path: Path) -> Container:
    container = Container(tmp_path / "container").create()
    (container.root / "tmp/nvidia-mps").mkdir()
    return container


def bound(container: Container, folder: Path) -> list[str]:
    """Words that run a program while that folder lies at /tmp/nvidia-mps of the container."""
    place = container.root / "tmp/nvidia-mps"
    return [*mount_namespace(), "sh", "-c", _BIND, str(folder), str(place)]


def test_a_container_with_the_sockets_of_its_device_may_start(
    hook: Path, container: Container, tmp_path: Path
) -> None:
    prefix = bound(container, tmp_path)
    done = container.run_hook(hook, "--mps", str(tmp_path), prefix=prefix)
    assert (done.returncode, done.stderr) == (0, "")


def test_b36_a_container_with_the_sockets_of_another_may_not(
    hook: Path, container: Container, tmp_path: Path
) -> None:
    (other := tmp_path / "other").mkdir()
    prefix = bound(container, other)
    done = container.run_hook(hook, "--mps", str(tmp_path), prefix=prefix)
    assert done.returncode == 1
    assert "two control daemons of MPS and can reach one only" in done.stderr


@pytest.mark.parametrize("what", ["no folder", "a link to outside", "no daemon"])
def test_without_sockets_a_container_may_not_start(
    hook: Path, container: Container, tmp_path: Path, what: str
) -> None:
    place, wanted = container.root / "tmp/nvidia-mps", tmp_path
    if what == "no folder":
        place.rmdir()
    elif what == "a link to outside":
        place.rmdir()
        place.symlink_to(wanted)  # resolves within the container
    else:
        wanted = tmp_path / "gone"
    done = container.run_hook(hook, "--mps", str(wanted))
    assert done.returncode == 1
    assert "the sockets of MPS in /tmp/nvidia-mps" in done.stderr


def test_a_folder_that_is_none_is_refused(hook: Path, container: Container) -> None:
    assert container.run_hook(hook, "--mps", "relative").returncode == 2
    assert container.run_hook(hook, "--mps").returncode == 2


def test_b36_two_claims_with_a_daemon_each_never_meet_in_a_container(
    make_mps_bed: MakeMpsBed, container: Container
) -> None:
    bed = make_mps_bed(gpus=2)
    refs = [bed.claim(f"c{n}", f"gpu-{n}", config=[mps_config()]) for n in (0, 1)]
    bed.prepare(*refs)
    one, other = (bed.edits(ref)[0] for ref in refs)
    assert one["env"] == other["env"]
    places = [[mount["containerPath"] for mount in edits["mounts"]] for edits in (one, other)]
    assert places == [["/tmp/nvidia-mps", "/dev/shm"]] * 2
    last = bed.folders(refs[1])["/tmp/nvidia-mps"]  # of two mounts at one place
    results = []
    for edits in (one, other):
        (call,) = edits["hooks"]
        prefix = bound(container, last)
        assert Path(call["path"]).read_bytes() == BUILT_HOOK.read_bytes()
        done = container.run_hook(call["path"], *call["args"][1:], prefix=prefix)
        results.append(done.returncode)
    assert results == [1, 0]
