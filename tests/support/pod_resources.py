"""The kubelet's podresources socket, which tells what the test wants it to."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc

from dra_driver.rpc import podresources_v1_pb2 as messages
from dra_driver.rpc import podresources_v1_pb2_grpc as services


class PodResources(services.PodResourcesListerServicer):
    """One Pod with one container that has these claims: CDI ids by namespace and name."""

    def __init__(self) -> None:
        self.claims: Mapping[tuple[str, str], Sequence[str]] = {}
        self.asked = 0

    def List(  # noqa: N802 - the protocol names it
        self,
        request: messages.ListPodResourcesRequest,
        context: grpc.ServicerContext,
    ) -> messages.ListPodResourcesResponse:
        """Tell."""
        self.asked += 1
        dynamic = [
            messages.DynamicResource(
                claim_namespace=namespace,
                claim_name=name,
                claim_resources=[
                    messages.ClaimResource(
                        cdi_devices=[messages.CDIDevice(name=cdi_id) for cdi_id in ids]
                    )
                ],
            )
            for (namespace, name), ids in self.claims.items()
        ]
        container = messages.ContainerResources(name="main", dynamic_resources=dynamic)
        pod = messages.PodResources(name="pod", namespace="default", containers=[container])
        return messages.ListPodResourcesResponse(pod_resources=[pod])

    def Get(  # noqa: N802 - the protocol names it
        self,
        request: messages.GetPodResourcesRequest,
        context: grpc.ServicerContext,
    ) -> messages.GetPodResourcesResponse:
        """Refuse: nobody asks for one Pod."""
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "only List is served here")


@contextmanager
def pod_resources(socket: Path) -> Iterator[PodResources]:
    """Serve on a socket, as the kubelet does."""
    service = PodResources()
    server = grpc.server(ThreadPoolExecutor(1))
    services.add_PodResourcesListerServicer_to_server(service, server)
    socket.parent.mkdir(parents=True, exist_ok=True)
    assert server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield service
    finally:
        server.stop(0).wait()
