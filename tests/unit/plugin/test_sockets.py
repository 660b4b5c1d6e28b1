"""Sockets: private, never somebody else's, never stale, and back when they were taken away."""

import errno
import os
import re
import socket
import stat
import threading
from pathlib import Path

import pytest

from dra_driver.config import Settings
from dra_driver.model.errors import StorageFailed
from dra_driver.serving import sweep_dead_sockets
from dra_driver.simulator.kubelet import Kubelet
from dra_driver.simulator.kubelet_plugin import PluginConnection, introduce, notify
from tests.support.kubelet import DRIVER, PluginSide, claim, eventually

UID = "8f3a9d4e-1b2c-4d5e-8f90-a1b2c3d4e5f6"
NEWER = "00000000-1b2c-4d5e-8f90-a1b2c3d4e5f6"


def dead_socket(path: Path, age: float = 0) -> Path:
    """Leave what a process killed by SIGKILL leaves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    now = path.lstat().st_mtime
    os.utime(path, (now - age, now - age), follow_symlinks=False)
    return path


def sockets_below(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_sockets_are_private_whatever_the_umask(side: PluginSide, umask: int) -> None:
    before = os.umask(umask)
    try:
        side.build().start()
    finally:
        os.umask(before)
    settings = side.settings()
    for path in (settings.service_socket, settings.registration_socket):
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert sockets_below(side.folder) == {"dra.sock", "gpu.nvidia.com-reg.sock"}


def test_b30_sockets_of_a_killed_process_are_replaced(side: PluginSide, kubelet: Kubelet) -> None:
    settings = side.settings()
    dead_socket(settings.service_socket)
    dead_socket(settings.registration_socket)
    side.build().start()
    kubelet.wait_registered(DRIVER, 60)
    kubelet.prepare(DRIVER, [claim(1)])


def test_b30_sockets_of_other_killed_instances_are_swept(side: PluginSide) -> None:
    data, registry = side.settings().data_folder, side.settings().registrar_folder
    gone = [
        dead_socket(data / f"dra-{UID}.sock", age=60),
        dead_socket(data / "dra.sock", age=60),
        dead_socket(data / ".0a1b2c", age=60),
        dead_socket(registry / f"{DRIVER}-{UID}-reg.sock", age=60),
        dead_socket(registry / f"{DRIVER}-reg.sock", age=60),
        dead_socket(registry / f"{DRIVER}-h1V9xX2_-3A-reg.sock", age=60),
    ]
    spared = [
        dead_socket(registry / f"other.example.com-{UID}-reg.sock", age=60),
        dead_socket(registry / f"{DRIVER}-node-reg.sock", age=60),
        dead_socket(data / "dra-00000000-0000-0000-0000-000000000001.sock"),  # young
    ]
    side.build(NEWER).start()
    assert not any(os.path.lexists(path) for path in gone)
    assert all(os.path.lexists(path) for path in spared)


def test_b30_sockets_of_instances_that_are_killed_later_are_swept(
    side: PluginSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Pod of a killed instance may be deleted, so that it never comes back to do it."""
    monkeypatch.setattr("dra_driver.plugin.keeper._SWEEP_SECONDS", 0.0)
    monkeypatch.setattr("dra_driver.plugin.keeper._LOOK_SECONDS", 0.05)
    side.build(NEWER).start()
    dead = dead_socket(side.settings().registrar_folder / f"{DRIVER}-{UID}-reg.sock", age=60)
    eventually(lambda: not os.path.lexists(dead), "swept")
    assert introduce(side.settings(NEWER).registration_socket).driver == DRIVER


def test_a_living_socket_is_never_swept(side: PluginSide) -> None:
    folder = side.folder / "living"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(folder / f"dra-{UID}.sock"))
        living.listen(0)
        os.utime(folder / f"dra-{UID}.sock", (0, 0), follow_symlinks=False)
        sweep_dead_sockets(folder, re.compile(".*"))
    assert (folder / f"dra-{UID}.sock").exists()


def test_a_second_instance_on_the_same_path_is_refused(side: PluginSide) -> None:
    side.build().start()
    second = side.build()
    with pytest.raises(StorageFailed, match=r"another process serves .*dra\.sock.*--pod-uid"):
        second.start()
    assert introduce(side.settings().registration_socket).driver == DRIVER


def test_another_program_on_the_path_is_left_alone(side: PluginSide) -> None:
    """As the peer's driver under the same name would be: it knows nothing of our lock."""
    path = side.settings().service_socket
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        living.listen(1)
        with pytest.raises(StorageFailed, match=f"another process answers on {path}"):
            side.build().start()
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(path))


def test_something_else_in_the_way_is_named(side: PluginSide) -> None:
    side.settings().registration_socket.mkdir(parents=True)
    with pytest.raises(StorageFailed, match=r"gpu\.nvidia\.com-reg\.sock is in the way"):
        side.build().start()


def test_instances_with_pod_uids_live_side_by_side(side: PluginSide, kubelet: Kubelet) -> None:
    old = side.build()
    old.start()
    kubelet.wait_registered(DRIVER, 60)
    side.build(UID).start()
    newest = side.settings(UID).service_socket
    eventually(
        lambda: kubelet.wait_registered(DRIVER, 60).introduction.endpoint == newest,
        "the newest instance is used",
    )
    old.leave(0)
    kubelet.prepare(DRIVER, [claim(1)])


def test_a_registration_socket_that_is_taken_away_comes_back(
    side: PluginSide, kubelet: Kubelet
) -> None:
    services = side.build()
    services.start()
    kubelet.wait_registered(DRIVER, 60)
    side.settings().registration_socket.unlink()
    kubelet.wait_gone(DRIVER, 60)
    begin = len(kubelet.history)
    seconds = eventually(lambda: len(kubelet.history) > begin, "registered again")
    print(f"registered again after {seconds:.2f} s")
    kubelet.prepare(DRIVER, [claim(1)])
    eventually(lambda: services.checks().ready() == [], "ready again")


def test_a_service_socket_that_is_taken_away_comes_back(side: PluginSide) -> None:
    services = side.build()
    services.start()
    path = side.settings().service_socket
    identity = path.lstat().st_ino, path.lstat().st_mtime_ns
    path.unlink()
    eventually(path.exists, "the socket is back")
    assert (path.lstat().st_ino, path.lstat().st_mtime_ns) != identity
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    connection = PluginConnection(introduce(side.settings().registration_socket), minor=37)
    assert connection.prepare([claim(1)], 60)
    connection.close()


def test_a_socket_taken_over_by_another_program_is_not_taken_back(
    side: PluginSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_driver.plugin.checks._DEADLINE_SECONDS", 1.0)
    services = side.build()
    services.start()
    path = side.settings().service_socket
    with socket.socket(socket.AF_UNIX) as living:
        path.unlink()
        living.bind(str(path))
        living.listen(16)
        eventually(
            lambda: any("another process answers" in text for text in services.checks().ready()),
            "the problem is told",
        )
        services.leave(0).wait(60)
        assert path.exists(), "the other's socket is not ours to remove"


def test_a_failure_that_nobody_foresaw_does_not_end_the_keeper(
    side: PluginSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_files(_: Path) -> bool:
        raise OSError(errno.EMFILE, "Too many open files")

    services = side.build()
    services.start()
    path = side.settings().service_socket
    with monkeypatch.context() as trouble:
        trouble.setattr("dra_driver.serving.sockets.is_served", out_of_files)
        path.unlink()
        dead_socket(path)
        eventually(lambda: "Too many open files" in services._keeper.problem, "it is told")
    connection = introduce(side.settings().registration_socket)
    eventually(lambda: services._keeper.problem == "", "it goes on")
    eventually(lambda: services.checks().alive() == [], f"{connection.endpoint} is back")


def test_a_look_that_outlasts_the_stop_offers_nothing_anew(
    side: PluginSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has taken the service socket's name keeps the keeper waiting meanwhile."""
    asked, left = threading.Event(), threading.Event()

    def slow_to_answer(_: Path) -> bool:
        asked.set()
        return not left.wait(60)

    services = side.build()
    services.start()
    path = side.settings().service_socket
    monkeypatch.setattr("dra_driver.serving.sockets.is_served", slow_to_answer)
    path.unlink()
    dead_socket(path)
    assert asked.wait(60)
    services.leave(0)
    left.set()
    services._keeper._thread.join(60)
    assert not side.settings().registration_socket.exists()
    services.close()
    assert sockets_below(side.folder) == set()


def test_b30_a_refused_plugin_offers_itself_anew(
    side: PluginSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelets up to 1.35 never look again at a socket whose plugin they refused."""
    monkeypatch.setattr("dra_driver.plugin.keeper._REFUSAL_SECONDS", 0.5)
    services = side.build()
    services.start()
    path = side.settings().registration_socket
    before = path.lstat().st_mtime_ns
    notify(path, "no such luck")
    assert "the kubelet refused this plugin: no such luck" in services.checks().ready()
    eventually(lambda: path.exists() and path.lstat().st_mtime_ns != before, "a new socket")
    eventually(lambda: introduce(path).driver == DRIVER, "it answers")


def test_stopping_removes_the_sockets(side: PluginSide, kubelet: Kubelet) -> None:
    services = side.build()
    services.start()
    kubelet.wait_registered(DRIVER, 60)
    services.leave(0).wait(60)
    kubelet.wait_gone(DRIVER, 60)
    assert sockets_below(side.folder) == set()


@pytest.mark.parametrize(
    ("driver", "folder", "name"),
    [
        ("gpu.nvidia.com", 40, f"gpu.nvidia.com-{UID}-reg.sock"),
        ("gpu.nvidia.com", 60, "gpu.nvidia.com-YS-AI5zk5QM-reg.sock"),
        ("gpu-of-the-department.example.com", 60, "dra-kceUDOBdRdsVQ99new1Vdw-reg.sock"),
    ],
)
def test_long_names_of_instances_are_shortened(driver: str, folder: int, name: str) -> None:
    """Expected hashes by openssl, rules by the Go helper (kubeletplugin/draplugin.go)."""
    registry = Path("/" + "r" * folder)
    settings = Settings(node_name="n", driver_name=driver, pod_uid=UID, registrar_folder=registry)
    found = settings.registration_socket
    assert len(str(found)) <= 107
    assert found.name == name


@pytest.mark.parametrize(
    ("root", "name"),
    [
        ("/var/lib/kubelet", f"dra-{UID}.sock"),
        ("/var/snap/microk8s/common/var/lib/kubelet", "dra-YS-AI5zk5QM.sock"),
    ],
)
def test_b30_a_kubelet_root_elsewhere_has_room_for_the_service_socket(root: str, name: str) -> None:
    settings = Settings(node_name="n", pod_uid=UID, plugins_folder=Path(root, "plugins"))
    settings.check()
    assert settings.service_socket == Path(root, "plugins", DRIVER, name)
