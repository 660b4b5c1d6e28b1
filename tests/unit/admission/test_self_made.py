"""The certificate that the webhook makes for itself: kept, shared, told, renewed."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dra_driver.admission import self_made
from dra_driver.admission.certificates import Pair, make_pair, now
from dra_driver.admission.metrics import CATALOGUE
from dra_driver.admission.self_made import SelfMade
from dra_driver.admission.served import Served
from dra_driver.kube import Conflict, NotFound
from dra_driver.kube.webhook import WebhookClient
from dra_driver.model.errors import ApiUnavailable, PermissionMissing
from dra_driver.simulator.api_server import ApiServer
from dra_driver.telemetry import Metrics
from tests.support.api import wait_for
from tests.unit.admission.handshake import NAME, shown
from tests.unit.admission.test_from_files import ODD

OBJECT, NAMESPACE = "gpu-dra-driver-webhook", "gpu-dra-driver"
WEBHOOKS = "validatingwebhookconfigurations"
DAY = timedelta(days=1)
MAKE = "dra_driver.admission.self_made.make_pair"


@dataclass(frozen=True)
class Reached:
    kubeconfig: Path


class Instance:
    """One instance of the webhook, as far as its certificate goes."""

    def __init__(self, server: ApiServer, folder: Path, lifetime: timedelta = 30 * DAY) -> None:
        self.metrics = Metrics(CATALOGUE)
        self.served = Served(self.metrics)
        reached = Reached(server.write_kubeconfig(folder / "kubeconfig"))
        self.client = WebhookClient(reached, NAMESPACE, OBJECT)
        self.certificate = SelfMade(self.client, (NAME,), lifetime, self.served)

    def shows(self, authorities: bytes) -> bool:
        try:
            shown(self.served.context(), authorities)
        except OSError:
            return False
        return True

    def close(self) -> None:
        self.certificate.stop()
        self.client.close()


class Bed:
    """An API server with the objects of the manifests, and instances."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.instances: list[Instance] = []
        metadata = {"name": OBJECT, "namespace": NAMESPACE}
        server.objects.create("secrets", {"metadata": metadata, "type": "Opaque"})
        hooks = [{"name": f"{name}.example.com", "clientConfig": {"service": {}}} for name in "ab"]
        server.objects.create(WEBHOOKS, {"metadata": {"name": OBJECT}, "webhooks": hooks})

    def instance(self, lifetime: timedelta = 30 * DAY) -> Instance:
        made = Instance(self.server, self.folder, lifetime)
        self.instances.append(made)
        return made

    def secret(self) -> dict[str, bytes]:
        data = self.server.objects.get("secrets", OBJECT, NAMESPACE).get("data", {})
        return {key: base64.b64decode(value) for key, value in data.items()}

    def keep(self, pair: Pair) -> None:
        values = {
            "tls.crt": pair.certificate,
            "tls.key": pair.key,
            "ca.crt": pair.authorities,
        }
        secret = self.server.objects.get("secrets", OBJECT, NAMESPACE)
        secret["data"] = {key: base64.b64encode(value).decode() for key, value in values.items()}
        self.server.objects.replace("secrets", secret)

    def told(self) -> set[bytes]:
        hooks = self.server.objects.get(WEBHOOKS, OBJECT)["webhooks"]
        bundles = [hook["clientConfig"].get("caBundle", "") for hook in hooks]
        assert [hook["clientConfig"]["service"] for hook in hooks] == [{}, {}]
        return {base64.b64decode(bundle) for bundle in bundles}

    def writes(self) -> int:
        return self.server.requests.count("update")


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with ApiServer() as server:
        bed = Bed(server, tmp_path)
        yield bed
        for instance in bed.instances:
            instance.close()


def test_the_first_look_makes_keeps_tells_and_shows(bed: Bed) -> None:
    one = bed.instance()
    assert one.certificate.look() is True
    secret = bed.secret()
    assert secret.keys() == {"tls.crt", "tls.key", "ca.crt"}
    assert bed.told() == {secret["ca.crt"]}
    assert one.shows(secret["ca.crt"])
    assert bed.writes() == 2
    assert one.certificate.look() is True
    assert bed.writes() == 2


def test_a_restart_finds_it_again(bed: Bed) -> None:
    bed.instance().certificate.look()
    before = bed.secret()
    again = bed.instance()
    assert again.certificate.look() is True
    assert bed.secret() == before
    assert again.shows(before["ca.crt"])
    assert bed.writes() == 2


def test_two_that_begin_together_end_with_the_same(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = bed.instance(), bed.instance()

    def make_slowly(*arguments: Any) -> Pair:
        monkeypatch.setattr(MAKE, make_pair)
        one.certificate.look()  # in the middle of two's
        return make_pair(*arguments)

    monkeypatch.setattr(MAKE, make_slowly)
    with pytest.raises(Conflict):
        two.certificate.look()
    assert two.served.is_empty
    assert two.certificate.look() is True
    authorities = bed.secret()["ca.crt"]
    assert bed.told() == {authorities}
    assert one.shows(authorities)
    assert two.shows(authorities)


def test_a_new_one_is_shown_after_the_api_server_has_heard(bed: Bed) -> None:
    old = make_pair((NAME,), 30 * DAY, now() - 21 * DAY)
    bed.keep(old)
    one, two = bed.instance(), bed.instance()
    for instance in (one, two):  # as they were before it came of age
        instance.served.use(old.certificate, old.key)
    assert one.certificate.look() is False
    both = bed.secret()["ca.crt"]
    assert both.endswith(old.authorities)
    assert bed.told() == {both}
    for instance in (one, two):  # the first that finds them there: it may have been told just now
        assert instance.certificate.look() is False
        assert instance.shows(old.authorities)
    assert one.certificate.look() is True
    assert one.shows(both)
    assert not one.shows(old.authorities)
    assert two.shows(both), "the other one's still holds by what the API server knows"
    assert two.certificate.look() is True
    assert not two.shows(old.authorities)
    assert bed.writes() == 2


def test_an_instance_that_can_not_tell_goes_on_with_the_old_one(bed: Bed) -> None:
    old = make_pair((NAME,), 30 * DAY, now() - 21 * DAY)
    bed.keep(old)
    one = bed.instance()
    one.served.use(old.certificate, old.key)
    bed.server.faults.fail("update", WEBHOOKS, status=503, times=2)
    for _ in range(2):
        with pytest.raises(ApiUnavailable):
            one.certificate.look()
        assert one.shows(old.authorities)
    assert [one.certificate.look() for _ in range(3)] == [False, False, True]
    assert not one.shows(old.authorities)


def test_authorities_that_somebody_took_away_are_told_again(bed: Bed) -> None:
    one = bed.instance()
    one.certificate.look()
    hooks = bed.server.objects.get(WEBHOOKS, OBJECT)
    del hooks["webhooks"][1]["clientConfig"]["caBundle"]
    bed.server.objects.replace(WEBHOOKS, hooks)
    one.certificate.look()
    assert bed.told() == {bed.secret()["ca.crt"]}


@pytest.mark.parametrize("damage", ["tls.crt", "tls.key", "ca.crt"])
@pytest.mark.parametrize(
    "value", ["", "!", *(base64.b64encode(each).decode() for each in (b"junk", ODD))]
)
def test_a_damaged_secret_is_made_anew(bed: Bed, damage: str, value: str) -> None:
    bed.instance().certificate.look()
    secret = bed.server.objects.get("secrets", OBJECT, NAMESPACE)
    secret["data"] |= {damage: value, "other": "eA=="}
    bed.server.objects.replace("secrets", secret)
    again = bed.instance()
    assert again.certificate.look() is True
    assert again.shows(bed.secret()["ca.crt"])
    assert bed.secret()["other"] == b"x"


def test_without_a_secret_it_says_what_is_missing(bed: Bed) -> None:
    bed.server.objects.delete("secrets", OBJECT, NAMESPACE)
    with pytest.raises(NotFound, match=f'cannot get secrets "{NAMESPACE}/{OBJECT}": .*404'):
        bed.instance().certificate.look()


def test_without_the_right_it_says_which(bed: Bed) -> None:
    bed.server.faults.fail("get", "secrets", status=403)
    with pytest.raises(PermissionMissing, match="allow verb 'get' on 'secrets'"):
        bed.instance().certificate.look()


def test_without_a_configuration_it_serves_all_the_same(bed: Bed) -> None:
    hooks = bed.server.objects.delete(WEBHOOKS, OBJECT)
    one = bed.instance()
    assert one.certificate.look() is True
    assert one.shows(bed.secret()["ca.crt"])
    bed.server.objects.create(
        WEBHOOKS, {"metadata": {"name": OBJECT}, "webhooks": hooks["webhooks"]}
    )
    one.certificate.look()
    assert bed.told() == {bed.secret()["ca.crt"]}


def test_the_thread_waits_for_the_api_server_and_renews(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_made, "_TROUBLE_SECONDS", 0.05)
    bed.server.stop()
    one = bed.instance(timedelta(seconds=6))
    one.certificate.start()
    wait_for(lambda: "does not answer" in one.served.reasons()[0], "the trouble is told")
    bed.server.start()
    wait_for(lambda: one.served.reasons() == [], "a certificate")
    first = bed.secret()["ca.crt"]
    assert one.shows(first)
    wait_for(lambda: bed.secret()["ca.crt"] != first, "a second certificate")
    wait_for(lambda: not one.shows(first), "the second one is shown")
    assert one.shows(bed.secret()["ca.crt"])
    assert one.served.reasons() == []
