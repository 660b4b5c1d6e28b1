"""The hook against images and runtimes that are hostile or broken: it stays inside, and alive."""

import os
import random
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.container import (
    BUILT_HOOK,
    Container,
    compile_driver_libraries,
    compile_hook,
    mount_namespace,
)

VERSION = "580.95.05"
FOLDER = "/usr/lib64"
LIBRARY = f"libcuda.so.{VERSION}"
ARGUMENTS = (
    *("--driver-version", VERSION, "--folder", FOLDER),
    *("--link", f"libcuda.so.1::{FOLDER}/libcuda.so", "--mask-params"),
)
PARAMS = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n"
ELF_MACHINES = {62: 0x0303, 183: 0x0A03}


@pytest.fixture(scope="module", params=["openat2", "no openat2"])
def hook(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the hook with sanitizers, as on kernels with and without openat2."""
    flags = ["-DWITHOUT_OPENAT2"] if request.param == "no openat2" else []
    return compile_hook(tmp_path_factory.mktemp("hook"), *flags)


@pytest.fixture
def container(tmp_path: Path) -> Container:
    container = Container(tmp_path / "container").create()
    folder = container.root / FOLDER.lstrip("/")
    folder.mkdir(parents=True)
    compile_driver_libraries(folder, {LIBRARY: "libcuda.so.1"})
    return container


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """Give a folder outside of the container in which nothing may change."""
    folder = tmp_path / "outside"
    (folder / "ld.so.conf.d").mkdir(parents=True)
    (folder / "ld.so.cache").write_text("the host's")
    (folder / LIBRARY).write_text("the host's")
    before = _content(folder)
    yield folder
    assert before == _content(folder)


def _content(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    return {str(path): path.read_text() for path in files}


def links(container: Container) -> dict[str, str]:
    folder = container.root / FOLDER.lstrip("/")
    return {p.name: str(p.readlink()) for p in folder.iterdir() if p.is_symlink()}


def test_links_conf_and_cache(hook: Path, container: Container) -> None:
    done = container.run_hook(hook, *ARGUMENTS)
    assert (done.returncode, done.stderr) == (0, "")
    assert links(container) == {"libcuda.so.1": LIBRARY, "libcuda.so": "libcuda.so.1"}
    etc = container.root / "etc"
    assert (etc / "ld.so.conf.d/00-gpu-dra-driver.conf").read_text() == f"{FOLDER}\n"
    assert (etc / "ld.so.conf").read_text() == "include /etc/ld.so.conf.d/*.conf\n"
    expected = [
        f"libcuda.so.1 (libc6,x86-64) => {FOLDER}/libcuda.so.1",
        f"libcuda.so (libc6,x86-64) => {FOLDER}/libcuda.so",
    ]
    if os.uname().machine == "x86_64":
        assert expected == container.cache_lines()
    assert sorted(p.name for p in etc.iterdir()) == ["ld.so.cache", "ld.so.conf", "ld.so.conf.d"]


def test_twice_is_once(hook: Path, container: Container) -> None:
    container.run_hook(hook, *ARGUMENTS)
    before = (container.root / "etc/ld.so.cache").read_bytes()
    assert container.run_hook(hook, *ARGUMENTS).returncode == 0
    assert before == (container.root / "etc/ld.so.cache").read_bytes()


@pytest.mark.parametrize("machine", ELF_MACHINES)
def test_libraries_of_each_machine_are_told_apart(
    hook: Path, container: Container, machine: int
) -> None:
    """The flags in the cache are the loader's only way to pass by a library of another machine."""
    path = container.root / f"usr/lib64/{LIBRARY}"
    content = bytearray(path.read_bytes())
    content[18:20] = struct.pack("<H", machine)
    path.write_bytes(content)
    assert container.run_hook(hook, *ARGUMENTS).returncode == 0
    cache = (container.root / "etc/ld.so.cache").read_bytes()
    assert struct.unpack_from("<i", cache, 48) == (ELF_MACHINES[machine],)


def test_named_libraries_are_entered_too(hook: Path, container: Container) -> None:
    folder = container.root / "usr/lib64"
    compile_driver_libraries(folder, {"libnvidia-nvvm70.so.4": "libnvidia-nvvm70.so.4"})
    container.run_hook(hook, *ARGUMENTS, "--library", "libnvidia-nvvm70.so.4")
    assert "libnvidia-nvvm70.so.4" in " ".join(container.cache_lines())


@pytest.mark.parametrize("target", ["{outside}", "../../../../outside", "/../../..{outside}"])
@pytest.mark.parametrize("name", ["etc", "etc/ld.so.conf.d", "etc/ld.so.cache", "usr/lib64", "usr"])
def test_an_image_cannot_lead_the_hook_out(
    hook: Path, container: Container, outside: Path, name: str, target: str
) -> None:
    path = container.root / name
    if path.exists():
        path.rename(path.with_name("moved"))
    path.symlink_to(target.format(outside=outside))
    assert container.run_hook(hook, *ARGUMENTS).returncode == 0


def test_links_that_stay_inside_are_followed(hook: Path, container: Container) -> None:
    """Merged /usr, and an absolute link: both as the container's own processes will see them."""
    (container.root / "usr/lib64").rename(container.root / "usr/real")
    (container.root / "usr/lib64").symlink_to("/deep/../usr/real")
    (container.root / "deep").symlink_to("tmp/../tmp")
    done = container.run_hook(hook, *ARGUMENTS)
    assert (done.returncode, done.stderr) == (0, "")
    assert (container.root / "usr/real/libcuda.so.1").readlink() == Path(LIBRARY)


def test_a_circle_of_links_ends(hook: Path, container: Container) -> None:
    (container.root / "etc").rmdir()
    (container.root / "etc").symlink_to("/etc2")
    (container.root / "etc2").symlink_to("etc")
    done = container.run_hook(hook, *ARGUMENTS)
    assert done.returncode == 0
    assert "symbolic links" in done.stderr


def test_files_of_the_image_stay_and_stale_links_do_not(hook: Path, container: Container) -> None:
    folder = container.root / "usr/lib64"
    (folder / "libcuda.so.1").write_text("the image's")
    (folder / "libcuda.so").symlink_to("libcuda.so.470.1")
    done = container.run_hook(hook, *ARGUMENTS)
    assert done.returncode == 0
    assert (folder / "libcuda.so.1").read_text() == "the image's"
    assert links(container) == {"libcuda.so": "libcuda.so.1"}
    assert f"{FOLDER}/{LIBRARY}" in container.cache_lines()[0]


def test_an_image_without_etc_or_libraries_is_noted(hook: Path, container: Container) -> None:
    (container.root / "etc").rmdir()
    (container.root / f"usr/lib64/{LIBRARY}").unlink()
    done = container.run_hook(hook, *ARGUMENTS)
    assert done.returncode == 0
    assert f"no library *.so.{VERSION} was found" in done.stderr
    assert "/etc: No such file or directory" in done.stderr


@pytest.mark.parametrize("root", ["rootfs", "absolute"])
def test_the_root_folder_is_found(hook: Path, container: Container, root: str) -> None:
    path = str(container.root) if root == "absolute" else root
    container.write_config({"annotations": {"root": {"path": "/no"}}, "root": {"path": path}})
    assert container.run_hook(hook, *ARGUMENTS).returncode == 0
    assert "libcuda.so.1" in links(container)


@pytest.mark.parametrize(
    "config",
    [
        "",
        "{",
        '{"root": {}}',
        '{"root": "x"}',
        '{"root": {"path": 7}}',
        '{"root": {"path": ""}}',
        '{"root": {"path": "gone"}}',
        '{"root": {"path": "root\\u0000fs"}}',
        f'{{"root": {{"path": "{"x" * 5000}"}}}}',
        '{"a": "\\ud800", "root": {"path": "rootfs"}}',
        '{"a": ' + "[" * 2_000_000,
    ],
    ids=range(11),
)
def test_a_broken_config_is_an_error(hook: Path, container: Container, config: str) -> None:
    container.write_config(config)
    done = container.run_hook(hook, *ARGUMENTS)
    assert done.returncode == 1
    assert done.stderr.startswith("gpu-dra-cdi-hook: ")


@pytest.mark.parametrize("state", [b"{}", b'{"bundle": null}', b'{"bundle": "/nowhere"}', b"\xff"])
def test_a_broken_state_is_an_error(hook: Path, container: Container, state: bytes) -> None:
    assert container.run_hook(hook, *ARGUMENTS, state=state).returncode == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["x"],
        ["--unknown", "x"],
        ["--folder"],
        ["--folder", "/a"],
        ["--driver-version", "1", "--folder", "a"],
        ["--driver-version", "1", *(["--folder", "/a"] * 33)],
        ["--driver-version", "a/b"],
        ["--library", "a/b"],
        ["--link", "no-path"],
        ["--link", "a::relative"],
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    hook: Path, container: Container, arguments: Sequence[str]
) -> None:
    done = container.run_hook(hook, *arguments)
    assert done.returncode == 2
    assert not list((container.root / "etc").iterdir())


def test_the_hosts_root_folder_is_refused(hook: Path, container: Container) -> None:
    container.write_config({"root": {"path": "/"}})
    done = container.run_hook(hook)  # without arguments it would do nothing anyway
    assert (done.returncode, done.stderr.split(": ", 1)[1]) == (
        1,
        "the container's root folder / is the host's\n",
    )


Mangle = Callable[[random.Random, bytearray], bytearray]


def _cut(chance: random.Random, data: bytearray) -> bytearray:
    return data[: chance.randrange(len(data))]


def _flip(chance: random.Random, data: bytearray) -> bytearray:
    for _ in range(chance.randrange(1, 40)):
        data[chance.randrange(min(len(data), 400))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
    return data


def _noise(chance: random.Random, data: bytearray) -> bytearray:
    return data[:20] + chance.randbytes(chance.randrange(2000))


@pytest.mark.parametrize("mangle", [_cut, _flip, _noise])
@pytest.mark.parametrize("victim", ["cache", "compat cache", "library", "config"])
def test_garbage_is_survived(hook: Path, container: Container, victim: str, mangle: Mangle) -> None:
    """With a fixed seed; the sanitizers see every read beyond the end."""
    chance = random.Random(f"{victim} {mangle.__name__}")  # noqa: S311 - repeatable
    container.add_glibc("opt/lib")
    container.ldconfig("-c", "compat" if victim == "compat cache" else "new")
    names = {
        "cache": "etc/ld.so.cache",
        "compat cache": "etc/ld.so.cache",
        "library": f"usr/lib64/{LIBRARY}",
        "config": "../config.json",
    }
    path = container.root / names[victim]
    whole = path.read_bytes()
    for _ in range(12):
        path.write_bytes(mangle(chance, bytearray(whole)))
        done = container.run_hook(hook, *ARGUMENTS)
        if victim == "config":
            continue
        assert done.returncode == 0
        if victim != "library":
            assert any(f"{FOLDER}/libcuda.so.1" in line for line in container.cache_lines())


def test_parameters_are_covered(container: Container) -> None:
    """The container's copy forbids making device nodes, is read-only, and leaves no file behind."""
    params = container.root / "proc/driver/nvidia/params"
    params.parent.mkdir(parents=True)
    params.write_text(PARAMS)
    done = in_namespace(
        container,
        'mount -t tmpfs none "$1/dev" && "$2" --mask-params || exit 1\n'
        'cat "$1/proc/driver/nvidia/params" && ls -A "$1/dev"\n'
        'echo x >"$1/proc/driver/nvidia/params"',
        str(BUILT_HOOK),
    )
    assert done.stdout == PARAMS.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0")
    assert "Read-only file system" in done.stderr
    assert params.read_text() == PARAMS


@pytest.mark.parametrize("text", [None, PARAMS.replace(": 1", ": 0"), "", "other"])
def test_parameters_that_are_harmless_need_no_mount(
    hook: Path, container: Container, text: str | None
) -> None:
    if text is not None:
        params = container.root / "proc/driver/nvidia/params"
        params.parent.mkdir(parents=True)
        params.write_text(text)
    done = container.run_hook(hook, "--mask-params")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("volume", ["etc", "usr/lib64"])
def test_volumes_are_not_written(
    hook: Path, container: Container, tmp_path: Path, volume: str
) -> None:
    """A Pod may have mounted the host's /etc or /usr."""
    volume_content = tmp_path / "volume"
    volume_content.mkdir()
    compile_driver_libraries(volume_content, {LIBRARY: "libcuda.so.1"})
    done = in_namespace(
        container,
        'mount -t tmpfs none "$1/$4" && cp "$3"/* "$1/$4" && '
        f'"$2" {" ".join(ARGUMENTS)} && ls -A "$1/$4"',
        str(hook),
        str(volume_content),
        volume,
    )
    assert (done.returncode, done.stdout) == (0, f"{LIBRARY}\n"), done.stderr
    assert "Invalid cross-device link" in done.stderr


def test_a_full_disk_stops_the_container(hook: Path, container: Container, tmp_path: Path) -> None:
    """It is no property of the image: the message reaches the Pod, and a later try may succeed."""
    library = tmp_path / LIBRARY
    (container.root / f"usr/lib64/{LIBRARY}").rename(library)
    done = in_namespace(
        container,
        'mount -t tmpfs -o size=256k none "$1" && mkdir -p "$1/etc" "$1/usr/lib64" && '
        'cp "$3" "$1/usr/lib64" && { dd if=/dev/zero of="$1/fill" bs=4k 2>/dev/null; '
        f'"$2" {" ".join(ARGUMENTS)}; }}',
        str(hook),
        str(library),
    )
    assert done.returncode == 1
    assert "cannot write ld.so.cache: No space left on device\n" in done.stderr


def in_namespace(
    container: Container, script: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run a shell script with mounts of its own; $1 is the root folder."""
    prefix = mount_namespace()
    return subprocess.run(
        [*prefix, "sh", "-c", script, "sh", str(container.root), *arguments],
        input=container.state().decode(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
