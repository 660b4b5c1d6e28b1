"""What the kubelet says about containers and their claims, over its podresources socket."""

from pathlib import Path
from typing import Final

import grpc

from dra_driver.model.errors import TryAgain
from dra_driver.rpc import podresources_v1_pb2 as messages
from dra_driver.rpc import podresources_v1_pb2_grpc as services

_SECONDS: Final = 10.0
_MAX_BYTES: Final = 16 * 1024 * 1024  # the kubelet's own limit for this answer


def claims_in_use(socket: Path) -> set[tuple[str, str]]:
    """Namespace and name of every claim that an active Pod on this node lists.

    Raises TryAgain when the kubelet does not answer: nothing is known then.
    """
    options = [("grpc.max_receive_message_length", _MAX_BYTES)]
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        lister = services.PodResourcesListerStub(channel)
        try:
            answer = lister.List(messages.ListPodResourcesRequest(), timeout=_SECONDS)
        except grpc.RpcError as error:
            raise TryAgain(f"the kubelet does not answer on {socket}: {error}") from error
    return {
        (claim.claim_namespace, claim.claim_name)
        for pod in answer.pod_resources
        for container in pod.containers
        for claim in container.dynamic_resources
    }
