"""A small HTTP server for pages that are read by machines."""

import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Final

from dra_driver.model.errors import SettingInvalid
from dra_driver.telemetry import logger

_log = logger(__name__)
_CLIENTS: Final = 16  # at a time
_QUEUE_SECONDS: Final = 1.0  # that one more waits for its turn
_CLIENT_SECONDS: Final = 10.0
_JOIN_SECONDS: Final = 2.0
_PLAIN: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """What one path answers."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = _PLAIN


class HttpServer:
    """Serves GET requests, each in a thread of its own."""

    def __init__(self, address: str, pages: Mapping[str, Callable[[], Page]]) -> None:
        """Serve `pages` by path on `address`, such as `:8080` or `127.0.0.1:8080`.

        Raises SettingInvalid when it is not an address.
        """
        self._address = _split(address)
        self._pages = pages
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
            self._server = _Server(host, port, self._pages)
        except OSError as error:
            raise SettingInvalid(
                f"--http-endpoint: cannot listen on {host or '*'}:{port}: {error.strerror}"
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

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], Page]]) -> None:
        self.pages = pages
        self._free = threading.BoundedSemaphore(_CLIENTS)
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

    def process_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Start a thread for the request; hang up when too many are at work."""
        if not self._free.acquire(timeout=_QUEUE_SECONDS):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Handle one request in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CLIENT_SECONDS  # a client that says nothing loses its thread
    server_version = "dra-driver"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the page of that path."""
        make = self.server.pages.get(self.path.partition("?")[0])
        page = make() if make else Page(b"no such page\n", HTTPStatus.NOT_FOUND)
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        self.wfile.write(page.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Keep requests out of standard error."""
        _log.debug("http request", line=format % args)


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004 - highest port
        raise SettingInvalid(
            f"--http-endpoint: {address!r} is not an address such as :8080 or 127.0.0.1:8080"
        )
    return host.strip("[]"), int(port)
