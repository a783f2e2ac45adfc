"""Object storage of a test: in memory, or an S3 server, moto's, behind faults that a test asks for.

`python -m tests.object_store` runs the server.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import obstore
import pytest
from obstore.store import MemoryStore

from unet_ddp.extras.cloud import Url, clients, put

BUCKET = "bucket"
REQUESTS = ("delete", "get", "get_range", "head", "list", "list_with_delimiter", "put")


class MemoryBucket:
    """The bucket of a test, in its process; for all that is not about requests and their faults."""

    def __init__(self) -> None:
        self.store, self.requests = MemoryStore(), 0

    def count_requests(self) -> int:
        """Return the number of requests so far; a listing counts as one."""
        return self.requests

    def _counted(self, function: Any) -> Any:
        def call(*args: Any, **how: Any) -> Any:
            self.requests += 1
            return function(*args, **how)

        return call

    def take_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Be what s3://bucket means; other containers keep their clients."""
        connect = clients.connect

        def find(container: str, *how: Any) -> Any:
            return self.store if container == f"s3://{BUCKET}" else connect(container, *how)

        monkeypatch.setattr(clients, "connect", find)
        monkeypatch.setattr(clients, "reached", set[str]())
        for name in REQUESTS:
            monkeypatch.setattr(obstore, name, self._counted(getattr(obstore, name)))


class ObjectStore:
    """A server with one bucket, as its users see it."""

    def __init__(self, port: int, process: int) -> None:
        self.process = process
        self.address = f"http://127.0.0.1:{port}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }
        self._ask("PUT", f"/{BUCKET}")

    def set_fault(self, kind: str, *, every: int = 1, method: str = "GET", count: int = -1) -> None:
        """Give every n-th answer to `method` a fault, `count` times in all (-1: without end).

        Kinds: throttled (503), denied (403), cut (before the request is heard), unheard (done, the answer cut),
        half (of an object), none.
        """
        self._ask("POST", f"/_fault/{kind}/{every}/{method}/{count}")

    def count_requests(self) -> int:
        """Return the number of requests so far, those for faults and counts left out."""
        return int(self._ask("POST", "/_count"))

    def _ask(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(self.address + path, method=method)
        with urllib.request.urlopen(request) as answer:
            content: bytes = answer.read()
        return content


def put_folder(folder: Path, address: Url) -> Url:
    """Put all files below `folder` under `address`, and return it."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            put(address / path.relative_to(folder), path)
    return address


@contextlib.contextmanager
def running_store() -> Iterator[ObjectStore]:
    """Start a server, in a process of its own, and end it."""
    command = [sys.executable, "-m", "tests.object_store"]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env={**os.environ}
    )
    try:
        assert server.stdout is not None
        yield ObjectStore(int(server.stdout.readline()), server.pid)
    finally:
        server.kill()
        server.communicate()


class _Web(SimpleHTTPRequestHandler):
    """As Python's own server, which sends files as a whole alone."""

    def log_message(self, *what: object) -> None:
        pass


class _WebOfParts(_Web):
    """As other servers, which send parts too."""

    def do_GET(self) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found is None:
            super().do_GET()
            return
        content = Path(self.translate_path(self.path)).read_bytes()
        part = content[int(found[1]) : int(found[2]) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {found[1]}-{found[2]}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Last-Modified", self.date_time_string())
        self.end_headers()
        self.copyfile(BytesIO(part), self.wfile)


class _WebThatCuts(_WebOfParts):
    """As a server without versions of its files (ETag) that sends half of one twice, and then all of it."""

    answers: ClassVar = Counter[str]()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        content = source.read()
        self.answers[self.path] += 1
        outputfile.write(
            content if self.answers[self.path] % 3 == 0 else content[: len(content) // 2]
        )


@contextlib.contextmanager
def running_web(folder: Path, *, sends_parts: bool = False, cuts: bool = False) -> Iterator[str]:
    """Serve a folder, without listing it, at the address that is yielded."""
    kind = _WebThatCuts if cuts else _WebOfParts if sends_parts else _Web
    handler = partial(kind, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Faulty:
    """A WSGI application whose answers have faults."""

    def __init__(self, application: Any) -> None:
        self.application = application
        self.lock = threading.Lock()
        self.requests = 0
        self.kind, self.every, self.method, self.left, self.seen = "none", 1, "GET", 0, 0

    def __call__(self, environ: Any, start: Any) -> Any:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path == "/_count":
            start("200 OK", [])
            return [str(self.requests).encode()]
        if path.startswith("/_fault/"):
            _, _, self.kind, every, self.method, left = path.split("/")
            self.every, self.left, self.seen = int(every), int(left), 0
            start("200 OK", [])
            return [b""]
        kind = self._choose(method)
        if kind == "throttled":
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code></Error>"]
        if kind == "denied":
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AccessDenied</Code></Error>"]
        if kind == "unheard":
            b"".join(self.application(environ, start))
        if kind in ("cut", "unheard"):
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        answer = self.application(environ, start)
        return _half(answer, environ) if kind == "half" else answer

    def _choose(self, method: str) -> str:
        with self.lock:
            self.requests += 1
            if method != self.method or self.left == 0 or self.kind == "none":
                return "none"
            self.seen += 1
            if self.seen % self.every:
                return "none"
            self.left -= 1
            return self.kind


def _half(answer: Any, environ: Any) -> Iterator[bytes]:
    content = b"".join(answer)
    yield content[: len(content) // 2]
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)


def _serve() -> None:
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    class Quiet(MotoRequestHandler):  # type: ignore[misc]
        protocol_version = "HTTP/1.1"

        def log(self, *what: Any) -> None:
            pass

    application = _Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()  # until the test, which holds the other end, has ended


if __name__ == "__main__":
    _serve()
