"""One HTTP exchange with the API server: JSON in, JSON or an error of this driver out."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from urllib3.exceptions import HTTPError, ProtocolError

from dra_driver.kube.errors import Subject, failure
from dra_driver.kube.library import load
from dra_driver.model.errors import ApiUnavailable, ConfigInvalid

if TYPE_CHECKING:
    from kubernetes.client.configuration import Configuration
    from kubernetes.client.rest import RESTResponse

JsonObject: TypeAlias = dict[str, Any]

_METHODS: Final[Mapping[str, str]] = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
_CONNECT_SECONDS: Final = 5.0
_READ_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask: the verb as RBAC calls it, the resource, and where it stands."""

    subject: Subject
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: JsonObject | None = None
    content_type: str = "application/json"


class Connection:
    """Sends requests; safe to use from many threads. Nothing is sent before the first call."""

    def __init__(self, configuration: "Configuration", user_agent: str) -> None:
        """Keep the configuration; `user_agent` is how the API server's log names us."""
        client_type, _ = load()
        self._client: Any = client_type(configuration)  # partly untyped
        self._client.user_agent = user_agent

    def close(self) -> None:
        """Drop the idle connections."""
        self._client.close()

    def call(self, request: Request, timeout: float) -> JsonObject:
        """Answer to a request, within `timeout` seconds; raises errors of the model and of `kube`.

        A read whose kept connection turns out to be dead is sent once more, on a new one.
        """
        deadline = time.monotonic() + timeout
        try:
            return self._exchange(request, deadline)
        except _DeadConnection:
            if _METHODS[request.subject.verb] != "GET":
                raise
            return self._exchange(request, deadline)

    def stream(self, request: Request, silence: float) -> "Stream":
        """Open an answer that goes on, line by line; a silence of so many seconds ends it."""
        response = self._send(request, (_CONNECT_SECONDS, _CONNECT_SECONDS))
        if not _is_success(response.status):
            deadline = time.monotonic() + _CONNECT_SECONDS
            body = _body(response, request.subject, deadline)
            raise failure(request.subject, response.status, response.headers, body)
        return Stream(response, request.subject, silence)

    def _exchange(self, request: Request, deadline: float) -> JsonObject:
        subject = request.subject
        left = max(deadline - time.monotonic(), 0.001)
        response = self._send(request, (min(left, _CONNECT_SECONDS), left))
        body = _body(response, subject, deadline)
        if not _is_success(response.status):
            raise failure(subject, response.status, response.headers, body)
        return _decode(subject, body)

    def _send(self, request: Request, timeouts: tuple[float, float]) -> "RESTResponse":
        headers = {"Accept": "application/json"}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        try:
            method, url, sent, body, _ = self._client.param_serialize(
                _METHODS[request.subject.verb],
                request.path,
                query_params=list(request.query.items()),
                header_params=headers,
                body=request.body,
                auth_settings=["BearerToken"],
            )
            response: RESTResponse = self._client.call_api(
                method, url, sent, body, _request_timeout=timeouts
            )
        except ProtocolError as error:
            raise _DeadConnection(_unanswered(request.subject, error)) from error
        except Exception as error:  # urllib3, ssl, the library's own and credential plugins'
            raise ApiUnavailable(_unanswered(request.subject, error)) from error
        return response


class _DeadConnection(ApiUnavailable):
    """The connection broke before an answer came."""


class Stream:
    """JSON objects that arrive one a line until the server ends or `close` is called."""

    def __init__(self, response: "RESTResponse", subject: Subject, silence: float) -> None:
        """Take over an open response; from now on the line may be silent for longer."""
        self._response = response.response
        self._subject = subject
        connection: Any = self._response.connection
        if connection is not None and connection.sock is not None:
            connection.sock.settimeout(silence)

    def __iter__(self) -> Iterator[JsonObject]:
        """Yield objects; ends silently at the end of the answer or after a long silence."""
        rest = b""
        try:
            for piece in self._response.stream(_READ_BYTES):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield _decode(self._subject, line)
        except (HTTPError, OSError, ValueError, AttributeError):
            return  # cut off, silent for too long, or closed from another thread
        finally:
            self._response.close()

    def close(self) -> None:
        """Wake a thread that waits for the next object and let it end."""
        try:
            self._response.shutdown()
        except (OSError, ValueError, RuntimeError):
            return  # it has ended by itself


def _is_success(status: int) -> bool:
    return 200 <= status < 300  # noqa: PLR2004


def _body(response: "RESTResponse", subject: Subject, deadline: float) -> bytes:
    """Read the whole answer; each read has the socket's timeout, all of them the deadline."""
    parts: list[bytes] = []
    try:
        for part in response.response.stream(_READ_BYTES):
            parts.append(part)
            if time.monotonic() > deadline:
                response.response.close()
                raise ApiUnavailable(f"cannot {subject}: the answer took too long")
    except (HTTPError, OSError) as error:
        raise ApiUnavailable(_unanswered(subject, error)) from error
    response.response.release_conn()
    return b"".join(parts)


def _decode(subject: Subject, text: bytes) -> JsonObject:
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise ApiUnavailable(f"cannot {subject}: the answer is not JSON: {text[:80]!r}") from error
    except RecursionError as error:  # only parameters of a claim can be: 10 KiB of anything
        raise ConfigInvalid(
            f"cannot {subject}: parameters of a config are nested too deeply to be read"
        ) from error
    if not isinstance(answer, dict):
        raise ApiUnavailable(f"cannot {subject}: the answer is not a JSON object: {text[:80]!r}")
    return answer


def _unanswered(subject: Subject, error: Exception) -> str:
    return f"cannot {subject}: the API server does not answer: {str(error) or type(error).__name__}"
