"""One plugin as the kubelet stand-in sees it: how it introduces itself, and calls to it."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

from dra_driver.model import ClaimRef
from dra_driver.rpc import dra_v1_pb2, registration_v1_pb2
from dra_driver.rpc.dra_v1_pb2_grpc import DRAPluginStub
from dra_driver.rpc.registration_v1_pb2_grpc import RegistrationStub
from dra_driver.simulator.kubelet_health import HealthWatch

_INFO_SECONDS: Final = 1.0
_NOTIFY_SECONDS: Final = 5.0
_UNWATCH_SECONDS: Final = 30.0  # of a busy machine
_DRA: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
_RECONNECT: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
)

_CLOSED: Final = "rpc error: code = UNAVAILABLE desc = the connection is closing"


class CallFailed(Exception):
    """A call that the kubelet would report on the Pod, in one line."""


class RegistrationFailed(CallFailed):
    """A plugin that the kubelet would not take."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a plugin says of itself, and how long it took to say it."""

    kind: str
    driver: str
    endpoint: Path
    versions: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Device:
    """One device of an answered Prepare."""

    requests: tuple[str, ...]
    pool: str
    name: str
    cdi_ids: tuple[str, ...]
    share_id: str | None


def introduce(socket: Path) -> Introduction:
    """Ask a plugin who it is. Raises RegistrationFailed when it does not answer in a second."""
    begin = time.monotonic()
    with _registration_channel(socket) as channel:
        try:
            info = RegistrationStub(channel).GetInfo(
                registration_v1_pb2.InfoRequest(), timeout=_INFO_SECONDS
            )
        except grpc.RpcError as error:
            raise RegistrationFailed(f"GetInfo: {words(error)}") from error
    endpoint = Path(info.endpoint or socket)
    versions = tuple(info.supported_versions)
    return Introduction(info.type, info.name, endpoint, versions, time.monotonic() - begin)


def refusal(introduction: Introduction) -> str:
    """Why the kubelet would not take such a plugin; empty when it would."""
    if introduction.kind != "DRAPlugin":
        return f"plugin type {introduction.kind!r} is not DRAPlugin"
    if not _NAME.fullmatch(introduction.driver):
        return f"{introduction.driver!r} is not a driver name"
    if not introduction.endpoint.is_absolute():
        return f"endpoint {introduction.endpoint} is not an absolute path"
    if not set(introduction.versions) & set(_DRA):
        return f"none of the versions {list(introduction.versions)} is known"
    return ""


def notify(socket: Path, error: str) -> None:
    """Tell a plugin whether it is registered; empty means yes. Raises RegistrationFailed."""
    status = registration_v1_pb2.RegistrationStatus(plugin_registered=not error, error=error)
    with _registration_channel(socket) as channel:
        try:
            RegistrationStub(channel).NotifyRegistrationStatus(status, timeout=_NOTIFY_SECONDS)
        except grpc.RpcError as failure:
            raise RegistrationFailed(f"NotifyRegistrationStatus: {words(failure)}") from failure


class PluginConnection:
    """The kubelet's one connection to a registered plugin, with its health stream."""

    def __init__(self, introduction: Introduction, minor: int) -> None:
        """Connect as kubelet 1.`minor`; `close` is due in the end."""
        self.introduction = introduction
        self._state = grpc.ChannelConnectivity.IDLE
        address = f"unix:{quote(str(introduction.endpoint))}"
        self._channel = grpc.insecure_channel(address, _RECONNECT)
        self._channel.subscribe(self._note, try_to_connect=True)
        self.health = HealthWatch(self._channel, introduction.versions, minor)

    @property
    def connected(self) -> bool:
        """Whether the plugin is there now."""
        return self._state is grpc.ChannelConnectivity.READY

    def close(self) -> None:
        """Hang up."""
        unwatch(self._channel, self._note)
        self.health.close()

    def prepare(self, refs: Sequence[ClaimRef], timeout: float) -> dict[str, tuple[Device, ...]]:
        """Prepare the claims of one Pod. Raises CallFailed with what the Pod's event would say."""
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=_claims(refs))
        try:
            answer = DRAPluginStub(self._channel).NodePrepareResources(request, timeout=timeout)
        except ValueError as error:  # closed by another thread a moment ago
            raise CallFailed(_CLOSED) from error
        except grpc.RpcError as error:
            raise CallFailed(f"NodePrepareResources: {words(error)}") from error
        errors = {uid: claim.error for uid, claim in answer.claims.items()}
        _check(refs, errors, "NodePrepareResources")
        return {
            uid: tuple(_device(device) for device in claim.devices)
            for uid, claim in answer.claims.items()
        }

    def unprepare(self, refs: Sequence[ClaimRef], timeout: float) -> None:
        """Unprepare claims. Raises CallFailed."""
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=_claims(refs))
        try:
            answer = DRAPluginStub(self._channel).NodeUnprepareResources(request, timeout=timeout)
        except ValueError as error:  # closed by another thread a moment ago
            raise CallFailed(_CLOSED) from error
        except grpc.RpcError as error:
            raise CallFailed(f"NodeUnprepareResources: {words(error)}") from error
        errors = {uid: claim.error for uid, claim in answer.claims.items()}
        _check(refs, errors, "NodeUnprepareResources")

    def _note(self, state: grpc.ChannelConnectivity) -> None:
        self._state = state


def unwatch(channel: grpc.Channel, listener: Callable[[grpc.ChannelConnectivity], None]) -> None:
    """Unsubscribe from a channel, of which it was the only listener, so that it may be closed.

    The thread of gRPC that watches the channel looks for listeners every 0.2 s; until it has ended
    it would raise on a channel that is closed (grpc/_channel.py, `_poll_connectivity`).
    """
    channel.unsubscribe(listener)
    watched = getattr(channel, "_connectivity_state", None)
    deadline = time.monotonic() + _UNWATCH_SECONDS
    while getattr(watched, "polling", False) and time.monotonic() < deadline:
        time.sleep(0.005)


def words(error: grpc.RpcError) -> str:
    """Say a gRPC error as Go does: code and details."""
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if callable(code) and callable(details):  # what a call raises is also a grpc.Call
        return f"rpc error: code = {code().name} desc = {details()}"
    return str(error)


def _registration_channel(socket: Path) -> grpc.Channel:
    """Dial as grpc-go does with a dialer of its own: the path becomes the :authority."""
    options = (("grpc.default_authority", quote(str(socket), safe="")), *_RECONNECT)
    return grpc.insecure_channel(f"unix:{quote(str(socket))}", options)


def _claims(refs: Sequence[ClaimRef]) -> list[dra_v1_pb2.Claim]:
    return [dra_v1_pb2.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid) for ref in refs]


def _check(refs: Sequence[ClaimRef], errors: Mapping[str, str], call: str) -> None:
    """Refuse an answer for other claims than those asked for, and report the first error in it."""
    names = {ref.uid: ref.name for ref in refs}
    for uid, error in errors.items():
        if uid not in names:
            raise CallFailed(f"{call} returned a result for unknown claim UID {uid}")
        if error:
            raise CallFailed(f"{call} failed for ResourceClaim {names[uid]}: {error}")
    missing = len(names) - len(errors)
    if missing:
        raise CallFailed(f"{call} skipped {missing} ResourceClaims")


def _device(device: dra_v1_pb2.Device) -> Device:
    """Read one device, and refuse what the kubelet would take silently and not use."""
    found = Device(
        tuple(device.request_names),
        device.pool_name,
        device.device_name,
        tuple(device.cdi_device_ids),
        device.share_id if device.HasField("share_id") else None,
    )
    if not found.pool or not found.name:
        raise CallFailed(f"a device without pool or name: {found}")
    if any("/" in request for request in found.requests):
        raise CallFailed(f"no container asks for a request with a slash: {found}")
    return found
