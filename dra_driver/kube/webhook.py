"""The requests of the webhook: its Secret, and the configuration by which it is called."""

import base64
import binascii
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from dra_driver.kube.configuration import Reached, configure
from dra_driver.kube.connection import Connection, JsonObject, Request
from dra_driver.kube.errors import Subject

_WEBHOOKS: Final = (
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "validatingwebhookconfigurations.admissionregistration.k8s.io",
)
_USER_AGENT: Final = "gpu-dra-driver-webhook"
_SECONDS: Final = 10.0


class WebhookClient:
    """The API server as seen by the webhook; safe to use from many threads.

    Every method raises ApiUnavailable without an answer in time, NotFound when the object is not
    there, PermissionMissing without the right; those that write raise Conflict when somebody else
    was faster.
    """

    def __init__(self, settings: Reached, namespace: str, name: str) -> None:
        """Name the Secret and the ValidatingWebhookConfiguration. Nothing is sent yet."""
        self._namespace = namespace
        self._name = name
        self._connection = Connection(configure(settings), _USER_AGENT)

    def close(self) -> None:
        """Drop idle connections."""
        self._connection.close()

    def read_secret(self) -> JsonObject:
        """Get the Secret."""
        return self._connection.call(self._secret("get"), _SECONDS)

    def replace_secret(self, secret: JsonObject) -> JsonObject:
        """Put a new version of the Secret that was read."""
        return self._connection.call(self._secret("update", secret), _SECONDS)

    def read_webhooks(self) -> JsonObject:
        """Get the ValidatingWebhookConfiguration."""
        return self._connection.call(self._webhooks("get"), _SECONDS)

    def replace_webhooks(self, configuration: JsonObject) -> JsonObject:
        """Put a new version of the ValidatingWebhookConfiguration that was read."""
        return self._connection.call(self._webhooks("update", configuration), _SECONDS)

    def _secret(self, verb: str, body: JsonObject | None = None) -> Request:
        subject = Subject(verb, "secrets", f"{self._namespace}/{self._name}")
        namespace, name = (quote(part, safe="") for part in (self._namespace, self._name))
        return Request(subject, f"/api/v1/namespaces/{namespace}/secrets/{name}", {}, body)

    def _webhooks(self, verb: str, body: JsonObject | None = None) -> Request:
        path, resource = _WEBHOOKS
        subject = Subject(verb, resource, self._name)
        return Request(subject, f"{path}/{quote(self._name, safe='')}", {}, body)


def secret_data(secret: JsonObject) -> dict[str, bytes]:
    """Read the data of a Secret; what is not base64 is as if it were not there."""
    found = {}
    for key, value in (secret.get("data") or {}).items():
        try:
            found[str(key)] = base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError, ValueError):
            continue
    return found


def with_secret_data(secret: JsonObject, data: Mapping[str, bytes]) -> JsonObject:
    """Give the Secret with this data in place of its own; other keys stay."""
    coded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {**secret, "data": {**(secret.get("data") or {}), **coded}}


def ca_bundles(configuration: JsonObject) -> list[bytes]:
    """Give the authorities that the API server trusts, for each webhook of a configuration."""
    found = []
    for webhook in configuration.get("webhooks") or ():
        text = (webhook.get("clientConfig") or {}).get("caBundle") or ""
        found.append(base64.b64decode(text))
    return found


def with_ca_bundle(configuration: JsonObject, authorities: bytes) -> JsonObject:
    """Give the configuration with these authorities for each of its webhooks."""
    coded = base64.b64encode(authorities).decode()
    webhooks = [
        {**webhook, "clientConfig": {**webhook.get("clientConfig", {}), "caBundle": coded}}
        for webhook in configuration.get("webhooks") or ()
    ]
    return {**configuration, "webhooks": webhooks}
