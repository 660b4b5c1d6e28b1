"""What a real plugin process serves at /metrics: the peer's series, our own, the catalogue."""

import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from dra_driver.simulator.kubelet_plugin import CallFailed
from tests.support.kubelet import DRIVER, eventually
from tests.support.plugin_process import NODE, PROGRAM, MakeBed, NodeBed

PART, WHOLE = "gpu-0-mig-1g10gb-19-6", "gpu-1"
CONFIG = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- match: {index: [0]}
  partitioning: {mode: Dynamic}
"""
MATCHER = re.compile(r'(\w+)(=~|=|!=)"([^"]*)"')

# What dashboards and alerts that were made for the peer select, and what they find here after one
# claim was prepared and unprepared, two are prepared, and one failed.
OF_THE_PEER: dict[str, list[float]] = {
    f'nvidia_dra_requests_total{{driver="{DRIVER}",operation="prepare"}}': [3],
    f'nvidia_dra_requests_total{{driver="{DRIVER}",operation="unprepare"}}': [1],
    'nvidia_dra_requests_total{driver=~".+",operation=~"prepare|unprepare"}': [1, 3],
    f'nvidia_dra_request_duration_seconds_count{{driver="{DRIVER}",operation="prepare"}}': [3],
    'nvidia_dra_request_duration_seconds_bucket{operation="prepare",le="12.8"}': [3],
    'nvidia_dra_request_duration_seconds_bucket{operation="unprepare",le="+Inf"}': [1],
    f'nvidia_dra_requests_inflight{{driver="{DRIVER}",operation="prepare"}}': [0],
    f'nvidia_dra_prepared_devices{{node="{NODE}",driver="{DRIVER}",device_type="gpu"}}': [1],
    f'nvidia_dra_prepared_devices{{node="{NODE}",device_type="mig"}}': [1],
    f'nvidia_dra_node_prepare_errors_total{{driver="{DRIVER}",error_type="prepare_devices"}}': [1],
    'nvidia_dra_node_prepare_errors_total{error_type!="prepare_devices"}': [0, 0],
    'nvidia_dra_node_unprepare_errors_total{error_type="unprepare_devices"}': [0],
}


@pytest.fixture
def bed(make_bed: MakeBed, tmp_path: Path) -> NodeBed:
    bed = make_bed(gpus=2)
    bed.kubelet.start()
    path = tmp_path / "node.yaml"
    path.write_text(CONFIG)
    bed.serve(f"--config={path}")
    return bed


def served(bed: NodeBed) -> dict[str, Metric]:
    """Families at /metrics by the name in their TYPE line."""
    status, text = bed.get("/metrics")
    assert status == 200
    found = {}
    families: Iterable[Metric] = text_string_to_metric_families(text)
    for family in families:
        suffix = "_total" if family.type == "counter" else ""
        assert family.name + suffix not in found
        found[family.name + suffix] = family
    return found


def select(bed: NodeBed, selector: str) -> list[float]:
    """Values of the series that an instant selector of PromQL finds, sorted."""
    name, _, matchers = selector.rstrip("}").partition("{")
    wanted = MATCHER.findall(matchers)
    assert matchers.count("=") >= len(wanted) > 0, (
        f"a selector that this test can't read: {selector}"
    )
    return sorted(
        sample.value
        for family in served(bed).values()
        for sample in family.samples
        if sample.name == name
        and all(_fits(sample.labels.get(label, ""), how, words) for label, how, words in wanted)
    )


def _fits(value: str, how: str, words: str) -> bool:
    if how == "=~":
        return re.fullmatch(words, value) is not None
    return (value == words) == (how == "=")


def work(bed: NodeBed) -> None:
    """Prepare three claims, take one of them back, and let one fail."""
    refs = [bed.claim("part", PART), bed.claim("whole", WHOLE), bed.claim("short", WHOLE)]
    bed.kubelet.prepare(DRIVER, [refs[2]])
    bed.kubelet.unprepare(DRIVER, [refs[2]])
    for ref in refs[:2]:
        bed.kubelet.prepare(DRIVER, [ref])
    with pytest.raises(CallFailed, match="DeviceNotFound"):
        bed.kubelet.prepare(DRIVER, [bed.claim("lost", "gpu-9")])


def test_what_was_made_for_the_peer_s_metrics_finds_them(bed: NodeBed) -> None:
    before = {selector: select(bed, selector) for selector in OF_THE_PEER}
    assert all(values and not any(values) for values in before.values()), "zero from the start"
    work(bed)
    assert {selector: select(bed, selector) for selector in OF_THE_PEER} == OF_THE_PEER


def test_our_own_metrics_tell_of_results_steps_and_who_has_what(bed: NodeBed) -> None:
    zero = select(bed, 'gpu_dra_driver_claim_errors_total{operation="prepare"}')
    assert len(zero) > 10
    assert not any(zero)
    work(bed)
    seconds, steps = (
        f"gpu_dra_driver_{what}_duration_seconds_count" for what in ("request", "step")
    )
    assert select(bed, f'{seconds}{{operation="prepare",result="ok"}}') == [3]
    assert select(bed, f'{seconds}{{operation="prepare",result="error"}}') == [1]
    assert select(bed, f'{steps}{{operation="prepare",step="mig",result="ok"}}') == [3]
    assert select(bed, f'{steps}{{operation="prepare",step="resolve",result="error"}}') == [1]
    errors = "gpu_dra_driver_claim_errors_total"
    assert select(bed, f'{errors}{{operation="prepare",reason="DeviceNotFound"}}') == [1]
    assert sum(select(bed, f'{errors}{{operation=~"prepare|unprepare"}}')) == 1
    devices = "gpu_dra_driver_devices"
    for kind in ("gpu", "mig"):
        selector = f'{devices}{{device_type="{kind}",state="prepared",health="healthy"}}'
        assert select(bed, selector) == [1], "counts what is prepared"
    (instance,) = bed.node.gpu(0)["instances"]
    info = served(bed)["gpu_dra_driver_prepared_device_info"]
    assert {sample.labels["dra_claim_name"]: dict(sample.labels) for sample in info.samples} == {
        name: {
            "dra_claim_namespace": "default",
            "dra_claim_name": name,
            "dra_driver_name": DRIVER,
            "dra_pool_name": NODE,
            "dra_device_name": device,
            "dra_mig_profile": profile,
            "device_type": kind,
            "uuid": uuid,
        }
        for name, device, profile, kind, uuid in (
            ("part", PART, "1g.10gb", "mig", instance["computeInstances"][0]["uuid"]),
            ("whole", WHOLE, "", "gpu", bed.node.gpu(1)["uuid"]),
        )
    }
    assert select(bed, 'gpu_dra_driver_config_chosen{by="file"}') == [1]


def test_the_catalogue_is_what_is_served(bed: NodeBed) -> None:
    work(bed)
    eventually(
        lambda: select(bed, 'gpu_dra_driver_publish_writes_total{verb="create",result="ok"}'),
        "published",
    )
    printed = subprocess.run(
        [str(PROGRAM), "metrics", "-o", "json"], capture_output=True, check=True, timeout=60
    )
    catalogue = {each["name"]: each for each in json.loads(printed.stdout)}
    found = served(bed)
    assert sorted(found) == sorted(catalogue)
    for name, family in found.items():
        told = catalogue[name]
        assert (family.type, family.documentation) == (told["kind"], told["text"]), name
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert labels == {frozenset(told["labels"])}, name
