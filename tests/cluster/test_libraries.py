"""Programs in containers find the GPU driver's libraries, whatever their image is made like."""

from typing import Any

from tests.cluster import images
from tests.cluster.claims import claim, use
from tests.cluster.driver import Driver
from tests.cluster.workload import Namespace, pod

_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libm.so.6")
_RESTRICTED = {"readOnlyRootFilesystem": True, "runAsUser": 65534, "runAsGroup": 65534}
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "debian": (images.DEBIAN, {}),
    "debian-restricted": (images.DEBIAN, _RESTRICTED),
    "lib64": (images.LIB64, {}),
    "lib64-restricted": (images.LIB64, _RESTRICTED),
}


def test_libraries_are_loadable_in_every_image(driver: Driver, gpu_namespace: Namespace) -> None:
    for name, (image, security) in _KINDS.items():
        user = pod(name, "dlopen-check", *_LIBRARIES, image=image, claims=use(name))
        user["spec"]["containers"][0]["securityContext"] = security
        gpu_namespace.apply(claim(name), user)
    for name in _KINDS:
        gpu_namespace.wait_pod(name, "Succeeded")
        loaded = dict(line.split() for line in gpu_namespace.logs(name).splitlines())
        assert set(loaded) == set(_LIBRARIES), name
        for library in _LIBRARIES[:2]:
            found = driver.node.root / loaded[library].lstrip("/")
            assert found.samefile(driver.node.root / f"usr/lib/x86_64-linux-gnu/{library}"), name


def test_an_image_without_any_library_runs(driver: Driver, gpu_namespace: Namespace) -> None:
    gpu_namespace.apply(claim("static"))
    command = ("nvidia-smi", "-L")
    gpu_namespace.run(pod("user", *command, claims=use("static")), "Succeeded")
    assert gpu_namespace.logs("user").count("GPU 0: ") == 1
