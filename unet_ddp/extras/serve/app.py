"""The addresses of the server: who may ask, what is refused, and the log."""

from __future__ import annotations

import asyncio
import hmac
import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from unet_ddp.data.readers.base import TooLargeError
from unet_ddp.errors import RunError, UserError, one_line
from unet_ddp.extras.serve.metrics import MEDIA_TYPE, Metrics
from unet_ddp.extras.serve.queue import Answer, PredictionQueue
from unet_ddp.extras.serve.settings import OWN_HOSTS, ServeConfig

_SUFFIXES = {
    "image/jpeg": ".jpg", "image/png": ".png", "image/gif": ".gif", "image/bmp": ".bmp",
    "image/webp": ".webp", "image/tiff": ".tif", "application/x-npy": ".npy",
}  # fmt: skip
_STATUSES = {
    TooLargeError: 413, UserError: 400, RunError: 500, asyncio.TimeoutError: 408, ClientDisconnect: 499,
}  # fmt: skip
_WORDS = {
    408: "the body did not arrive in time; the server's --timeout sets it",
    499: "the client has gone",
}
_LONGEST = 500  # characters of what a client says, in the log
LINGER = 2.0  # seconds for the rest of a refused body: most clients read no answer before


class Service:
    """The answers to requests; until `queue` is set, the network is being loaded.

    Attributes:
        requests: how many are not answered.
        is_stopping: further ones are refused, and those are answered.
    """

    def __init__(self, queue: PredictionQueue | None, config: ServeConfig) -> None:
        self._queue, self.config = queue, config
        self.requests, self.is_stopping = 0, False
        self.metrics = Metrics()

    @property
    def queue(self) -> PredictionQueue:
        """The images that wait.

        Raises:
            HTTPException: the server starts or stops.
        """
        if self._queue is None or self.state != "ready":
            raise HTTPException(503, f"the server is {self.state}; try again", {"Retry-After": "1"})
        return self._queue

    @queue.setter
    def queue(self, queue: PredictionQueue) -> None:
        self._queue = queue

    @property
    def state(self) -> str:
        """Starting, ready, or stopping."""
        if self.is_stopping:
            return "stopping"
        return "starting" if self._queue is None else "ready"

    def build_app(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/predict", self.predict, methods=["POST"]),
            Route("/health", self.say_health),
            Route("/ready", self.say_ready),
            Route("/metrics", self.show_metrics),
            Route("/model", self.describe_model),
        ]
        handlers = dict.fromkeys((HTTPException, *_STATUSES), self.refuse) | {
            Exception: self.admit_fault
        }
        return Starlette(routes=routes, exception_handlers=handlers)

    async def say_health(self, request: Request) -> Response:
        """Answer anybody that the server runs."""
        return JSONResponse({"status": "ok"})

    async def say_ready(self, request: Request) -> Response:
        """Answer anybody whether images are predicted now."""
        return JSONResponse({"status": self.state}, 200 if self.state == "ready" else 503)

    async def show_metrics(self, request: Request) -> Response:
        """Answer with the counts, those who may see the model."""
        self.check_client(request)
        if self._queue is not None:
            self.metrics.queue_length.set(self._queue.length)
        return Response(self.metrics.show(), headers={"Content-Type": MEDIA_TYPE})

    async def describe_model(self, request: Request) -> Response:
        """Answer with what the network takes and finds."""
        self.check_client(request)
        predictor = self.queue.predictor
        labels, wanted = predictor.labels, predictor.format
        values = {labels.show(value): name for value, name in labels.named_values.items()}
        return JSONResponse(
            {
                "classes": labels.class_names,
                "mask_values": values,
                "threshold": predictor.threshold,
                "channels": wanted.channels,
                "dtype": wanted.dtype,
                "scale": predictor.preprocessing.scale,
            }
        )

    async def predict(self, request: Request) -> Response:
        """Answer an image with its mask, or with JSON if the client accepts that."""
        began = time.monotonic()
        self.check_client(request)
        names = ", ".join(request.query_params)  # alone: a value may be secret
        if given := names[:_LONGEST]:
            told = "takes no parameters; settings, as --threshold, are given when the server starts"
            raise HTTPException(400, f"{given}: /predict {told}")
        kind, _, _ = request.headers.get("content-type", "none").partition(";")
        kind = kind.strip().lower()
        if kind not in _SUFFIXES:
            known = ", ".join(_SUFFIXES)
            raise HTTPException(415, f"Content-Type {kind}: is no image; use one of {known}")
        self.check_size(int(request.headers.get("content-length", 0)))
        queue = self.queue
        if self.requests >= self.config.max_requests:
            raise HTTPException(503, "too many requests wait; try again", {"Retry-After": "1"})
        self.requests += 1
        try:
            with TemporaryDirectory(dir=queue.folder) as folder:
                path = Path(folder) / f"image{_SUFFIXES[kind]}"
                await asyncio.wait_for(self.save(request, path), self.config.timeout)
                answer = await self.wait(request, path, queue)
        finally:
            self.requests -= 1
        self.metrics.images.inc()
        self.metrics.seconds.observe(answer.seconds)
        self.log(request, 200, f"{time.monotonic() - began:.3f} s, {answer.line}")
        return Response(answer.content, media_type=answer.media_type)

    def check_client(self, request: Request) -> None:
        """Refuse a request without the token; if there is none, one of a web page with a name for this machine."""
        token, host = self.config.token, request.headers.get("host", "")
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.encode(), (token or "").encode())
        if token is not None and not (is_right and scheme.lower() == "bearer"):
            needed = "needs the server's token, as the header Authorization: Bearer TOKEN"
            raise HTTPException(401, needed, {"WWW-Authenticate": "Bearer"})
        if token is None and host.partition(":")[0].lower() not in OWN_HOSTS:
            raise HTTPException(403, f"Host {host}: is not {' or '.join(OWN_HOSTS)}")

    def check_size(self, size: int) -> None:
        """Refuse a body that is too large."""
        most = self.config.max_megabytes
        if size > 1e6 * most:
            told = f"larger than {most:g} million bytes; the server's --max-megabytes sets it"
            raise HTTPException(413, told)

    async def save(self, request: Request, path: Path) -> None:
        """Write the body to a file, up to the limit."""
        size = 0
        with path.open("wb") as file:
            async for part in request.stream():
                size += len(part)
                self.check_size(size)
                file.write(part)

    async def wait(self, request: Request, path: Path, queue: PredictionQueue) -> Answer:
        """Return the prediction for a file; of a client that goes before its turn, none is made."""
        accepted = ",".join(request.headers.getlist("accept"))
        future = queue.predict(path, is_json=_accepts_json(accepted))
        answer = asyncio.wrap_future(future)
        gone = asyncio.ensure_future(request.receive())  # there is no more to receive
        both: list[asyncio.Future[Any]] = [answer, gone]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and future.cancel():
                raise ClientDisconnect
            return await answer
        finally:
            gone.cancel()
            future.cancel()  # if this program ends at once

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Log an error, and answer with its line: of an image, that of predict.py."""
        status = getattr(error, "status_code", 0)  # of an HTTPException, as its detail and headers
        status = status or next(_STATUSES[kind] for kind in _STATUSES if isinstance(error, kind))
        text = getattr(error, "detail", "") or str(error) or _WORDS[status]
        if self._queue is not None:
            folder = re.escape(str(self._queue.folder)) + r"[/\\]\w+[/\\]"  # of one request
            text = re.sub(folder, "", text)
        text = one_line(text)
        self.log(request, status, f"error: {text}")
        if "expect" not in request.headers:  # or the client waits to be told to send
            with suppress(asyncio.TimeoutError, ClientDisconnect, RuntimeError):  # or all was read
                await asyncio.wait_for(_skip(request), LINGER)
        return JSONResponse({"error": text}, status, getattr(error, "headers", None))

    async def admit_fault(self, request: Request, error: Exception) -> Response:
        """Answer that the fault is ours; uvicorn writes its traceback to the log."""
        self.metrics.requests.labels(500).inc()
        return JSONResponse({"error": "the server has a fault; its log has the traceback"}, 500)

    def log(self, request: Request, status: int, text: str) -> None:
        """Count a request, and print a line about it."""
        self.metrics.requests.labels(status).inc()
        client = request.client.host if request.client else "?"
        path = request.url.path[:_LONGEST]
        line = f"{client} {request.method} {path} {status} {text[:_LONGEST]}"
        print(time.strftime("%Y-%m-%d %H:%M:%S"), one_line(line), file=sys.stderr, flush=True)


def _accepts_json(header: str) -> bool:
    """Return whether an Accept header names JSON in any case, and not to refuse it (q=0)."""
    ranges = (part.partition(";") for part in re.sub(r"\s", "", header.lower()).split(","))
    return any(
        kind == "application/json" and not re.search(r"(^|;)q=0(\.0*)?(;|$)", rest)
        for kind, _, rest in ranges
    )


async def _skip(request: Request) -> None:
    async for _ in request.stream():
        pass
