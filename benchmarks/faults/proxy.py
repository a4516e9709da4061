"""A storage emulator on loopback behind a proxy that misbehaves as networks and servers do.

The proxy also adds what the emulator lacks: `ifGenerationMatch=0` is refused with 412 where the object exists.
"""

import contextlib
import http.client
import json
import logging
import re
import socket
import struct
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Answer = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers, body."""
Kind = Literal["status", "reset", "stall", "lost_ack", "truncate"]


@dataclass(frozen=True)
class Request:
    """A request; the object's name is the one in the address or in the metadata of an upload, if any."""

    method: str
    path: str
    name: str
    content_range: str


@dataclass
class Fault:
    """A fault that befalls `times` of the requests that match.

    `status` answers with `code`, `reset` closes before the request is passed on, `stall` says nothing until the proxy
    stops, `lost_ack` passes it on and closes without an answer, `truncate` closes in the middle of the answer's body.
    """

    kind: Kind
    matches: Callable[[Request], bool]
    times: float = 1
    code: int = 503
    seen: int = 0


@dataclass
class FaultProxy:
    """A server that forwards to an upstream port on loopback.

    `requests` is what came in, with the status that was answered. Of `lies` the keys are replaced in JSON answers: by
    names, say, that the emulator would not store.
    """

    upstream: int
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[Request, int]] = field(default_factory=list)
    lies: dict[bytes, bytes] = field(default_factory=dict)
    stopping: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    conditional: threading.Lock = field(default_factory=threading.Lock)

    def inject(self, kind: Kind, matches: Callable[[Request], bool], times: float = 1, code: int = 503) -> Fault:
        """Let this go wrong from now on."""
        fault = Fault(kind, matches, times, code)
        with self.lock:
            self.faults.append(fault)
        return fault

    def due(self, request: Request) -> Fault | None:
        """Return the fault that this request meets."""
        with self.lock:
            for fault in self.faults:
                if fault.seen < fault.times and fault.matches(request):
                    fault.seen += 1
                    return fault
        return None

    def note(self, request: Request, status: int) -> None:
        """Remember a request and its answer; status 0 stands for none."""
        with self.lock:
            self.requests.append((request, status))

    def forward(self, request: Request, headers: dict[str, str], body: bytes) -> Answer:
        """Pass a request on, in turn if it has a precondition."""
        if request.method != "POST" or _query(request.path).get("ifGenerationMatch") != ["0"]:
            return self._ask(request.method, request.path, headers, body)
        with self.conditional:
            bucket = re.search(r"/b/([^/?]+)/o", request.path)
            name = urllib.parse.quote(request.name, safe="")
            if bucket and self._ask("GET", f"/storage/v1/b/{bucket[1]}/o/{name}", {}, b"")[0] == 200:
                return 412, [("Content-Type", "application/json")], _error(412)
            return self._ask(request.method, request.path, headers, body)

    def _ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=250)
        with contextlib.closing(connection):
            connection.request(method, path, body=body or None, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()


@contextlib.contextmanager
def running(proxy: FaultProxy) -> Iterator[int]:
    """Run the proxy in separate threads; yield its port."""
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        proxy.stopping.set()
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def emulator(*buckets: str) -> Iterator[int]:
    """Run a storage emulator in memory with these buckets; yield its port."""
    from gcp_storage_emulator.handlers.buckets import create_bucket
    from gcp_storage_emulator.server import create_server

    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    server = create_server("127.0.0.1", 0, in_memory=True)
    server.start()
    server.wipe()
    for bucket in buckets:
        create_bucket(bucket, server._storage)
    try:
        yield server._api._httpd.server_address[1]
    finally:
        server.stop()


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultProxy

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(
            self.command, self.path, _object_name(self.path, body), self.headers.get("Content-Range") or ""
        )
        fault = self.proxy.due(request)
        kind = fault.kind if fault else None
        if kind == "stall":
            self.proxy.stopping.wait(30)
        if kind in ("reset", "stall"):
            self.proxy.note(request, 0)
            return self._reset()
        if fault and kind == "status":
            status, headers, answer = fault.code, [("Content-Type", "application/json")], _error(fault.code)
        else:
            passed = {name: value for name, value in self.headers.items() if name.lower() != "accept-encoding"}
            status, headers, answer = self.proxy.forward(request, passed, body)
            if ("Content-type", "application/json") in headers:
                for truth, lie in self.proxy.lies.items():
                    answer = answer.replace(truth, lie)
        if kind == "lost_ack":
            self.proxy.note(request, 0)
            return self._reset()
        self.proxy.note(request, status)
        self._answer(status, headers, answer, kind)

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, kind: str | None) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "server", "date", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body[: len(body) // 2] if kind == "truncate" else body)
            self.wfile.flush()
        self.close_connection = True

    def _reset(self) -> None:
        # Lingering for no time makes closing send a reset instead of a farewell.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.close()

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _handle

    def log_message(self, format: str, *args: Any) -> None:
        return


def _object_name(path: str, body: bytes) -> str:
    in_path = re.search(r"/o/([^?]+)", path)
    if in_path:
        return urllib.parse.unquote(in_path[1])
    if name := _query(path).get("name"):
        return name[0]
    described = re.search(rb'"name": *"([^"]*)"', body[:4096])
    return described[1].decode() if described else ""


def _query(path: str) -> dict[str, list[str]]:
    return urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)


def _error(code: int) -> bytes:
    return json.dumps({"error": {"code": code, "message": f"injected {code}"}}).encode()
