"""A small client of the API server: the harness waits by watching, without a program per look."""

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

from tests.cluster.cache import HarnessError
from tests.cluster.pki import Authority, Identity

Object = dict[str, Any]

_REQUEST_SECONDS = 30.0
_WATCH_SECONDS = 600.0  # the server ends a watch when asked to; this is for a server that hangs
_GONE = 410


class ApiError(HarnessError):
    """The API server refused a request: `status` is the HTTP status, `body` its answer."""

    def __init__(self, status: int, method: str, path: str, body: str) -> None:
        """Keep the status and the body for callers that tell cases apart."""
        super().__init__(f"{method} {path}: HTTP {status}: {body[:1000]}")
        self.status = status
        self.body = body


class Api:
    """Speaks raw JSON with the API server, one connection a request, as one user."""

    def __init__(
        self, address: tuple[str, int], authority: Authority, user: Identity | str
    ) -> None:
        """Prepare it for a user with a certificate or a token; nothing is sent yet."""
        self._address = address
        self._tls = ssl.create_default_context(cafile=str(authority.certificate))
        self._headers = {"Connection": "close"}
        if isinstance(user, str):
            self._headers["Authorization"] = f"Bearer {user}"
        else:
            self._tls.load_cert_chain(user.certificate, user.key)

    def get(self, path: str, **query: str) -> Object:
        """Get an object or a list."""
        return self._json("GET", path, query=query)

    def create(self, path: str, body: Object) -> Object:
        """Post an object into the collection at this path."""
        return self._json("POST", path, body)

    def warned(self, path: str, body: Object) -> list[str]:
        """Post an object into the collection at this path; gives the server's warnings."""
        with self._request("POST", path, body) as answer:
            return answer.headers.get_all("Warning") or []

    def update(self, path: str, body: Object) -> Object:
        """Replace the object at this path."""
        return self._json("PUT", path, body)

    def patch(self, path: str, body: Object) -> Object:
        """Merge fields into the object at this path (JSON merge patch)."""
        return self._json("PATCH", path, body, content="application/merge-patch+json")

    def delete(self, path: str, **query: str) -> None:
        """Delete the object at this path; one that is not there is fine."""
        try:
            self._json("DELETE", path, query=query)
        except ApiError as error:
            if error.status != http.client.NOT_FOUND:
                raise

    def find(self, path: str) -> Object:
        """Get an object, or an empty one where there is nothing at this path."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status != http.client.NOT_FOUND:
                raise
            return {}

    def text(self, path: str) -> str:
        """Get a path that doesn't answer JSON, such as `/readyz` or a log."""
        with self._request("GET", path) as answer:
            return answer.read().decode()

    def wait(
        self, path: str, wanted: Callable[[Object], bool], what: str, timeout: float = 60.0
    ) -> Object:
        """Watch one object until it is as wanted, and return it.

        `path` is that of the object, which need not be there yet. Raises HarnessError with the
        object's last state after `timeout` seconds.
        """
        last: Object = {}
        for last in self.watch(path, timeout):
            if wanted(last):
                return last
        shown = json.dumps(last.get("status", last))
        raise HarnessError(f"{path}: not {what} after {timeout:.0f} s; last seen: {shown}")

    def wait_gone(self, path: str, timeout: float = 60.0) -> None:
        """Wait until there is nothing at this path."""
        self.wait(path, lambda found: not found, "gone", timeout)

    def watch(self, path: str, timeout: float) -> Iterator[Object]:
        """Yield one object's state, now and at each change, for `timeout` seconds.

        An object that is not there is yielded as an empty one.
        """
        collection, _, name = path.rpartition("/")
        deadline = time.monotonic() + timeout
        selector = f"metadata.name={name}"
        while time.monotonic() < deadline:
            found = self.get(collection, fieldSelector=selector)
            yield found["items"][0] if found["items"] else {}
            seconds = str(max(1, round(deadline - time.monotonic())))
            query = {
                "watch": "1",
                "fieldSelector": selector,
                "resourceVersion": found["metadata"]["resourceVersion"],
                "timeoutSeconds": seconds,
            }
            yield from self._events(collection, query)

    def _events(self, collection: str, query: dict[str, str]) -> Iterator[Object]:
        with self._request("GET", collection, query=query, timeout=_WATCH_SECONDS) as stream:
            for line in stream:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    if event["object"].get("code") != _GONE:
                        raise HarnessError(f"watch of {collection}: {event['object']}")
                    return  # too old: list again
                yield {} if event["type"] == "DELETED" else event["object"]

    def _json(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: dict[str, str] | None = None,
        content: str = "application/json",
    ) -> Object:
        with self._request(method, path, body, query=query, content=content) as answer:
            document: Object = json.load(answer)
            return document

    def _request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: dict[str, str] | None = None,
        content: str = "application/json",
        timeout: float = _REQUEST_SECONDS,
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPSConnection(*self._address, context=self._tls, timeout=timeout)
        payload = json.dumps(body) if body is not None else None
        target = f"{path}?{urlencode(query)}" if query else path
        headers = {"Content-Type": content, **self._headers}
        connection.request(method, target, payload, headers)
        answer = connection.getresponse()
        if answer.status >= http.client.BAD_REQUEST:
            with answer:
                raise ApiError(answer.status, method, path, answer.read().decode())
        return answer
