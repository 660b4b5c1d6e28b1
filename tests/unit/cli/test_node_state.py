"""What is seen of a node while its plugin works."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from dra_driver.cli import node_state
from dra_driver.cli.node_state import read_records, told_health
from dra_driver.config import Settings
from dra_driver.host import read_file
from dra_driver.rpc import health_v1_pb2 as health
from dra_driver.rpc import health_v1_pb2_grpc as services
from dra_driver.state import ClaimRecord, Phase
from dra_driver.state.record import encode


class Ending(services.DRAResourceHealthServicer):
    """A plugin that ends its stream before it has told anything."""

    def NodeWatchResources(  # noqa: N802 - the protocol names it
        self, request: health.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[health.NodeWatchResourcesResponse]:
        """Tell nothing."""
        return iter(())


def test_a_plugin_that_ends_while_it_is_asked_has_told_nothing() -> None:
    with tempfile.TemporaryDirectory(prefix="dra") as folder:  # short: there is a socket in it
        settings = Settings(node_name="node-a", plugins_folder=Path(folder))
        settings.data_folder.mkdir(parents=True)
        server = grpc.server(ThreadPoolExecutor(1))
        services.add_DRAResourceHealthServicer_to_server(Ending(), server)
        assert server.add_insecure_port(f"unix:{settings.data_folder / 'dra.sock'}")
        server.start()
        try:
            assert told_health(settings) is None
        finally:
            server.stop(0).wait()


def test_a_claim_that_ends_while_it_is_looked_at_lacks_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(node_name="n", plugins_folder=tmp_path, cdi_root=tmp_path / "cdi")
    record = ClaimRecord(namespace="team", name="c", uid="uid-of-c", phase=Phase.PREPARED)
    settings.records_folder.mkdir(parents=True)
    path = settings.records_folder / f"{record.uid}.json"
    path.write_bytes(encode(record))
    settings.cdi_root.mkdir()
    cdi_file = settings.cdi_root / f"k8s.gpu.nvidia.com-claim_{record.uid}.json"
    cdi_file.touch()

    def read_before_its_end(path: Path) -> bytes | None:
        content = read_file(path)
        cdi_file.unlink()  # as Unprepare does
        path.unlink()
        return content

    monkeypatch.setattr(node_state, "read_file", read_before_its_end)
    assert read_records(settings).with_cdi_file == {record.uid}
