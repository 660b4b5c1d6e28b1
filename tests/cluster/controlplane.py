"""etcd, API server, controller manager and scheduler as host processes."""

import json
import time
from pathlib import Path

from tests.cluster import access
from tests.cluster.api import Api, ApiError
from tests.cluster.cache import HarnessError
from tests.cluster.pki import Authority, Identity
from tests.cluster.process import HostProcess
from tests.cluster.sandbox import NODE_ADDRESS
from tests.cluster.settings import Settings

_ETCD = "http://127.0.0.1:2379"
_READY_SECONDS = 180.0
_DRIVER_NAMESPACE = "gpu-dra-driver"  # of deploy/manifests/rbac.yaml
_AUDITED_GROUPS = ("resource.k8s.io", "events.k8s.io", "")


class ControlPlane:
    """The four programs; each can be stopped and started by a test."""

    def __init__(self, settings: Settings, authority: Authority, admin: Identity) -> None:
        """Build them; nothing runs before `start`."""
        self._settings = settings
        self._authority = authority
        self._admin = admin
        self._state = Path(settings.state)
        self.audit_log = self._state / "logs" / "audit.jsonl"
        self.api = Api(access.API_ADDRESS, authority, admin)
        self.etcd = self._process("etcd", self._etcd_flags())
        self.api_server = self._process("kube-apiserver", self._api_server_flags())
        self.scheduler = self._process("kube-scheduler", self._client_flags("kube-scheduler"))
        self.controller_manager = self._process(
            "kube-controller-manager", self._controller_manager_flags()
        )

    def start(self) -> None:
        """Start all four; returns when the API server is ready."""
        self.etcd.start()
        self.api_server.start()
        self.wait_ready()
        self.scheduler.start()
        self.controller_manager.start()

    def wait_ready(self) -> None:
        """Wait until the API server says that it is ready."""
        deadline = time.monotonic() + _READY_SECONDS
        reason = ""
        while time.monotonic() < deadline:
            self.etcd.check()
            self.api_server.check()
            try:
                self.api.text("/readyz")
            except (OSError, ApiError) as error:
                reason = str(error)
            else:
                return
            time.sleep(0.1)
        raise HarnessError(f"API server not ready after {_READY_SECONDS:.0f} s: {reason}")

    def _process(self, name: str, flags: list[str]) -> HostProcess:
        log = self._state / "logs" / f"{name}.log"
        return HostProcess(name, [self._settings.program(name), *flags], log)

    def _etcd_flags(self) -> list[str]:
        return [
            f"--data-dir={self._state}/etcd",
            f"--listen-client-urls={_ETCD}",
            f"--advertise-client-urls={_ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _api_server_flags(self) -> list[str]:
        pki = self._authority.folder
        server = self._authority.server("kube-apiserver")
        issuer = "https://kubernetes.default.svc"
        runtime = self._settings.runtime_config
        return [
            f"--etcd-servers={_ETCD}",
            f"--secure-port={access.API_ADDRESS[1]}",
            f"--advertise-address={NODE_ADDRESS}",
            "--endpoint-reconciler-type=none",  # the one node has the Service's address itself
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--tls-cert-file={server.certificate}",
            f"--tls-private-key-file={server.key}",
            f"--client-ca-file={self._authority.certificate}",
            f"--kubelet-client-certificate={self._admin.certificate}",
            f"--kubelet-client-key={self._admin.key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged",
            f"--service-account-issuer={issuer}",
            f"--service-account-key-file={pki}/tokens.pub",
            f"--service-account-signing-key-file={pki}/tokens.key",
            f"--audit-policy-file={self._write_audit_policy()}",
            f"--audit-log-path={self.audit_log}",
            *([f"--runtime-config={','.join(runtime)}"] if runtime else []),
            *self._settings.gates_flag,
        ]

    def _controller_manager_flags(self) -> list[str]:
        return [
            *self._client_flags("kube-controller-manager"),
            "--kube-api-qps=200",  # its default makes it start for several seconds
            "--kube-api-burst=400",
            "--use-service-account-credentials",
            f"--service-account-private-key-file={self._authority.folder}/tokens.key",
            f"--root-ca-file={self._authority.certificate}",
        ]

    def _client_flags(self, name: str) -> list[str]:
        user = self._authority.client(name, f"system:{name}", f"system:{name}")
        kubeconfig = access.with_certificate(
            self._state / f"{name}.kubeconfig", self._authority, user
        )
        flags = [f"--kubeconfig={kubeconfig}", "--leader-elect=false"]
        return [*flags, *self._settings.gates_flag]

    def _write_audit_policy(self) -> Path:
        """Log who writes what of the kinds that drivers deal with, and all that our driver asks.

        Bodies are left out.
        """
        path = self._state / "audit-policy.json"
        groups = [{"group": group} for group in _AUDITED_GROUPS]
        writes = ["create", "update", "patch", "delete", "deletecollection"]
        our_group = f"system:serviceaccounts:{_DRIVER_NAMESPACE}"
        rules = [
            {"level": "None", "nonResourceURLs": ["*"]},
            {"level": "Metadata", "userGroups": [our_group]},
            {"level": "Metadata", "verbs": writes, "resources": groups},
            {"level": "None"},
        ]
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": rules,
        }
        path.write_text(json.dumps(policy))
        return path
