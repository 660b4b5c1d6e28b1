"""Who sees which GPUs: what a container may see and open, and what others may not."""

from pathlib import Path

from tests.cluster import images, view
from tests.cluster.api import Object
from tests.cluster.claims import GPU_CLASS, MIG_CLASS, by_uuid, claim, use
from tests.cluster.driver import Driver, eventually
from tests.cluster.workload import Namespace, pod

_MAJOR = 195  # NVIDIA's, Linux Documentation/admin-guide/devices.txt


def test_two_claims_of_a_container_bring_the_common_edits_once(
    driver: Driver, gpu_namespace: Namespace
) -> None:
    gpu_namespace.apply(claim("whole"), claim("part", MIG_CLASS))
    gpu_namespace.run(pod("user", image=images.DEBIAN, claims=use("whole", "part")))
    names = view.devices_of(gpu_namespace, "user")
    assert len(names) == 2
    assert view.seen(gpu_namespace, "user") == view.expected(driver.node, names)
    environment = gpu_namespace.exec("user", ["cat", "/proc/1/environ"]).split("\0")
    assert [item for item in environment if item.startswith("NVIDIA_")] == [
        "NVIDIA_VISIBLE_DEVICES=void"
    ]
    mounts = [
        line.split()[4]
        for line in gpu_namespace.exec("user", ["cat", "/proc/1/mountinfo"]).splitlines()
    ]
    libraries = [path for path in mounts if Path(path).name.startswith("libcuda.so.")]
    assert len(libraries) == 1
    assert [path for path in set(mounts) if mounts.count(path) > 1] == []


def test_a_restarted_container_has_its_devices_again(
    driver: Driver, gpu_namespace: Namespace
) -> None:
    gpu_namespace.apply(claim("kept"))
    command = ("sh", "-c", "until [ -e /tmp/end ]; do sleep 0.1; done")
    gpu_namespace.run(pod("user", *command, claims=use("kept"), restartPolicy="Always"))
    before = gpu_namespace.container_id("user")
    wanted = view.expected(driver.node, view.devices_of(gpu_namespace, "user"))
    assert view.seen(gpu_namespace, "user") == wanted
    gpu_namespace.exec("user", ["touch", "/tmp/end"])

    def restarted() -> bool:
        (status,) = gpu_namespace.pod("user")["status"]["containerStatuses"]
        return bool(status["restartCount"] == 1 and "running" in status["state"])

    eventually(restarted, "the container runs again")
    assert gpu_namespace.container_id("user") != before
    assert view.seen(gpu_namespace, "user") == wanted


def test_what_is_outside_of_the_claim_sees_and_opens_no_gpu(
    driver: Driver, gpu_namespace: Namespace
) -> None:
    gpu = driver.node.gpu(1)
    other = driver.node.gpu(2)["minor"]
    gpu_namespace.apply(claim("mine", selector=by_uuid(gpu["uuid"])))
    user = pod("user", claims=use("mine"))
    inside = user["spec"]["containers"][0]
    beside = {**inside, "name": "beside", "resources": {}}
    user["spec"]["containers"].append(beside)
    outside = pod("outside")
    outside["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    gpu_namespace.apply(outside)
    gpu_namespace.run(user)
    gpu_namespace.wait_pod("outside", "Running")

    nothing = view.View(frozenset(), ())
    for where in (("user", "beside"), ("outside", "main")):
        assert view.nodes_seen(gpu_namespace, *where) == nothing
        assert "not permitted" in _open(gpu_namespace, gpu["minor"], *where)
    assert view.seen(gpu_namespace, "user") == view.expected(
        driver.node, view.devices_of(gpu_namespace, "user")
    )
    # Nothing is behind the simulator's nodes: "no such device" is what a granted one answers.
    assert "o such device" in _open(gpu_namespace, gpu["minor"], "user", "main")
    assert "not permitted" in _open(gpu_namespace, other, "user", "main")


def test_a_claim_lives_until_its_last_pod(driver: Driver, gpu_namespace: Namespace) -> None:
    gpu_namespace.apply(claim("shared"))
    for name in ("first", "second"):
        gpu_namespace.apply(pod(name, claims=use("shared")))
    for name in ("first", "second"):
        gpu_namespace.wait_pod(name, "Running")
    wanted = view.expected(driver.node, view.devices_of(gpu_namespace, "first"))
    assert view.seen(gpu_namespace, "first") == view.seen(gpu_namespace, "second") == wanted
    held = driver.leftovers()
    gpu_namespace.delete_pod("first")
    assert driver.leftovers() == held
    gpu_namespace.run(pod("third", claims=use("shared")))
    assert view.seen(gpu_namespace, "second") == view.seen(gpu_namespace, "third") == wanted


def test_admin_access_sees_what_others_hold(driver: Driver) -> None:
    admin: Object = {"allocationMode": "All", "adminAccess": True}
    with driver.namespace({"resource.kubernetes.io/admin-access": "true"}) as namespace:
        namespace.apply(claim("held"), pod("holder", claims=use("held")))
        namespace.wait_pod("holder", "Running")
        namespace.apply(claim("all", GPU_CLASS, **admin))
        namespace.run(pod("watcher", claims=use("all")))
        names = view.allocated(namespace.claim("all"))
        assert set(view.devices_of(namespace, "holder")) < set(names)
        whole = {
            f"gpu-{gpu['minor']}" for gpu in driver.node.show()["gpus"] if not gpu["instances"]
        }
        assert set(names) == whole
        assert view.seen(namespace, "watcher") == view.expected(driver.node, names)
        namespace.delete_pod("watcher")
        assert view.seen(namespace, "holder") == view.expected(
            driver.node, view.devices_of(namespace, "holder")
        )


def _open(namespace: Namespace, minor: int, pod_name: str, container: str) -> str:
    """Let a container make a GPU's node itself and open it; gives what the kernel says."""
    script = f"mknod /tmp/gpu{minor} c {_MAJOR} {minor} && (: < /tmp/gpu{minor}) 2>&1 || true"
    return namespace.exec(pod_name, ["sh", "-c", script], container)
