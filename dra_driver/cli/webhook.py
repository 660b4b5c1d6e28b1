"""`dra-driver webhook`: refuses claims, templates and classes whose configs can't work anywhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from dra_driver.cli.option_types import Duration
from dra_driver.cli.settings_options import settings_options
from dra_driver.model.errors import SettingInvalid

_PATH: Final = click.Path(path_type=Path)
_SHARED: Final = ("driver_name", "kubeconfig", "http_endpoint", "log_format", "log_level")


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags that no other command has."""
    for option in (
        click.option(
            "--name",
            envvar="WEBHOOK_NAME",
            default="gpu-dra-driver-webhook",
            show_default=True,
            help="Name of the Service, the Secret and the ValidatingWebhookConfiguration.",
        ),
        click.option(
            "--namespace",
            envvar="NAMESPACE",
            default="gpu-dra-driver",
            show_default=True,
            help="Namespace of the Service and the Secret.",
        ),
        click.option(
            "--self-signed-lifetime",
            "lifetime_seconds",
            envvar="SELF_SIGNED_LIFETIME",
            type=Duration(),
            default="8760h",
            show_default=True,
            help="How long such a certificate holds; it is replaced when a third of this is left.",
        ),
        click.option(
            "--self-signed",
            envvar="SELF_SIGNED",
            is_flag=True,
            help="Make the certificate, keep it in the Secret, and tell the API server of it.",
        ),
        click.option(
            "--tls-private-key-file",
            "key_file",
            envvar="TLS_PRIVATE_KEY_FILE",
            type=_PATH,
            help="Its key (PEM).",
        ),
        click.option(
            "--tls-cert-file",
            "certificate_file",
            envvar="TLS_CERT_FILE",
            type=_PATH,
            help="Certificate (PEM) that somebody else looks after; read again when it changes.",
        ),
        click.option(
            "--https-endpoint",
            envvar="HTTPS_ENDPOINT",
            default=":8443",
            show_default=True,
            help="Address on which the API server is answered.",
        ),
    ):
        command = option(command)
    return command


@click.command()
@_options
@settings_options(*_SHARED)
def webhook(**flags: Any) -> None:  # noqa: ANN401 - one field of WebhookSettings each
    """Answer the API server whether configs of claims, templates and classes can work.

    Only configs for this driver are looked at. SIGTERM and SIGINT stop it.
    """
    try:
        from dra_driver.admission.webhook import WebhookSettings, run  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("cryptography"):
            raise
        raise SettingInvalid(
            "this installation can't make certificates; install gpu-dra-driver[webhook]"
        ) from error
    run(WebhookSettings(**flags))
