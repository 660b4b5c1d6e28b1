"""Kubeconfig files for the cluster's users."""

import json
from pathlib import Path
from typing import Any

from tests.cluster.api import Api
from tests.cluster.pki import Authority, Identity
from tests.cluster.sandbox import NODE_ADDRESS

API_ADDRESS = (NODE_ADDRESS, 443)
"""Where the API server listens; Pods reach it at its Service address and the same port."""

_RBAC = "rbac.authorization.k8s.io"


def with_certificate(path: Path, authority: Authority, user: Identity) -> Path:
    """Write a kubeconfig for a user who shows a client certificate."""
    shown = {"client-certificate": str(user.certificate), "client-key": str(user.key)}
    return _write(path, authority, shown)


def with_token(path: Path, authority: Authority, token: Path) -> Path:
    """Write a kubeconfig for a user whose token stands in a file, which may be renewed."""
    return _write(path, authority, {"tokenFile": str(token)})


def let_nodes_read_claims(api: Api) -> None:
    """Spare the tests a race of Kubernetes' own, by RBAC beside the Node authorizer.

    The kubelet may ask for a new Pod's claim before the API server's Node authorizer has seen the
    Pod ("no relationship found between node and this object"); it asks again after 60 to 90 s.
    """
    name = {"name": "test:nodes-read-claims"}
    rule = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]}
    nodes = {"apiGroup": _RBAC, "kind": "Group", "name": "system:nodes"}
    role = {"apiGroup": _RBAC, "kind": "ClusterRole", **name}
    api.create(f"/apis/{_RBAC}/v1/clusterroles", {"metadata": name, "rules": [rule]})
    binding = {"metadata": name, "roleRef": role, "subjects": [nodes]}
    api.create(f"/apis/{_RBAC}/v1/clusterrolebindings", binding)


def _write(path: Path, authority: Authority, user: dict[str, Any]) -> Path:
    server = f"https://{API_ADDRESS[0]}:{API_ADDRESS[1]}"
    cluster = {"server": server, "certificate-authority": str(authority.certificate)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
        "current-context": "test",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1))
    return path
