"""A small HTTP server for what machines ask: metrics, probes, the API server's questions."""

import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Final, TypeAlias, cast

from prometheus_client import CONTENT_TYPE_LATEST

from dra_driver.model.errors import SettingInvalid
from dra_driver.telemetry.logs import logger
from dra_driver.telemetry.metrics import Metrics

_log = logger(__name__)
_CLIENTS: Final = 16  # at a time
_QUEUE_SECONDS: Final = 1.0  # that one more waits, and that each of those at work has then had
_CLIENT_SECONDS: Final = 10.0
_JOIN_SECONDS: Final = 2.0
_MOST_DISCARDED: Final = 8 << 20  # bytes that are read of what is refused
_PLAIN: Final = "text/plain; charset=utf-8"

_Connection: TypeAlias = socket.socket | tuple[bytes, socket.socket]  # the base class's words


@dataclass(frozen=True, slots=True)
class Page:
    """What one path answers."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = _PLAIN


@dataclass(frozen=True, slots=True)
class Question:
    """What one path answers to what is posted there."""

    answer: Callable[[bytes], Page]
    content_type: str  # of what is posted
    longest: int  # bytes


Reasons: TypeAlias = Callable[[], list[str]]
Answers: TypeAlias = Mapping[str, Callable[[], Page] | Question]


_NO_PAGE: Final = Page(b"no such page\n", HTTPStatus.NOT_FOUND)


class HttpServer:
    """Serves GET requests and questions, each in a thread of its own."""

    def __init__(
        self,
        address: str,
        answers: Answers,
        *,
        flag: str = "--http-endpoint",
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """Serve `answers` by path on `address`, such as `:8080` or `127.0.0.1:8080`.

        Each connection asks `tls` anew for what to show. Raises SettingInvalid that names `flag`
        when it is not an address.
        """
        self._flag = flag
        self._address = _split(address, flag)
        self._answers = answers
        self._tls = tls
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """Port in use, also where the system chose it; 0 before the start."""
        return self._server.server_port if self._server else 0

    def start(self) -> None:
        """Listen and serve. Raises SettingInvalid that says why not."""
        host, port = self._address
        try:
            self._server = _Server(host, port, self._answers, self._tls)
        except OSError as error:
            raise SettingInvalid(
                f"{self._flag}: cannot listen on {host or '*'}:{port}: {error.strerror}"
            ) from error
        self._thread = threading.Thread(target=self._server.serve, name="http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; requests in progress end by themselves."""
        if self._server is not None and self._thread is not None:
            self._server.end()
            self._thread.join(_JOIN_SECONDS)
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        host: str,
        port: int,
        answers: Answers,
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self.answers = answers
        self._tls = tls
        self._free = threading.BoundedSemaphore(_CLIENTS)
        self._since: dict[socket.socket, float] = {}  # connections and when they came
        self._ended = False
        everywhere = not host
        if everywhere and socket.has_dualstack_ipv6():
            host = "::"
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler, bind_and_activate=False)
        try:
            if self.address_family is socket.AF_INET6 and everywhere:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self.server_bind()
            self.server_activate()
        except OSError:
            self.server_close()
            raise

    def server_bind(self) -> None:
        """Bind without asking the name service who we are, as the base class would."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", int(self.server_address[1])

    def serve(self) -> None:
        """Serve until `end`; unlike `serve_forever`, without looking twice a second for that."""
        while not self._ended:
            self.handle_request()

    def end(self) -> None:
        """End `serve`: a listening socket that is shut down wakes whoever waits for it."""
        self._ended = True
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: _Connection, client_address: object) -> None:
        """Start a thread for the request; hang up when too many are at work."""
        if not self._free.acquire(timeout=_QUEUE_SECONDS):
            self._hang_up_on_the_slow()
            if not self._free.acquire(timeout=_QUEUE_SECONDS):
                self.shutdown_request(request)
                return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: _Connection, client_address: object) -> None:
        """Handle one request in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: _Connection, client_address: object) -> None:
        """Serve one connection, after its handshake where there is one."""
        connection = cast("socket.socket", request)  # this is a server of streams
        connection.settimeout(_CLIENT_SECONDS)  # a client that says nothing loses its thread
        if self._tls is None:
            with self._timed(connection):
                super().finish_request(connection, client_address)
            return
        # From here on the plain socket is empty: its caller can close it no more.
        with (
            self._tls().wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            ) as secure,
            self._timed(secure),
        ):
            secure.do_handshake()
            super().finish_request(secure, client_address)

    def handle_error(self, request: _Connection, client_address: object) -> None:
        """Log what broke a connection; mostly the client did."""
        del request, client_address
        _log.debug("a connection broke", err=sys.exception())

    @contextmanager
    def _timed(self, connection: socket.socket) -> Iterator[None]:
        self._since[connection] = time.monotonic()
        try:
            yield
        finally:
            del self._since[connection]

    def _hang_up_on_the_slow(self) -> None:
        """End the connections that keep others waiting, however lively they are."""
        now = time.monotonic()
        for connection, since in list(self._since.items()):
            if now - since > _QUEUE_SECONDS:
                with suppress(OSError):  # not TLS's own, which takes the other thread's state away
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = None  # the connection has it
    wbufsize = -1  # headers and body leave together
    server_version = "dra-driver"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the page of that path."""
        answer = self._asked()
        if isinstance(answer, Question):
            self._send(Page(b"only POST is answered here\n", HTTPStatus.METHOD_NOT_ALLOWED))
        else:
            self._send(self._made(answer) if answer else _NO_PAGE)

    def do_POST(self) -> None:
        """Answer the question that is posted to that path."""
        asked, length = self._asked(), self._length()
        problem = self._problem(asked, length)
        if isinstance(asked, Question) and problem is None:
            self._send(self._answered(asked, length or 0))
        elif problem is not None:
            self._send(problem)
            self.wfile.flush()  # closing with something unread would take the answer back
            self.rfile.read(min(length or 0, _MOST_DISCARDED))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Keep requests out of standard error."""
        _log.debug("http request", line=format % args)

    def _asked(self) -> Callable[[], Page] | Question | None:
        return self.server.answers.get(self.path.partition("?")[0])

    def _length(self) -> int | None:
        text = self.headers.get("Content-Length", "")
        return int(text) if re.fullmatch("[0-9]{1,18}", text) else None

    def _problem(
        self, asked: Callable[[], Page] | Question | None, length: int | None
    ) -> Page | None:
        """Say why what is posted is not even read."""
        if asked is None:
            return _NO_PAGE
        if not isinstance(asked, Question):
            return Page(b"only GET is answered here\n", HTTPStatus.METHOD_NOT_ALLOWED)
        if self.headers.get_content_type() != asked.content_type:
            wanted = f"only {asked.content_type} is read here\n".encode()
            return Page(wanted, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        if length is None:
            return Page(b"Content-Length is missing\n", HTTPStatus.LENGTH_REQUIRED)
        if length > asked.longest:
            limit = f"more than {asked.longest} bytes\n".encode()
            return Page(limit, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return None

    def _answered(self, question: Question, length: int) -> Page:
        body = self.rfile.read(length)
        if len(body) < length:
            return Page(b"the body ends too soon\n", HTTPStatus.BAD_REQUEST)
        return self._made(partial(question.answer, body))

    def _made(self, make: Callable[[], Page]) -> Page:
        try:
            return make()
        except Exception:  # noqa: BLE001 - the client must hear that it was not its fault
            _log.exception("a request could not be answered", path=self.path)
            return Page(b"internal error\n", HTTPStatus.INTERNAL_SERVER_ERROR)

    def _send(self, page: Page) -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        self.wfile.write(page.body)


def watched(metrics: Metrics, alive: Reasons, ready: Reasons, notes: Reasons = list) -> Answers:
    """Make the pages `/metrics`, `/healthz` and `/readyz`; reasons speak against it.

    Notes are for the reader of `/readyz` and change no verdict.
    """
    return {
        "/metrics": lambda: Page(metrics.exposition(), content_type=CONTENT_TYPE_LATEST),
        "/healthz": lambda: _verdict(alive()),
        "/readyz": lambda: _verdict(ready(), notes()),
    }


def _verdict(reasons: list[str], notes: list[str] | None = None) -> Page:
    """200 and `ok`, or 503 and one line per reason; then one line per note."""
    said = [*(reasons or ["ok"]), *(f"note: {note}" for note in notes or ())]
    lines = "".join(" ".join(line.split()) + "\n" for line in said)
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    return Page(lines.encode(), status)


def _split(address: str, flag: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004 - highest port
        raise SettingInvalid(
            f"{flag}: {address!r} is not an address such as :8080 or 127.0.0.1:8080"
        )
    return host.strip("[]"), int(port)
