"""Where the library is looked for, and that each thread keeps to its own one."""

import shutil
import subprocess
import threading
from pathlib import Path

import pynvml
import pytest

from dra_driver.model.errors import DriverNotReady
from dra_driver.nvml.library import LIBRARY_NAME, Library, find_library, library_folders

SOURCE = "int nvmlInitWithFlags(unsigned flags) {{ return {answer}; }}\n"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Two tiny libraries with one SONAME, told apart by what nvmlInit answers."""
    folder = tmp_path_factory.mktemp("libraries")
    libraries = {}
    for answer in (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_NO_PERMISSION):
        library = folder / f"{answer}.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY_NAME}", "-xc", "-", "-o", library],
            input=SOURCE.format(answer=answer).encode(),
            check=True,
        )
        libraries[answer] = library
    return libraries


def place(root: Path, relative: str) -> Path:
    path = root / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF")
    return path


@pytest.mark.parametrize("folder", library_folders())
def test_b09_every_known_folder_is_searched(tmp_path: Path, folder: str) -> None:
    path = place(tmp_path, f"{folder}/{LIBRARY_NAME}" if folder else LIBRARY_NAME)
    assert find_library(tmp_path).path == path


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_b09_the_own_architecture_comes_first(machine: str) -> None:
    folders = [folder for folder in library_folders(machine) if "linux-gnu" in folder]
    assert folders[0] == f"usr/lib/{machine}-linux-gnu"
    assert len(folders) == 4


def test_b09_host_absolute_links_resolve_below_the_root(tmp_path: Path) -> None:
    real = place(tmp_path, "opt/driver/libnvidia-ml.so.580.95.05")
    link = tmp_path / "usr/lib64" / LIBRARY_NAME
    link.parent.mkdir(parents=True)
    link.symlink_to("/opt/driver/libnvidia-ml.so.580.95.05")
    assert find_library(tmp_path).path == real


def test_b09_the_message_lists_what_was_looked_for_and_where(tmp_path: Path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64" / LIBRARY_NAME).symlink_to("gone.so")
    with pytest.raises(DriverNotReady) as raised:
        find_library(tmp_path)
    message = str(raised.value)
    assert LIBRARY_NAME in message
    assert str(tmp_path) in message
    with pytest.raises(DriverNotReady, match=r"below /opt/driver \(here /driver-root\)"):
        find_library(tmp_path, "/opt/driver (here /driver-root)")
    assert "--nvidia-driver-root" in message
    for folder in library_folders():
        assert f"/{folder}" in message


def test_what_is_no_library_is_refused_with_the_loaders_words(tmp_path: Path) -> None:
    place(tmp_path, f"usr/lib64/{LIBRARY_NAME}")
    with pytest.raises(DriverNotReady, match=r"libnvidia-ml\.so\.1 cannot be loaded: .+"):
        Library(find_library(tmp_path))


def answer_of_init() -> int:
    with pytest.raises(pynvml.NVMLError) as raised:
        pynvml.nvmlInit()
    return int(raised.value.value)


def test_a_library_replaced_under_its_old_path_is_loaded_anew(
    tmp_path: Path, built: dict[int, Path]
) -> None:
    path = tmp_path / "usr/lib64" / LIBRARY_NAME
    path.parent.mkdir(parents=True)
    for answer, library in built.items():
        path.unlink(missing_ok=True)
        shutil.copy(library, path)
        Library(find_library(tmp_path)).adopt()
        assert answer_of_init() == answer


def test_a_thread_keeps_to_its_library_when_another_is_loaded(
    tmp_path: Path, built: dict[int, Path]
) -> None:
    libraries = []
    for answer, source in built.items():
        folder = tmp_path / str(answer) / "usr/lib64"
        folder.mkdir(parents=True)
        shutil.copy(source, folder / LIBRARY_NAME)
        libraries.append(Library(find_library(tmp_path / str(answer))))
    old, new = libraries
    changed, adopted, seen = threading.Event(), threading.Event(), []

    def hang() -> None:
        old.adopt()
        adopted.set()
        changed.wait(60)
        seen.append(answer_of_init())
        old.retire()
        seen.append(answer_of_init())

    thread = threading.Thread(target=hang)
    thread.start()
    assert adopted.wait(60)
    new.adopt()
    expected_old, expected_new = built
    assert answer_of_init() == expected_new
    changed.set()
    thread.join(60)
    assert seen == [expected_old, pynvml.NVML_ERROR_UNINITIALIZED]


def test_a_missing_function_is_a_missing_ability(tmp_path: Path, built: dict[int, Path]) -> None:
    folder = tmp_path / "usr/lib64"
    folder.mkdir(parents=True)
    shutil.copy(next(iter(built.values())), folder / LIBRARY_NAME)
    Library(find_library(tmp_path)).adopt()
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetCount()
