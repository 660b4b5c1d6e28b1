"""The real `dra-driver webhook` over HTTPS: answers, misuse, certificates, its end."""

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from dra_driver.admission.certificates import Pair, make_pair, now
from dra_driver.kube.webhook import ca_bundles, secret_data
from dra_driver.simulator.api_server import ApiServer
from dra_driver.simulator.ports import free_port
from tests.support.api import wait_for
from tests.support.plugin_process import PROGRAM
from tests.unit.admission.build import Object, entry, gpu_config, mig_config, obj, question, request

NAME = "gpu-dra-driver-webhook"
NAMESPACE = "gpu-dra-driver"
SERVICE = f"{NAME}.{NAMESPACE}.svc"
WEBHOOKS = "validatingwebhookconfigurations"
BAD = obj("ResourceClaim", [entry(gpu_config(strategy="Both"))])
GOOD = obj("ResourceClaim", [entry(gpu_config(strategy="TimeSlicing"))])
JSON = {"Content-Type": "application/json"}


class Client:
    """Speaks with the webhook as the API server does."""

    def __init__(self, port: int, authorities: bytes) -> None:
        self._port = port
        self._tls = ssl.create_default_context(cadata=authorities.decode())

    def post(
        self, body: bytes, path: str = "/validate", method: str = "POST", **headers: str
    ) -> tuple[int, bytes]:
        """Status and body of the answer; the certificate has to be that of the Service."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        plain = socket.create_connection(("127.0.0.1", self._port), 60)
        connection.sock = self._tls.wrap_socket(plain, server_hostname=SERVICE)
        try:
            sent = JSON | {key.replace("_", "-"): value for key, value in headers.items()}
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def ask(self, of: Object) -> Object:
        """The response to the question about an object."""
        status, body = self.post(question(of))
        assert status == 200, body
        response: Object = json.loads(body)["response"]
        return response


class Process:
    """One run of `dra-driver webhook`."""

    def __init__(self, log: Path, *flags: str) -> None:
        self.log = log
        self.port, self.http_port = free_port(), free_port()
        argv = [
            *(str(PROGRAM), "webhook", "--log-level=debug"),
            *(f"--https-endpoint=127.0.0.1:{self.port}", f"--http-endpoint=:{self.http_port}"),
            *flags,
        ]
        environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
        with log.open("ab") as output:
            self.child = subprocess.Popen(argv, stdout=output, stderr=output, env=environment)

    def get(self, path: str) -> tuple[int, str]:
        """Ask it over plain HTTP; status 0 when nobody listens."""
        try:
            url = f"http://127.0.0.1:{self.http_port}{path}"
            with urllib.request.urlopen(url, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.child.poll() is None, self.log.read_text()
            return self.get("/readyz") == (200, "ok\n")

        wait_for(ready, "the webhook is ready")

    def stop(self) -> int:
        self.child.terminate()
        return self.child.wait(60)


Run = Callable[..., Process]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start processes; those that still run at the end must end well."""
    started: list[Process] = []

    def start(*flags: str) -> Process:
        process = Process(tmp_path / f"webhook-{len(started)}.log", *flags)
        started.append(process)
        return process

    yield start
    try:
        for process in started:
            if process.child.poll() is None:
                assert process.stop() == 0, process.log.read_text()
    finally:
        for process in started:
            process.child.kill()
            process.child.wait()
            print(f"---- {process.log.name}\n{process.log.read_text()[-4000:]}")


def write(folder: Path, pair: Pair) -> list[str]:
    """Put a pair into files, one after the other; gives the flags that name them."""
    files = {"--tls-cert-file": "tls.crt", "--tls-private-key-file": "tls.key"}
    for name, content in zip(files.values(), (pair.certificate, pair.key), strict=True):
        new = folder / f"{name}.new"
        new.write_bytes(content)
        new.replace(folder / name)
    return [f"{flag}={folder / name}" for flag, name in files.items()]


@pytest.fixture
def pair() -> Pair:
    return make_pair((SERVICE,), timedelta(days=1), now())


@pytest.fixture
def served(run: Run, tmp_path: Path, pair: Pair) -> Process:
    process = run(*write(tmp_path, pair))
    process.wait_ready()
    return process


@pytest.fixture
def client(served: Process, pair: Pair) -> Client:
    return Client(served.port, pair.authorities)


def test_questions_are_answered_and_counted(served: Process, client: Client) -> None:
    assert client.ask(GOOD)["allowed"] is True
    response = client.ask(BAD)
    assert response["allowed"] is False
    assert response["status"]["message"].startswith(
        "spec.devices.config[0].opaque.parameters.sharing.strategy: unknown GPU sharing strategy"
    )
    made = obj("ResourceClaim", [entry(mig_config())], [request("a", "mig.nvidia.com")])
    assert "warnings" not in client.ask(made)
    _, text = served.get("/metrics")
    name = "gpu_dra_driver_admission_reviews_total"
    assert f'{name}{{resource="resourceclaims",result="allowed"}} 2.0' in text
    assert f'{name}{{resource="resourceclaims",result="refused"}} 1.0' in text
    assert served.get("/healthz") == (200, "ok\n")
    assert served.get("/validate")[0] == 404
    assert "Both" not in served.log.read_text()


def test_misuse_is_answered_by_its_status(client: Client) -> None:
    status, body = client.post(b"{")
    assert (status, body.split(b":")[0]) == (400, b"not JSON")
    assert client.post(b"{}", path="/")[0] == 404
    assert client.post(b"", method="GET")[0] == 405
    assert client.post(b"{}", Content_Type="text/plain")[0] == 415
    assert client.post(b" " * (4 << 20) + b" ")[0] == 413
    assert client.post(b" " * (4 << 20))[0] == 400
    assert client.ask(GOOD)["allowed"] is True


def test_clients_that_hang_or_speak_no_tls_keep_nobody_out(served: Process, client: Client) -> None:
    address = ("127.0.0.1", served.port)
    silent = [socket.create_connection(address, 60) for _ in range(20)]
    plain = socket.create_connection(address, 60)
    plain.sendall(b"POST /validate HTTP/1.1\r\n\r\n")
    hello = socket.create_connection(address, 60)
    hello.sendall(b"\x16\x03\x01\x02\x00\x01")

    def answered() -> bool:
        try:
            return client.ask(GOOD)["allowed"] is True
        except OSError:
            return False

    wait_for(answered, "an answer in spite of clients that hang")
    for each in (*silent, plain, hello):
        each.close()


def test_new_files_are_shown_without_a_restart(served: Process, tmp_path: Path, pair: Pair) -> None:
    second = make_pair((SERVICE,), timedelta(days=2), now())
    old, new = (Client(served.port, each.authorities) for each in (pair, second))
    assert old.ask(GOOD)["allowed"]
    with pytest.raises(ssl.SSLCertVerificationError):
        new.ask(GOOD)
    write(tmp_path, second)

    def shown() -> bool:
        try:
            return bool(new.ask(GOOD)["allowed"])
        except ssl.SSLCertVerificationError:
            return False

    wait_for(shown, "the new certificate is shown")
    with pytest.raises(ssl.SSLCertVerificationError):
        old.ask(GOOD)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "where is the certificate from? allowed: --self-signed, or --tls-cert-file and "),
        (("--tls-cert-file=/x",), "where is the certificate from?"),
        (("--self-signed", "--tls-cert-file=/x"), "where is the certificate from?"),
        (("--tls-cert-file=/x", "--tls-private-key-file=/y"), "--tls-cert-file /x, --tls-private"),
        (("--self-signed", "--name=A/b"), "--name: 'A/b' is not a name of lower-case letters"),
        (("--self-signed", "--namespace=.."), "--namespace: '..' is not a name of lower-case"),
        (("--self-signed", "--self-signed-lifetime=1s"), "--self-signed-lifetime: 1 s; allowed: 1"),
        (("--self-signed", "--https-endpoint=x"), "--https-endpoint: 'x' is not an address"),
        (("--self-signed",), "no API server: --kubeconfig is not given"),
    ],
)
def test_wrong_flags_are_named(run: Run, flags: tuple[str, ...], words: str) -> None:
    process = run(*flags)
    assert process.child.wait(60) == 2
    (line,) = process.log.read_text().splitlines()
    assert line.startswith(f"Error: {words}")


def test_a_port_that_is_taken_is_named(served: Process, run: Run, tmp_path: Path) -> None:
    flags = [f"--tls-{part}-file={tmp_path / name}" for part, name in
             (("cert", "tls.crt"), ("private-key", "tls.key"))]  # fmt: skip
    process = run(*flags, f"--https-endpoint=127.0.0.1:{served.port}")
    assert process.child.wait(60) == 2
    assert f"--https-endpoint: cannot listen on 127.0.0.1:{served.port}" in process.log.read_text()


class Kept:
    """The API stand-in with the objects of the manifest, and what the webhook has put there."""

    def __init__(self, api: ApiServer, folder: Path) -> None:
        self.api = api
        metadata = {"name": NAME, "namespace": NAMESPACE}
        api.objects.create("secrets", {"metadata": metadata})
        hooks = [{"name": "configs.gpu-dra-driver.dev", "clientConfig": {}}]
        api.objects.create(WEBHOOKS, {"metadata": {"name": NAME}, "webhooks": hooks})
        self.flags = ("--self-signed", f"--kubeconfig={api.write_kubeconfig(folder / 'config')}")

    def certificate(self) -> bytes:
        return secret_data(self.api.objects.get("secrets", NAME, NAMESPACE)).get("tls.crt", b"")

    def client(self, process: Process) -> Client:
        """A client that trusts what the API server was told."""
        (authorities,) = ca_bundles(self.api.objects.get(WEBHOOKS, NAME))
        return Client(process.port, authorities)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with ApiServer() as api:
        yield Kept(api, tmp_path)


def test_a_self_made_certificate_outlives_a_kill(run: Run, kept: Kept) -> None:
    first, second = run(*kept.flags), run(*kept.flags)
    for process in (first, second):
        process.wait_ready()
        assert kept.client(process).ask(BAD)["allowed"] is False
    before = kept.certificate()
    first.child.send_signal(signal.SIGKILL)
    assert first.child.wait(60) == -signal.SIGKILL
    again = run(*kept.flags)
    again.wait_ready()
    assert kept.client(again).ask(GOOD)["allowed"] is True
    assert kept.certificate() == before
    for process in (first, second, again):
        assert b"PRIVATE KEY" not in process.log.read_bytes()


def test_without_an_api_server_it_waits_and_says_so(run: Run, kept: Kept) -> None:
    kept.api.stop()
    process = run(*kept.flags)
    wait_for(lambda: process.get("/readyz")[0] == 503, "it is not ready")
    wait_for(lambda: "does not answer" in process.get("/readyz")[1], "it says why")
    assert process.get("/healthz") == (200, "ok\n")
    kept.api.start()
    process.wait_ready()
    assert kept.client(process).ask(GOOD)["allowed"] is True


def test_it_is_renewed_and_no_answer_is_lost(run: Run, kept: Kept) -> None:
    processes = [run(*kept.flags, "--self-signed-lifetime=10s") for _ in range(2)]
    for process in processes:
        process.wait_ready()
    seen, asked = {kept.certificate()}, 0

    def changed() -> bool:
        nonlocal asked
        for process in processes:
            assert kept.client(process).ask(BAD)["allowed"] is False
            asked += 1
        seen.add(kept.certificate())
        return len(seen) > 3

    wait_for(changed, "three renewals", 120)
    print(f"{asked} answers meanwhile")
    _, text = processes[0].get("/metrics")
    assert 'gpu_dra_driver_certificate_changes_total{result="error"} 0.0' in text


def test_a_secret_that_is_missing_is_named(run: Run, kept: Kept) -> None:
    kept.api.objects.delete("secrets", NAME, NAMESPACE)
    process = run(*kept.flags)
    wanted = f'cannot get secrets "{NAMESPACE}/{NAME}"'
    wait_for(lambda: wanted in process.get("/readyz")[1], "it says what is missing")
    metadata = {"name": NAME, "namespace": NAMESPACE}
    kept.api.objects.create("secrets", {"metadata": metadata})
    process.wait_ready()
