"""HTTP face of the API stand-in: paths, verbs, watches, faults."""

import copy
import json
import socket
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from dra_driver.simulator.api_server.apply import CONTENT_TYPE, apply
from dra_driver.simulator.api_server.calls import (
    Call,
    decode,
    identify,
    merge_patch,
    place,
    selector,
    understand,
)
from dra_driver.simulator.api_server.kinds import ApiError, JsonObject, Resource, selects

if TYPE_CHECKING:
    from dra_driver.simulator.api_server.server import ApiServer


_PATCH_TRIES: Final = 6  # apiserver/pkg/endpoints/handlers/patch.go: one, and five more


class Listener(ThreadingHTTPServer):
    """Accepts connections and remembers them, so that a stopped server drops them all."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, api: "ApiServer", port: int) -> None:
        """Bind on loopback."""
        self.api = api
        self.open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Serve one connection in a thread."""
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401
        """Forget a connection that has ended."""
        self.open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Say nothing: connections that break are part of the game."""

    def drop_connections(self) -> None:
        """Cut all open connections, watches too."""
        for connection in list(self.open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class Handler(BaseHTTPRequestHandler):
    """Serves the requests of one connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body leave together
    disable_nagle_algorithm = True
    server: Listener

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base names it
        """Stay silent: `ApiServer.requests` is the log."""

    def _serve(self) -> None:
        url = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        verb, resource = identify(self.command, url.path, query)
        entry = self.server.api.requests.begin(verb, resource, self.path)
        fault = self.server.api.faults.take(verb, self.path)
        if fault is not None and fault.seconds:
            self.server.api.stopping.wait(fault.seconds)
        if fault is not None and fault.status > 0:
            entry.status = fault.status
            error = ApiError(fault.status, "InternalError", "a fault was asked for")
            self._answer(fault.status, error.status(), fault.headers)
            return
        self.close_connection |= fault is not None and fault.status == 0
        if self.close_connection and fault is not None and not fault.done:
            entry.status = -1
            return
        try:
            self._check_token()
            status, answer = self._handle(url.path, query, body, entry)
        except ApiError as error:
            status, answer = error.code, error.status()
        entry.status = status
        if answer is not None and not (fault is not None and fault.done):
            self._answer(status, answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - the base names them

    def _check_token(self) -> None:
        tokens = self.server.api.tokens
        if tokens is not None:
            _, _, token = self.headers.get("Authorization", "").partition(" ")
            if token not in tokens:
                raise ApiError(401, "Unauthorized", "Unauthorized")

    def _handle(
        self,
        path: str,
        query: Mapping[str, str],
        body: bytes,
        entry: Any,  # noqa: ANN401
    ) -> tuple[int, JsonObject | None]:
        api = self.server.api
        if path == "/version":
            major, minor, _ = api.version
            return 200, {
                "major": str(major),
                "minor": str(minor),
                "gitVersion": "v" + ".".join(map(str, api.version)),
            }
        call = understand(self.command, path, query)
        if call.verb == "watch":
            entry.status = 200
            self._watch(call)
            return 200, None
        given = decode(body) if body else {}
        status = 201 if call.verb == "create" else 200
        return status, self._act(call, given)

    def _act(self, call: Call, given: JsonObject) -> JsonObject:
        objects, plural = self.server.api.objects, call.resource.plural
        if call.verb == "list":
            return self._list(call)
        if call.verb == "get":
            return objects.get(plural, call.name, call.namespace)
        if call.verb in ("delete", "deletecollection"):
            return self._delete(call, given)
        if call.verb == "patch":
            return self._patch(call, given)
        place(given, call)
        if call.verb == "create":
            return objects.create(plural, given, dry_run=call.dry_run)
        return objects.replace(plural, given, part=call.part, dry_run=call.dry_run)

    def _patch(self, call: Call, given: JsonObject) -> JsonObject:
        """Make the change, again when the object was changed meanwhile, as the real server does.

        A patch that names a resourceVersion is for that one only.
        """
        objects, plural = self.server.api.objects, call.resource.plural
        tries = 1 if "resourceVersion" in given.get("metadata", {}) else _PATCH_TRIES
        while True:
            tries -= 1
            old = objects.get(plural, call.name, call.namespace)
            new = self._patched(old, copy.deepcopy(given), call)
            place(new, call)
            try:
                return objects.replace(plural, new, part=call.part, dry_run=call.dry_run)
            except ApiError as error:
                if error.code != HTTPStatus.CONFLICT or not tries:
                    raise

    def _patched(self, old: JsonObject, given: JsonObject, call: Call) -> JsonObject:
        """Object after a patch, with the resourceVersion that it is made from."""
        place(given, call)
        uid = given["metadata"].get("uid", old["metadata"]["uid"])
        if uid != old["metadata"]["uid"]:
            causes = (("metadata.uid", f'Invalid value: "{uid}": field is immutable'),)
            raise ApiError(422, "Invalid", f"{call.resource.kind} is invalid: metadata.uid", causes)
        if self.headers.get("Content-Type") == CONTENT_TYPE:
            return apply(old, given, call)
        merged: JsonObject = merge_patch(old, given)
        return merged

    def _list(self, call: Call) -> JsonObject:
        api = self.server.api
        items, version = api.objects.snapshot(
            call.resource.plural, selector(call, api.version), call.namespace
        )
        return {
            "apiVersion": call.resource.api_version,
            "kind": f"{call.resource.kind}List",
            "metadata": {"resourceVersion": str(version)},
            "items": items,
        }

    def _delete(self, call: Call, options: JsonObject) -> JsonObject:
        objects, plural = self.server.api.objects, call.resource.plural
        if call.verb == "deletecollection":
            found = objects.select(plural, selector(call, self.server.api.version), call.namespace)
            for obj in found:
                metadata = obj["metadata"]
                objects.delete(plural, metadata["name"], metadata.get("namespace", ""))
        else:
            required = options.get("preconditions") or {}
            objects.delete(
                plural,
                call.name,
                call.namespace,
                uid=required.get("uid"),
                version=required.get("resourceVersion"),
            )
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def _watch(self, call: Call) -> None:
        """Send what changes until the time is over, the client goes, or the server stops."""
        api, plural = self.server.api, call.resource.plural
        wanted = selector(call, api.version)
        items, now = api.objects.snapshot(plural, wanted, call.namespace)
        position = int(call.query.get("resourceVersion") or 0)
        seconds = float(call.query.get("timeoutSeconds") or 3600)
        ends = time.monotonic() + seconds
        if position:
            api.objects.changes_after(position, plural, 0)  # too old: 410 before anything is sent
        self._begin(200, {"Transfer-Encoding": "chunked"})
        self.wfile.flush()
        if not position:
            position = now
            for item in items:
                self._chunk({"type": "ADDED", "object": item})
        watched = api.watches
        next_bookmark = time.monotonic() + api.bookmark_seconds
        while time.monotonic() < ends and not api.stopping.is_set() and watched == api.watches:
            try:
                changes, position = api.objects.changes_after(position, plural, 0.5)
            except ApiError as error:
                self._chunk({"type": "ERROR", "object": error.status()})
                break
            for change in changes:
                if selects(change.object, wanted, call.namespace):
                    self._chunk({"type": change.kind, "object": change.object})
            if "allowWatchBookmarks" in call.query and time.monotonic() >= next_bookmark:
                next_bookmark = time.monotonic() + api.bookmark_seconds
                self._chunk(_bookmark(call.resource, position))
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _chunk(self, obj: JsonObject) -> None:
        line = json.dumps(obj).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()

    def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def _answer(
        self, status: int, obj: JsonObject, headers: Mapping[str, str] | None = None
    ) -> None:
        body = json.dumps(obj).encode()
        self._begin(status, {**(headers or {}), "Content-Length": str(len(body))})
        self.wfile.write(body)
        self.wfile.flush()


def _bookmark(resource: Resource, position: int) -> JsonObject:
    obj = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"resourceVersion": str(position)},
    }
    return {"type": "BOOKMARK", "object": obj}
