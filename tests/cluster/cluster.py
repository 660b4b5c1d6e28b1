"""The cluster as tests see it: boot it, use it, stop and start its parts."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.cluster import access
from tests.cluster.api import Api, Object
from tests.cluster.cache import HarnessError, run
from tests.cluster.controlplane import ControlPlane
from tests.cluster.mounts import STATE
from tests.cluster.node import CDI_FOLDERS, KUBELET_ROOT, Node
from tests.cluster.pki import Authority
from tests.cluster.process import HostProcess
from tests.cluster.settings import NODE, Settings

_READY_SECONDS = 180.0
_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}"
_TOKEN_SECONDS = 2 * 3600
_KUBECTL_SECONDS = 120


class Cluster:
    """A control plane and one node, all processes of the sandbox that this process runs in."""

    node_name = NODE
    kubelet_root = KUBELET_ROOT
    cdi_folders = CDI_FOLDERS
    state = STATE

    def __init__(self, settings: Settings) -> None:
        """Make certificates and configuration; nothing runs before `boot`."""
        self.settings = settings
        self.authority = Authority(STATE / "pki", settings.package("openssl") / "usr/bin/openssl")
        self.authority.create()
        self._admin = self.authority.client("admin", "admin", "system:masters")
        self.kubeconfig = access.with_certificate(
            STATE / "admin.kubeconfig", self.authority, self._admin
        )
        self.control_plane = ControlPlane(settings, self.authority, self._admin)
        self.node = Node(settings, self.authority)
        self._processes: list[HostProcess] = []

    @property
    def api(self) -> Api:
        """A client of the API server with all rights."""
        return self.control_plane.api

    def boot(self, say: Callable[[str], None]) -> None:
        """Start everything and return when the node is Ready; `say` is told of each step."""
        self.node.start_containerd()
        self.control_plane.start()
        access.let_nodes_read_claims(self.api)
        say(f"API server {self.settings.version} is ready")
        self.node.load_images()
        say(f"{len(self.settings.images)} images are loaded")
        self.node.kubelet.start()
        self.wait_node_ready()
        self.api.wait("/api/v1/namespaces/default/serviceaccounts/default", bool, "there")
        say(f"node {NODE} is Ready")

    def wait_node_ready(self, timeout: float = _READY_SECONDS) -> None:
        """Wait until the node is Ready; fails at once if the kubelet has ended."""
        self.node.kubelet.check()
        try:
            self.api.wait(f"/api/v1/nodes/{NODE}", _is_ready, "Ready", timeout)
        except HarnessError as error:
            raise HarnessError(f"{error}\n{self.node.kubelet.tail()}") from None

    def check(self) -> None:
        """Fail at once with the end of its log if a part of the cluster does not run."""
        for process in self._parts():
            process.check()

    def close(self) -> None:
        """Stop what was started; the sandbox's end takes the rest."""
        for process in [*reversed(self._processes), *self._parts()]:
            if process.running:
                process.kill()

    def _parts(self) -> list[HostProcess]:
        plane, node = self.control_plane, self.node
        outer = [node.kubelet, node.containerd, plane.scheduler, plane.controller_manager]
        return [*outer, plane.api_server, plane.etcd]

    # -- objects ---------------------------------------------------------------------------------

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl with all rights and return what it prints; fails with what it complains."""
        base = [self.settings.program("kubectl"), f"--kubeconfig={self.kubeconfig}"]
        done = subprocess.run(
            [*base, f"--cache-dir={STATE}/kubectl", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_KUBECTL_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise HarnessError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *what: Path | Object, namespace: str = "") -> None:
        """Apply manifests (files, folders, objects) in a namespace, or in those that they name."""
        objects = [item for item in what if not isinstance(item, Path)]
        files = [f"--filename={item}" for item in what if isinstance(item, Path)]
        where = [f"--namespace={namespace}"] if namespace else []
        if files:
            self.kubectl("apply", *where, *files)
        if objects:
            document = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
            self.kubectl("apply", *where, "--filename=-", stdin=document)

    def audit_events(self) -> Iterator[Object]:
        """Read the API server's audit log: who wrote which object, in order."""
        with self.control_plane.audit_log.open() as log:
            for line in log:
                if line.endswith("\n"):
                    event: Object = json.loads(line)
                    yield event

    def validate_cdi(self, *specs: Path) -> None:
        """Check CDI spec files with the CDI project's own library; fails with its reasons."""
        run([self.settings.program("cdi-validate"), *specs], what="cdi-validate")

    # -- parts -----------------------------------------------------------------------------------

    def stop_api_server(self) -> None:
        """Kill the API server (asked to end, it waits a minute for its watchers); Pods run on."""
        self.control_plane.api_server.kill()

    def start_api_server(self) -> None:
        """Start the API server again; returns when it is ready."""
        self.control_plane.api_server.start()
        self.control_plane.wait_ready()

    def restart_kubelet(self) -> None:
        """Restart the kubelet; returns when the new one has renewed its lease and is Ready."""
        kubelet = self.node.kubelet
        if kubelet.running:
            kubelet.stop()
        before = _renewed(self.api.find(_LEASE))
        kubelet.start()
        self.api.wait(_LEASE, lambda lease: _renewed(lease) > before, "renewed", _READY_SECONDS)
        self.wait_node_ready()

    def host_process(
        self, name: str, argv: Sequence[str | Path], env: Mapping[str, str] | None = None
    ) -> HostProcess:
        """Build a program that runs on the node beside the kubelet; the caller starts it.

        Its log is kept with the cluster's; `close` ends it if it still runs.
        """
        process = HostProcess(name, argv, STATE / "logs" / f"{name}.log", env)
        self._processes.append(process)
        return process

    def folder(self, name: str) -> Path:
        """Make a folder for files of the node; device nodes may be made in it."""
        path = STATE / name
        path.mkdir()
        return path

    # -- identities ------------------------------------------------------------------------------

    def service_account(self, namespace: str, name: str) -> Path:
        """Return a kubeconfig that acts as a ServiceAccount on this node, as a Pod here would.

        The ServiceAccount and its rights must have been applied. `renew_token` replaces its token.
        """
        path = STATE / f"{namespace}-{name}.kubeconfig"
        self.renew_token(namespace, name)
        return access.with_token(path, self.authority, self._token_file(namespace, name))

    def renew_token(self, namespace: str, name: str, seconds: int = _TOKEN_SECONDS) -> None:
        """Write a new token bound to the node for a ServiceAccount, replacing the file."""
        node = self.api.get(f"/api/v1/nodes/{NODE}")["metadata"]
        bound = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["uid"]}
        answer = self.api.create(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            {"spec": {"boundObjectRef": bound, "expirationSeconds": seconds}},
        )
        file = self._token_file(namespace, name)
        new = file.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(answer["status"]["token"])
        new.replace(file)

    def _token_file(self, namespace: str, name: str) -> Path:
        return STATE / f"{namespace}-{name}.token"


def _is_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _renewed(lease: Object) -> str:
    """Return when the kubelet renewed its lease, "" for none: it is made some time after boot."""
    return str(lease["spec"]["renewTime"]) if lease else ""
