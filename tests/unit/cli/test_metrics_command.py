"""`dra-driver metrics` shows the catalogue."""

import json

from click.testing import CliRunner

from dra_driver.admission.metrics import CATALOGUE as OF_WEBHOOK
from dra_driver.cli.metrics import metrics
from dra_driver.telemetry import CATALOGUE


def test_every_metric_is_shown() -> None:
    text = CliRunner().invoke(metrics).output
    shown = json.loads(CliRunner().invoke(metrics, ["-o", "json"]).output)
    assert [each["name"] for each in shown] == [metric.name for metric in CATALOGUE]
    assert all(metric.name in text for metric in CATALOGUE)


def test_those_of_the_webhook_are_shown_too() -> None:
    arguments = ["--program", "webhook", "-o", "json"]
    shown = json.loads(CliRunner().invoke(metrics, arguments).output)
    assert [each["name"] for each in shown] == [metric.name for metric in OF_WEBHOOK]
