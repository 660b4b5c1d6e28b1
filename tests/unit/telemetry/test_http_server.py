"""The HTTP server: pages, probes and their reasons, questions, clients that misbehave."""

import http.client
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from dra_driver.model.errors import SettingInvalid
from dra_driver.telemetry import Metrics
from dra_driver.telemetry.http_server import HttpServer, Page, Question, watched
from tests.support.api import wait_for


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Endpoint:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.notes: list[str] = []
        pages = watched(Metrics(), lambda: self.reasons, lambda: self.reasons, lambda: self.notes)
        self.server = HttpServer("127.0.0.1:0", pages)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    endpoint.server.start()
    yield endpoint
    endpoint.server.stop()


def test_http_answers_ok_or_one_line_per_reason(endpoint: Endpoint) -> None:
    port = endpoint.server.port
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/readyz?verbose=1") == (200, "ok\n")
    endpoint.reasons = ["not\nregistered", "no slices"]
    assert get(port, "/healthz") == (503, "not registered\nno slices\n")
    assert get(port, "/readyz") == (503, "not registered\nno slices\n")
    endpoint.notes = ["two\nof us"]
    assert get(port, "/readyz") == (503, "not registered\nno slices\nnote: two of us\n")
    endpoint.reasons = []
    assert get(port, "/readyz") == (200, "ok\nnote: two of us\n")
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/metrics")[0] == 200
    assert "gpu_dra_driver_registered 0.0" in get(port, "/metrics")[1]
    assert get(port, "/etc/passwd") == (404, "no such page\n")


def test_a_page_that_can_not_be_made_says_so(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.reasons = [None]  # type: ignore[list-item]
    assert get(endpoint.server.port, "/readyz") == (500, "internal error\n")
    assert [record.message for record in caplog.records if record.exc_info] == [
        "a request could not be answered"
    ]
    endpoint.reasons = []
    assert get(endpoint.server.port, "/readyz") == (200, "ok\n")


def test_http_survives_clients_that_say_nothing(endpoint: Endpoint) -> None:
    address = ("127.0.0.1", endpoint.server.port)
    silent = [socket.create_connection(address) for _ in range(20)]
    wait_for(lambda: _answers(endpoint.server.port), "an answer in spite of silent clients")
    for client in silent:
        client.close()


def _answers(port: int) -> bool:
    try:
        return get(port, "/healthz") == (200, "ok\n")
    except OSError:
        return False


def test_http_listens_on_ipv4_and_ipv6_when_no_host_is_given() -> None:
    server = HttpServer(":0", {"/": lambda: Page(b"here")})
    server.start()
    assert get(server.port, "/") == (200, "here")
    if socket.has_dualstack_ipv6():
        with urllib.request.urlopen(f"http://[::1]:{server.port}/", timeout=30) as answer:
            assert answer.read() == b"here"
    server.stop()


@pytest.mark.parametrize("address", ["8080", ":port", ":70000", "host", ""])
def test_a_bad_http_address_is_named(address: str) -> None:
    with pytest.raises(SettingInvalid, match=r"--http-endpoint: .* is not an address"):
        HttpServer(address, {})


def test_ports_that_are_taken_are_named() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingInvalid, match=f"--http-endpoint: .*:{port}: Address already"):
            HttpServer(f":{port}", {}).start()


class Echo:
    """A server that repeats what is posted to it."""

    def __init__(self) -> None:
        self.server = HttpServer("127.0.0.1:0", {"/ask": Question(self.answer, "text/x", 1000)})
        self.fails = False

    def answer(self, body: bytes) -> Page:
        if self.fails:
            raise ValueError("a mistake of ours")
        return Page(body)

    def post(
        self, body: bytes, path: str = "/ask", method: str = "POST", **headers: str
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        sent = {"Content-Type": "text/x"} | {k.replace("_", "-"): v for k, v in headers.items()}
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    echo.server.start()
    yield echo
    echo.server.stop()


def test_a_question_is_answered(echo: Echo) -> None:
    assert echo.post(b"x" * 1000) == (200, b"x" * 1000)
    assert echo.post(b"") == (200, b"")
    assert echo.post(b"x", Content_Type="text/x; charset=utf-8") == (200, b"x")


def test_what_is_no_question_is_refused_by_its_status(echo: Echo) -> None:
    assert echo.post(b"x", "/other") == (404, b"no such page\n")
    assert echo.post(b"", method="GET") == (405, b"only POST is answered here\n")
    assert echo.post(b"x", Content_Type="text/y") == (415, b"only text/x is read here\n")
    assert echo.post(b"x" * 1001) == (413, b"more than 1000 bytes\n")
    assert echo.post(b"x", Content_Length="9" * 30) == (411, b"Content-Length is missing\n")
    assert echo.post(b"x", Content_Length="-1") == (411, b"Content-Length is missing\n")
    assert echo.post(b"x", method="PUT")[0] == 501


def test_pages_are_not_posted_to(endpoint: Endpoint) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.server.port, timeout=30)
    connection.request("POST", "/healthz", b"x")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (405, b"only GET is answered here\n")


def test_a_mistake_of_ours_is_told_apart(echo: Echo) -> None:
    echo.fails = True
    assert echo.post(b"x") == (500, b"internal error\n")
    echo.fails = False
    assert echo.post(b"x") == (200, b"x")


def test_a_body_that_ends_too_soon_is_refused(echo: Echo) -> None:
    with socket.create_connection(("127.0.0.1", echo.server.port), 30) as client:
        client.sendall(b"POST /ask HTTP/1.1\r\nContent-Type: text/x\r\nContent-Length: 9\r\n\r\nx")
        client.shutdown(socket.SHUT_WR)
        assert b" 400 " in client.recv(1000)


def test_clients_that_drip_do_not_keep_others_out(echo: Echo) -> None:
    """Each of their letters comes in time; their connections last too long all the same."""
    done = threading.Event()
    address = ("127.0.0.1", echo.server.port)
    clients = [socket.create_connection(address, 30) for _ in range(16)]

    def drip() -> None:
        while not done.wait(0.2):
            for client in clients:
                try:
                    client.sendall(b"x")
                except OSError:
                    continue

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        wait_for(lambda: _answer_of(echo) == (200, b"x"), "an answer in spite of slow clients")
    finally:
        done.set()
        thread.join()
        for client in clients:
            client.close()


def _answer_of(echo: Echo) -> tuple[int, bytes]:
    try:
        return echo.post(b"x")
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error).encode()
