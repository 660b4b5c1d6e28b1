"""The cluster's programs, built from the Go modules in `tools/` into the cache."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.cluster.cache import HarnessError, artifact, run, say
from tests.cluster.golang import Version, go_for, parse_version

MODULES = Path(__file__).parent / "tools"
DEFAULT_VERSION = "1.37.2"

_ENVIRONMENT = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
_CONTAINERD = tuple(
    f"github.com/containerd/containerd/v2/cmd/{name}"
    for name in ("containerd", "containerd-shim-runc-v2", "ctr")
)
_NODE_AND_CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")


@dataclass(frozen=True, slots=True)
class Tool:
    """Programs built together: `packages` of the Go module in `tools/<module>`."""

    name: str
    module: str
    packages: tuple[str, ...]
    linker_flags: str = "-s -w"

    @property
    def folder(self) -> Path:
        """The folder of the Go module."""
        return MODULES / self.module

    @property
    def command(self) -> tuple[str, ...]:
        """The arguments of `go` that build it, without the folder to write to."""
        fixed = ("build", "-trimpath", "-buildvcs=false", "-mod=readonly")
        return (*fixed, "-ldflags", self.linker_flags)

    @property
    def key(self) -> str:
        """A hash of all that decides what comes out, but for the toolchain."""
        digest = hashlib.sha256(repr((self.command, self.packages, _ENVIRONMENT)).encode())
        for path in sorted(self.folder.iterdir()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()


HELM = Tool("helm", "helm", ("helm.sh/helm/v4/cmd/helm",))


def kubernetes_versions() -> tuple[str, ...]:
    """List the Kubernetes versions that there are tool modules for, newest first."""
    found = (path.name.removeprefix("k8s-") for path in MODULES.glob("k8s-*"))
    return tuple(sorted(found, key=parse_version, reverse=True))


def tools_for(version: str) -> tuple[Tool, ...]:
    """List what a cluster of this Kubernetes version is made of; kubectl is the same for all."""
    if version not in kubernetes_versions():
        known = ", ".join(kubernetes_versions())
        raise HarnessError(f"no tool module for Kubernetes {version}; there is {known}")
    return (
        _kubernetes(f"k8s-{version}", version, _NODE_AND_CONTROL_PLANE),
        _kubernetes("kubectl", DEFAULT_VERSION, ("kubectl",)),
        Tool("etcd", "etcd", ("go.etcd.io/etcd/server/v3",)),
        Tool("containerd", "containerd", _CONTAINERD),
        Tool("cdi-validate", "cdi-validate", (".",)),
        HELM,
    )


def build(version: str) -> Mapping[str, Path]:
    """Build what the cache lacks and return the programs of the version's cluster by name."""
    programs: dict[str, Path] = {}
    for tool in tools_for(version):
        programs.update(build_tool(tool))
    return programs


def build_tool(tool: Tool) -> Mapping[str, Path]:
    """Build one of them if the cache lacks it; gives its programs by name."""
    folder = artifact(f"bin/{tool.name}", tool.key, partial(_build, tool))
    return {path.name: path for path in folder.iterdir() if os.access(path, os.X_OK)}


def _kubernetes(name: str, version: str, commands: tuple[str, ...]) -> Tool:
    """Without the version flags the programs call themselves v0.0.0, and version checks lie."""
    major, minor, _ = version.split(".")
    flags = {
        "k8s.io/component-base/version.gitVersion": f"v{version}",
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": f"v{version}",
    }
    linker_flags = " ".join(["-s -w", *(f"-X {name}={value}" for name, value in flags.items())])
    packages = tuple(f"k8s.io/kubernetes/cmd/{command}" for command in commands)
    return Tool(name, f"k8s-{version}", packages, linker_flags)


def _build(tool: Tool, into: Path) -> None:
    go = go_for(_needed_go(tool.folder / "go.mod"))
    say(f"{tool.name}: building into the cache (the first time this takes minutes)")
    single = tool.name if len(tool.packages) == 1 else ""  # etcd's package is called `server`
    run(
        [go, *tool.command, "-o", f"{into}/{single}", *tool.packages],
        what=f"build of {tool.name}",
        cwd=tool.folder,
        env=_ENVIRONMENT,
    )


def _needed_go(go_mod: Path) -> Version:
    for line in go_mod.read_text().splitlines():
        if line.startswith("go "):
            return parse_version(line.removeprefix("go ").strip())
    raise HarnessError(f"{go_mod.parent.name}/go.mod has no `go` line")
