"""What the kubelet says about containers and their claims, over its podresources socket."""

from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

from dra_driver.model.errors import TryAgain
from dra_driver.rpc import podresources_v1_pb2 as messages
from dra_driver.rpc import podresources_v1_pb2_grpc as services

_SECONDS: Final = 10.0
_MAX_BYTES: Final = 16 * 1024 * 1024  # the kubelet's own limit for this answer


def claims_in_use(socket: Path) -> dict[tuple[str, str], frozenset[str]]:
    """CDI ids by namespace and name of every claim that a container of an active Pod has.

    Raises TryAgain when the kubelet does not answer: nothing is known then.
    """
    if not socket.exists():
        raise TryAgain(f"the kubelet has no socket {socket}, or it is not mounted here")
    options = [("grpc.max_receive_message_length", _MAX_BYTES)]
    with grpc.insecure_channel(f"unix:{quote(str(socket))}", options=options) as channel:
        lister = services.PodResourcesListerStub(channel)
        try:
            answer = lister.List(messages.ListPodResourcesRequest(), timeout=_SECONDS)
        except grpc.RpcError as error:
            details = getattr(error, "details", None)  # what a call raises is also a grpc.Call
            words = details() if callable(details) else error
            raise TryAgain(f"the kubelet does not answer on {socket}: {words}") from error
    found: dict[tuple[str, str], frozenset[str]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            for claim in container.dynamic_resources:
                key = (claim.claim_namespace, claim.claim_name)
                ids = (cdi.name for each in claim.claim_resources for cdi in each.cdi_devices)
                found[key] = found.get(key, frozenset()).union(ids)
    return found
