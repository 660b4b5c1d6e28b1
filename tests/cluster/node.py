"""containerd and the kubelet of the cluster's one node."""

import json
import os
import subprocess
from pathlib import Path

from tests.cluster import access, images
from tests.cluster.cache import run
from tests.cluster.mounts import STATE
from tests.cluster.pki import Authority
from tests.cluster.process import HostProcess
from tests.cluster.sandbox import NODE_ADDRESS
from tests.cluster.settings import NODE, Settings

KUBELET_ROOT = Path("/var/lib/kubelet")
CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
CONTAINERD_SOCKET = STATE / "containerd.sock"

_BRIDGE = {"type": "bridge", "bridge": "cluster0", "isDefaultGateway": True}
_POD_NETWORK = "10.88.0.0/16"


class Node:
    """The node's two programs; each can be stopped and started by a test."""

    def __init__(self, settings: Settings, authority: Authority) -> None:
        """Build them; nothing runs before `start_containerd`."""
        self._settings = settings
        self._authority = authority
        self.containerd = self._containerd()
        self.kubelet = self._kubelet()

    def start_containerd(self) -> None:
        """Start containerd; it needs some seconds until images can be loaded."""
        self.containerd.start()

    def load_images(self) -> None:
        """Wait for containerd and load the images into it."""
        self.containerd.wait_for_socket(CONTAINERD_SOCKET)
        for archive in self._settings.images:
            self.ctr("images", "import", "--local", archive)

    def ctr(self, *arguments: str) -> str:
        """Run containerd's client on the kubelet's namespace and return its output."""
        argv = [self._settings.program("ctr"), "--address", os.fspath(CONTAINERD_SOCKET)]
        return run([*argv, "--namespace", "k8s.io", *arguments], what=f"ctr {arguments[0]}")

    def exec(
        self, container: str, argv: list[str], exec_id: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in a container, by the container's id, without kubelet or API server.

        Both of its outputs come as one. The shim writes them to a file: by the pipes that ctr
        takes otherwise they are lost when the program ends before ctr has opened them.
        """
        output = STATE / "logs" / exec_id
        ctr = [self._settings.program("ctr"), "--address", os.fspath(CONTAINERD_SOCKET)]
        ctr += ["--namespace", "k8s.io", "tasks", "exec", "--exec-id", exec_id]
        ctr += ["--log-uri", output.as_uri(), container]
        done = subprocess.run(
            [*ctr, *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        said = output.read_text() if output.exists() else ""
        output.unlink(missing_ok=True)
        return subprocess.CompletedProcess(argv, done.returncode, said, done.stderr)

    def _containerd(self) -> HostProcess:
        programs = Path(self._settings.program("containerd")).parent
        config = STATE / "containerd.toml"
        config.write_text(self._containerd_config())
        for folder in ("cni", "containerd"):
            (STATE / folder).mkdir()
        ipam = {"type": "host-local", "subnet": _POD_NETWORK, "dataDir": f"{STATE}/cni-addresses"}
        plugins = [{**_BRIDGE, "ipam": ipam}, {"type": "loopback"}]
        network = {"cniVersion": "1.0.0", "name": "cluster", "plugins": plugins}
        (STATE / "cni" / "10-cluster.conflist").write_text(json.dumps(network))
        libraries = self._settings.package("libseccomp2") / "usr" / "lib" / "x86_64-linux-gnu"
        runc = self._settings.package("runc") / "usr" / "sbin"
        env = {
            "PATH": f"{programs}:{runc}:{os.environ['PATH']}",  # where it looks for shim and runc
            "LD_LIBRARY_PATH": os.fspath(libraries),  # for runc
        }
        argv = [self._settings.program("containerd"), f"--config={config}"]
        return HostProcess("containerd", argv, STATE / "logs" / "containerd.log", env)

    def _containerd_config(self) -> str:
        cdi = ", ".join(f'"{folder}"' for folder in CDI_FOLDERS)
        cni = self._settings.package("containernetworking-plugins") / "usr" / "lib" / "cni"
        return f"""
version = 3
root = "{STATE}/containerd/root"
state = "{STATE}/containerd/state"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{STATE}/containerd/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{images.PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = [{cdi}]
  disable_apparmor = true  # profiles would stay loaded on the machine
  restrict_oom_score_adj = true  # CAP_SYS_RESOURCE may be missing
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{cni}"]
    conf_dir = "{STATE}/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""

    def _kubelet(self) -> HostProcess:
        user = self._authority.client("kubelet", f"system:node:{NODE}", "system:nodes")
        kubeconfig = access.with_certificate(STATE / "kubelet.kubeconfig", self._authority, user)
        config = STATE / "kubelet.json"
        config.write_text(json.dumps(self._kubelet_config(), indent=1))
        argv = [
            self._settings.program("kubelet"),
            f"--config={config}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={NODE}",
            f"--node-ip={NODE_ADDRESS}",
            f"--root-dir={KUBELET_ROOT}",
        ]
        return HostProcess("kubelet", argv, STATE / "logs" / "kubelet.log")

    def _kubelet_config(self) -> dict[str, object]:
        resolver = STATE / "resolv.conf"
        resolver.touch()
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": os.fspath(self._authority.certificate)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "evictionHard": {
                "imagefs.available": "1%",
                "memory.available": "50Mi",
                "nodefs.available": "1%",
            },
            "failCgroupV1": False,
            "failSwapOn": False,
            "featureGates": dict(self._settings.feature_gates),
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": False,
            "podLogsDir": f"{STATE}/logs/pods",
            "resolvConf": os.fspath(resolver),
            "syncFrequency": "5s",  # when a failed Prepare is tried again; its default is a minute
            "volumePluginDir": f"{STATE}/volume-plugins",
        }
