"""Finding the GPU driver's management library and loading it, again when the driver changes."""

import platform
import threading
from contextlib import suppress
from ctypes import CDLL
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pynvml

from dra_driver.host import inside
from dra_driver.model.errors import DriverNotReady

LIBRARY_NAME: Final = "libnvidia-ml.so.1"
_MULTIARCH: Final = ("x86_64-linux-gnu", "aarch64-linux-gnu")


def library_folders(machine: str = platform.machine()) -> tuple[str, ...]:
    """Folders below a driver root that may hold its libraries, likeliest first.

    Distributions (Debian's multiarch, lib64), driver roots that are no full file system (GKE,
    Talos), WSL. The machine's own architecture comes before the other.
    """
    own_first = sorted(_MULTIARCH, key=lambda name: not name.startswith(machine))
    debian = [f"{top}/{name}" for top in ("usr/lib", "lib") for name in own_first]
    return (
        "usr/lib64",
        *debian,
        "lib64",
        "usr/lib",
        "lib",
        "",
        "usr/local/nvidia/lib64",
        "usr/local/glibc/usr/lib",
        "usr/local/glibc/lib",
        "usr/lib/wsl/lib",
    )


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """A library on disk; another inode is another library, also under the same path."""

    path: Path
    device: int
    inode: int


def find_library(root: Path, known_as: str = "") -> LibraryFile:
    """Find the library below `root`, links resolved as on the host.

    Raises DriverNotReady that says what was looked for and where; `known_as` is what people call
    the root, where they see it elsewhere than this process.
    """
    folders = library_folders()
    for folder in folders:
        with suppress(OSError):  # unreadable or just removed: as good as not there
            path = inside(root, Path(folder, LIBRARY_NAME))
            if path is not None:
                status = path.stat()
                return LibraryFile(path, status.st_dev, status.st_ino)
    looked = ", ".join(f"/{folder}" for folder in folders)
    raise DriverNotReady(
        f"{LIBRARY_NAME} was not found below {known_as or root} (looked in {looked}); install the "
        "GPU driver or set --nvidia-driver-root to the folder that holds it"
    )


class Library:
    """A loaded library. Threads that adopt it make their pynvml calls there, and only there."""

    def __init__(self, file: LibraryFile) -> None:
        """Load `file`; raises DriverNotReady with the loader's own words."""
        try:
            self.symbols = CDLL(_spelled(file))
        except OSError as error:
            raise DriverNotReady(
                f"{file.path} cannot be loaded: {error}; check that it is this machine's GPU driver"
            ) from error
        self.retired = False

    def adopt(self) -> None:
        """Send this thread's pynvml calls to this library from now on."""
        pynvml.nvmlLib = self.symbols  # any will do: it only keeps pynvml from loading one itself
        pynvml._nvmlGetFunctionPointer = _pointer  # noqa: SLF001 - see there
        _this_thread.library = self

    def retire(self) -> None:
        """Let threads that still hold this library get UNINITIALIZED for their next call."""
        self.retired = True


_this_thread = threading.local()
_loaded: dict[Path, list[tuple[int, int]]] = {}


def _pointer(name: str) -> Any:  # noqa: ANN401 - a C function has no better type
    """Give the C function `name` of this thread's library: pynvml looks every function up here.

    pynvml itself knows one library per process. After a change of the GPU driver a thread that
    still hangs in the old library would go on in the new one with old handles, and crash.
    """
    library: Library | None = getattr(_this_thread, "library", None)
    if library is None or library.retired:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
    try:
        return getattr(library.symbols, name)
    except AttributeError:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND) from None


def _spelled(file: LibraryFile) -> str:
    """Path of the library, in a spelling that the dynamic loader does not know another file by.

    dlopen(3) compares names before it looks at the file: a library replaced under its old path
    would be taken for the one that is loaded. `folder/./name` is another name.
    """
    inodes = _loaded.setdefault(file.path, [])
    identity = (file.device, file.inode)
    if identity not in inodes:
        inodes.append(identity)
    return f"{file.path.parent}/{'./' * inodes.index(identity)}{file.path.name}"
