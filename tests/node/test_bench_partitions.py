"""`dra-driver bench --devices mig`: what claims cost for which the real plugin makes partitions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.cli.bench.figures import Result, read_result
from tests.support.plugin_process import NODE, MakeBed

PROGRAM = Path(sys.executable).with_name("dra-driver")
LIMIT = 300.0  # seconds; a quick run takes ten
CONFIG = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- partitioning: {mode: Dynamic}
"""


def _bench(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            str(PROGRAM),
            "bench",
            "--quick",
            "--devices=mig",
            f"--save={folder / 'result.json'}",
            *arguments,
        ],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Give the result of one quick run: two GPUs with live claims, and the one that is measured."""
    folder = tmp_path_factory.mktemp("bench")
    done = _bench(folder, "--embedded", "--gpus=2")
    assert done.returncode == 0, done.stderr
    return read_result(folder / "result.json")


def test_claims_are_measured_with_as_many_partitions_as_there_are(embedded: Result) -> None:
    assert embedded.about["gpus"] == 3
    assert embedded.about["claimsAtOnce"] == "7 with a partition 1g.10gb"
    for name in ("prepare", "prepare again", "unprepare"):
        for live in (0, 14):
            assert embedded.figure(name, live, 1).count == 16
            assert embedded.figure(name, live, 7).count == 7
    assert embedded.figure("memory", 14).p50 > 10


@pytest.mark.parametrize("live", [0, 14])
def test_a_partition_costs_as_many_durable_writes_as_a_gpu(embedded: Result, live: int) -> None:
    def cost(what: str, call: str) -> float:
        return embedded.figure(f"{what} per {call}", live).p50

    assert 2 <= cost("fsyncs", "prepare") <= 4
    assert cost("fsyncs", "prepare again") == 0
    assert cost("fsyncs", "unprepare") <= 4
    assert 1 <= cost("API requests", "prepare") <= 2  # a read, and the status that tells the UUID
    assert cost("API requests", "unprepare") == 0
    for call in ("prepare", "prepare again", "unprepare"):
        assert 0 < cost("NVML calls", call) <= 80


def test_calls_of_nvml_do_not_grow_with_live_claims(embedded: Result) -> None:
    for call in ("prepare", "prepare again", "unprepare"):
        few, many = (embedded.figure(f"NVML calls per {call}", live).p50 for live in (0, 14))
        assert few == many


def test_more_live_claims_than_partitions_are_wrong_usage(tmp_path: Path) -> None:
    done = _bench(tmp_path, "--embedded", "--gpus=1", "--live=0,8")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: --live 8: beside the GPU that is measured there is room")
    assert done.stderr.count("\n") == 1


def test_partitions_of_any_driver_are_measured_by_its_socket(
    make_bed: MakeBed, tmp_path: Path
) -> None:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    (tmp_path / "node.yaml").write_text(CONFIG)
    bed.serve(f"--config={tmp_path / 'node.yaml'}")
    (socket,) = bed.data_folder.glob("dra*.sock")
    done = _bench(
        tmp_path,
        f"--socket={socket}",
        f"--kubeconfig={bed.folder / 'kubeconfig'}",
        f"--node={NODE}",
        f"--records-disk={tmp_path}",
    )
    assert done.returncode == 0, done.stderr
    result = read_result(tmp_path / "result.json")
    assert result.figure("prepare", 7, 7).count == 7
    for number in range(2):
        gpu = bed.node.gpu(number)
        assert gpu["instances"] == []
        assert not gpu["mig"]["current"]
    assert bed.claim_files() == set()


def test_a_node_without_partitions_is_named(make_bed: MakeBed, tmp_path: Path) -> None:
    bed = make_bed(gpus=1)
    bed.kubelet.start()
    bed.serve()
    done = _bench(
        tmp_path,
        "--socket=/none.sock",
        f"--kubeconfig={bed.folder / 'kubeconfig'}",
        f"--node={NODE}",
    )
    assert done.returncode == 1
    assert "publishes no partitions; --devices mig needs some that exist" in done.stderr
