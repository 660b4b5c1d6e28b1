"""`resource.k8s.io/v1` and no other version, in requests, manifests and rights (report B31)."""

import json
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from dra_driver.simulator.api_server.log import LoggedRequest
from dra_driver.simulator.kubelet_plugin import CallFailed
from tests.support.api import slice_of, wait_for
from tests.support.kubelet import DRIVER
from tests.support.plugin_process import MakeBed, NodeBed

CHECKOUT = Path(__file__).parents[2]
SHIPPED = ("deploy", "deviceclasses", "examples")
APPLIED = ("deploy/manifests", "deviceclasses", "examples")  # the chart is tested as it is rendered
GROUP = "resource.k8s.io"
PLURALS = {
    "DeviceClass": "deviceclasses",
    "ResourceClaim": "namespaces/default/resourceclaims",
    "ResourceClaimTemplate": "namespaces/default/resourceclaimtemplates",
}
RELEASES = ("1.34.4", "1.37.2")
ROLE = "gpu-dra-driver-kubelet-plugin"
CONFIG = """\
apiVersion: config.gpu-dra-driver.dev/v1alpha1
kind: NodeConfig
rules:
- match: {index: [1]}
  partitioning: {mode: Dynamic}
"""
URL = re.compile(r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)/")


def documents() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Everything that we tell people to apply."""
    for folder in APPLIED:
        for path in sorted((CHECKOUT / folder).rglob("*.yaml")):
            for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
                yield path, document


def post(bed: NodeBed, path: str, document: dict[str, Any]) -> int:
    """Create an object as kubectl does: in the version that the manifest names."""
    connection = HTTPConnection(urlsplit(bed.api.url).netloc, timeout=30)
    connection.request("POST", f"/apis/{document['apiVersion']}/{path}", json.dumps(document))
    status = connection.getresponse().status
    connection.close()
    return status


def everything_it_does(bed: NodeBed) -> None:
    """Let the plugin make each kind of request that it ever makes."""
    bed.kubelet.start()
    bed.api.objects.create("resourceslices", slice_of({"name": "gpu-9"}, name="from-long-ago"))
    config = bed.folder / "node.yaml"
    config.write_text(CONFIG)
    bed.serve("--poll-interval=100ms", f"--config={config}")
    assert bed.device_names() == {"gpu-0"}
    bed.node.add_gpu("h100-80gb")
    wait_for(lambda: {"gpu-0", "gpu-1"} <= bed.device_names(), "an update of the slice")
    for device in ("gpu-1", "gpu-1-mig-1g10gb-19-0"):
        claim = bed.claim(f"mine-{device}", device)
        assert bed.kubelet.prepare(DRIVER, [claim])[claim.uid]
        if "mig" in device:
            wait_for(lambda: bed.api.requests.count("patch"), "the status of its partition")
        bed.kubelet.unprepare(DRIVER, [claim])
    with pytest.raises(CallFailed, match="DeviceNotFound"):
        bed.kubelet.prepare(DRIVER, [bed.claim("impossible", "gpu-7")])
    wait_for(lambda: bed.api.objects.select("events"), "an Event")


def _with_part(entry: LoggedRequest) -> str:
    """Resource as rights name it: with the part of an object that is written apart."""
    part = "/status" if urlsplit(entry.url).path.endswith("/status") else ""
    return f"{entry.resource}{part}"


@pytest.mark.parametrize("release", RELEASES)
def test_b31_all_requests_are_of_the_version_that_every_release_serves(
    make_bed: MakeBed, release: str
) -> None:
    bed = make_bed(gpus=1)
    bed.api.become(release)
    everything_it_does(bed)
    asked = bed.api.requests.all()
    matches = [match for entry in asked if (match := URL.match(entry.url))]
    versions = {(match["group"], match["version"]) for match in matches}
    assert versions == {(None, "v1"), (GROUP, "v1")}
    assert [entry.url for entry in asked if entry.status in (404, 405)] == []
    assert {each["apiVersion"] for each in bed.slices()} == {f"{GROUP}/v1"}


def test_b31_the_role_allows_what_the_plugin_does_and_nothing_else(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=1)
    everything_it_does(bed)
    used = {
        (match["group"] or "", _with_part(entry), entry.verb)
        for entry in bed.api.requests.all()
        if (match := URL.match(entry.url))
    }
    allowed = {
        (group, resource, verb)
        for _, document in documents()
        if document["kind"] == "ClusterRole" and document["metadata"]["name"] == ROLE
        for rule in document["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if resource != "resourceclaims/driver"  # asked for by the API server, never requested
    }
    assert used == allowed


def test_b31_what_we_ship_is_applied_to_a_server_that_has_only_v1(make_bed: MakeBed) -> None:
    bed = make_bed(gpus=1)
    bed.api.become("1.34.4")
    old = {"apiVersion": f"{GROUP}/v1beta1", "metadata": {"name": "old"}}
    assert post(bed, "deviceclasses", old) == 404, "the premise"
    applied = []
    for path, document in documents():
        if not document["apiVersion"].startswith(GROUP):
            continue
        anew = {**document, "metadata": {"generateName": "x-"}}
        assert post(bed, PLURALS[document["kind"]], anew) == 201, path
        applied.append(document["kind"])
    assert set(applied) == set(PLURALS), "at least one of each"


def test_b31_no_other_version_is_named_in_code_or_manifests() -> None:
    others = re.compile(rf"{re.escape(GROUP)}/v\d+(alpha|beta)\d+")
    files = [
        path
        for folder in (*SHIPPED, "dra_driver")
        for path in (CHECKOUT / folder).rglob("*")
        if path.suffix in (".py", ".yaml")
    ]
    assert len(files) > 100
    assert [path for path in files if others.search(path.read_text(encoding="utf-8"))] == []
