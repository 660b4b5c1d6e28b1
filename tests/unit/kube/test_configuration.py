"""Where the API server is and with which credentials, in a Pod and outside."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.config import Settings
from dra_driver.kube import KubeClient
from dra_driver.kube.configuration import configure
from dra_driver.model.errors import PermissionMissing, SettingInvalid
from dra_driver.simulator.api_server import ApiServer
from tests.support.api import NODE, add_node

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def kubeconfig(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": cluster}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


def settings(path: Path | None) -> Settings:
    return Settings(node_name=NODE, kubeconfig=path)


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text("certificate")
    return tmp_path


def test_a_pod_uses_its_service_account(account: Path) -> None:
    found = configure(settings(None), IN_POD, account)
    assert found.host == "https://10.0.0.1:443"
    assert found.ssl_ca_cert == str(account / "ca.crt")
    assert found.get_api_key_with_prefix("BearerToken") == "Bearer first"


def test_an_ipv6_address_is_put_in_brackets(account: Path) -> None:
    found = configure(settings(None), IN_POD | {"KUBERNETES_SERVICE_HOST": "fd00::1"}, account)
    assert found.host == "https://[fd00::1]:443"


def test_a_new_token_is_used_at_once(account: Path) -> None:
    found = configure(settings(None), IN_POD, account)
    (account / "token").write_text("second")
    assert found.get_api_key_with_prefix("BearerToken") == "Bearer second"
    (account / "token").unlink()  # in the middle of being replaced
    assert found.get_api_key_with_prefix("BearerToken") == "Bearer second"


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_a_pod_without_service_account_says_which_file(account: Path, missing: str) -> None:
    (account / missing).unlink()
    with pytest.raises(SettingInvalid, match=missing):
        configure(settings(None), IN_POD, account)


def test_outside_of_a_pod_a_kubeconfig_is_asked_for(account: Path) -> None:
    with pytest.raises(SettingInvalid, match="--kubeconfig"):
        configure(settings(None), {}, account)


def test_an_empty_token_file_is_no_token(account: Path) -> None:
    (account / "token").write_text("")
    with pytest.raises(SettingInvalid, match="token"):
        configure(settings(None), IN_POD, account)


def test_tokens_in_files_of_a_kubeconfig_rotate(tmp_path: Path) -> None:
    tokens = {"one"}
    (tmp_path / "secret").write_text("one")
    with ApiServer(tokens=tokens) as server:
        uid = add_node(server)
        path = kubeconfig(tmp_path, {"server": server.url}, {"tokenFile": "secret"})
        kube = KubeClient(settings(path))
        assert kube.node_uid(NODE) == uid
        tokens.clear()
        tokens.add("two")
        with pytest.raises(PermissionMissing, match="401"):
            kube.node_uid(NODE)
        (tmp_path / "secret").write_text("two")
        assert kube.node_uid(NODE) == uid
        kube.close()


def test_a_token_in_the_kubeconfig_is_sent(tmp_path: Path) -> None:
    with ApiServer(tokens={"secret"}) as server:
        uid = add_node(server)
        path = kubeconfig(tmp_path, {"server": server.url + "/"}, {"token": "secret"})
        kube = KubeClient(settings(path))
        assert kube.node_uid(NODE) == uid
        kube.close()


def test_certificates_stand_beside_the_kubeconfig(tmp_path: Path) -> None:
    path = kubeconfig(
        tmp_path,
        {
            "server": "https://host:6443",
            "certificate-authority": "ca.pem",
            "tls-server-name": "api",
        },
        {"client-certificate": "/etc/client.pem", "client-key": "client.key"},
    )
    found = configure(settings(path))
    assert found.ssl_ca_cert == str(tmp_path / "ca.pem")
    assert (found.cert_file, found.key_file) == (
        "/etc/client.pem",
        str(tmp_path / "client.key"),
    )
    assert (found.verify_ssl, found.tls_server_name) == (True, "api")


def test_verification_is_switched_off_only_on_request(tmp_path: Path) -> None:
    path = kubeconfig(
        tmp_path, {"server": "https://host", "insecure-skip-tls-verify": True}, {"token": "t"}
    )
    assert configure(settings(path)).verify_ssl is False


def test_other_credentials_are_left_to_the_library(tmp_path: Path) -> None:
    with ApiServer(tokens={"from-plugin"}) as server:
        uid = add_node(server)
        answer = tmp_path / "credential.json"
        answer.write_text(
            '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",'
            ' "status": {"token": "from-plugin"}}'
        )
        command = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "cat",
            "args": [str(answer)],
            "interactiveMode": "Never",
        }
        path = kubeconfig(tmp_path, {"server": server.url}, {"exec": command})
        kube = KubeClient(settings(path))
        assert kube.node_uid(NODE) == uid
        kube.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "not a kubeconfig"),
        ("{a: [", "can't be read"),
        ("current-context: x", "no context 'x'"),
        ("{current-context: c, contexts: [{name: c, context: {cluster: k}}]}", "no cluster 'k'"),
    ],
)
def test_a_broken_kubeconfig_says_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(SettingInvalid, match=words):
        configure(settings(path))


def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingInvalid, match="can't be read"):
        configure(settings(tmp_path / "none"))


def test_a_cluster_without_server(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, {}, {"token": "t"})
    with pytest.raises(SettingInvalid, match="no server"):
        configure(settings(path))
