"""Whatever is wrong in a config on any hardware is refused, and the answer names the field."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from dra_driver.config import decode_config
from dra_driver.model.errors import ConfigInvalid
from tests.unit.admission.build import (
    PLACES,
    UID,
    VERSIONS,
    Asked,
    entry,
    gpu_config,
    mig_config,
    obj,
    request,
)
from tests.unit.admission.wrong_configs import wrong_configs
from tests.unit.config.test_opaque_fields import BODY, JSON, SAMPLES
from tests.unit.config.walk import changed, words

ROOT = Path(__file__).parents[3]
ALL_WRONG = list(wrong_configs())


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_the_wrong_configs_are_about_every_field() -> None:
    fields = {wrong.field for wrong in ALL_WRONG}
    assert {"apiVersion", "kind", *(words(path) for _, path, _ in BODY)} <= fields


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", PLACES)
def test_every_wrong_config_is_refused_by_its_field(asked: Asked, kind: str, version: str) -> None:
    place = f"{PLACES[kind]}[1].opaque.parameters"
    for wrong in ALL_WRONG:
        configs = [entry({"other": 1}, driver="other.example.com"), entry(wrong.config)]
        faults = asked.faults(obj(kind, configs, version=version))
        assert any(field.startswith(f"{place}.{wrong.field}") for field in faults), (wrong, faults)


@pytest.mark.parametrize("parameters", [None, [], "GpuConfig", 1])
def test_a_config_that_is_no_mapping_is_refused(asked: Asked, parameters: Any) -> None:
    faults = asked.faults(obj("ResourceClaim", [entry(parameters)]))
    (words,) = faults.values()
    assert list(faults) == ["spec.devices.config[0].opaque.parameters"]
    assert words.endswith("is not allowed; allowed: a mapping")


def test_all_that_is_wrong_is_in_one_answer(asked: Asked) -> None:
    bad = gpu_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Huge"}, extra=1)
    pair = mig_config(strategy="TimeSlicing", mpsConfig={})
    made = obj("ResourceClaimTemplate", [entry(bad, "main"), entry(pair), entry(bad, "none")])
    first, third = (f"spec.spec.devices.config[{number}]" for number in (0, 2))
    faults = asked.faults(made)
    assert list(faults) == [
        f"{first}.opaque.parameters.sharing.timeSlicingConfig.interval",
        f"{first}.opaque.parameters.sharing.extra",
        "spec.spec.devices.config[1].opaque.parameters.sharing.mpsConfig",
        f"{third}.opaque.parameters.sharing.timeSlicingConfig.interval",
        f"{third}.opaque.parameters.sharing.extra",
        f"{third}.requests[0]",
    ]
    assert faults[f"{first}.opaque.parameters.sharing.extra"] == (
        'strict decoding error: unknown field "sharing.extra"; allowed: strategy, '
        "timeSlicingConfig, mpsConfig"
    )
    status = asked.ask(made)["status"]
    assert status["message"].startswith(
        f"[{first}.opaque.parameters.sharing.timeSlicingConfig.interval: unknown time-slice "
    )
    assert status["details"]["kind"] == "ResourceClaimTemplate"


def test_thousands_of_faults_make_a_short_answer(asked: Asked) -> None:
    unknown = {"x" * 5000: "\n", **{f"unknown-{number}": 1 for number in range(2000)}}
    response = asked.ask(obj("ResourceClaim", [entry(gpu_config() | unknown)] * 3))
    assert response["status"]["message"].endswith("] (and 5983 more)")
    assert len(json.dumps(response)) < 20_000


def test_configs_of_other_drivers_are_left_to_them(asked: Asked) -> None:
    foreign = entry(gpu_config(strategy="Wrong"), "none", driver="gpu.example.com")
    for kind in PLACES:
        assert asked.faults(obj(kind, [foreign])) == {}
        assert asked.faults(obj(kind, [{"requests": ["main"]}])) == {}
    assert list(Asked("gpu.example.com").faults(obj("ResourceClaim", [foreign]))) == [
        "spec.devices.config[0].opaque.parameters.sharing.strategy",
        "spec.devices.config[0].requests[0]",
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", PLACES)
def test_right_configs_are_allowed_without_a_word(asked: Asked, kind: str, version: str) -> None:
    for sample in (each for samples in SAMPLES.values() for each in samples):
        made = obj(kind, [entry(sample)], [request("main", count=2)], version)
        assert asked.ask(made) == {"uid": UID, "allowed": True}


def test_published_examples_and_classes_are_allowed(asked: Asked) -> None:
    folders = (ROOT / "examples/resourceclaims", ROOT / "deviceclasses")
    found = [
        document
        for folder in folders
        for path in sorted(folder.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if document and document["kind"] in PLACES
    ]
    assert {each["kind"] for each in found} == set(PLACES)
    for document in found:
        assert asked.warnings(document) == []


@given(st.sampled_from(BODY), JSON)
def test_admission_refuses_exactly_what_prepare_can_not_read(
    case: tuple[Any, Any, Any], value: Any
) -> None:
    config, path, _ = case
    wrong = changed(config, path, value)
    assume("Infinity" not in json.dumps(value))  # no number of JSON
    faults = Asked().faults(obj("ResourceClaim", [entry(wrong)], [request("main", count=1000)]))
    try:
        decode_config(wrong)
    except ConfigInvalid:
        assert faults
    else:
        assert not faults
