"""The server under load: its throughput beside predict.py's, and what bad clients cost it.

    python -m benchmarks.serve --images DIR [--model FILE] [--seconds 60] [--clients 8] [--bad 100]

All in one run: predict.py's pipeline on the images, then clients that send them for `--seconds`, then the
pipeline again. At the end `--bad` clients of each kind: killed, half bodies, wrong types, bombs.
"""

from __future__ import annotations

import http.client
import itertools
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.predict import write_model
from benchmarks.timing import machine, new_parser
from unet_ddp.distributed.world import World
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.base import open_outputs
from unet_ddp.prediction.paths import name_outputs
from unet_ddp.prediction.pipeline import Job, process_images
from unet_ddp.prediction.predictor import Predictor

TYPES = {".jpg": "image/jpeg", ".png": "image/png"}
TIMEOUT = 2  # seconds for a body


def main(argv: list[str] | None = None) -> None:
    """Print the rates, and a table of the bad clients."""
    parser = new_parser(__doc__)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="default: random weights, width 32, scale 0.5")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--bad", type=int, default=100)
    options = parser.parse_args(argv)
    images = [path for path in sorted(options.images.iterdir()) if path.suffix in TYPES]
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = options.model or folder / "best.pt"
        if options.model is None:
            write_model(model, width=32, scale=0.5)
        before = predict(model, images, folder)
        with serving(model, folder) as (port, process):
            rate = load(port, images, options.clients, options.seconds)
            misbehave(port, process, images[0], options.bad)
        after = predict(model, images, folder)
        print(f"predict: {before:.3f} images/s before, {after:.3f} after")
        print(f"serve: {rate:.3f} images/s; {2 * rate / (before + after):.3f} of predict")
        print_log(folder / "log")


def predict(model: Path, images: list[Path], folder: Path) -> float:
    """Return the images a second of a job of predict.py, after the network is loaded."""
    config = PredictConfig((), output=str(folder), overwrite=True)
    predictor = Predictor.from_checkpoint(model)
    outputs = open_outputs(config, predictor.labels, predictor.format)
    files = name_outputs(images, config, predictor.labels, outputs)
    began = time.perf_counter()
    errors = [
        each.error for each in process_images(Job(config, World(), files, predictor, outputs))
    ]
    assert not any(errors), errors
    return len(images) / (time.perf_counter() - began)


@contextmanager
def serving(model: Path, folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the port and the process of a server."""
    words = ["-m", "unet_ddp", "serve", str(model), "--port", "0", "--timeout", str(TIMEOUT)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    try:
        found = None
        while found is None:
            found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
        yield int(found[1]), process.pid
        process.terminate()
        print(f"SIGTERM: exit status {process.wait(60)}")
    finally:
        process.kill()


# -- good clients --------------------------------------------------------------------------


def load(port: int, images: list[Path], clients: int, seconds: float) -> float:
    """Return the answers a second to clients that send one image after another."""
    end, counts = time.perf_counter() + seconds, Counter[object]()

    def send(first: int) -> float:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for path in itertools.islice(itertools.cycle(images), first, None):
            if time.perf_counter() > end:
                break
            try:
                status = post(connection, path.read_bytes(), TYPES[path.suffix])
            except OSError as error:
                status = type(error).__name__
            counts[status] += 1
        return time.perf_counter()

    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as threads:
        ended = max(threads.map(send, range(clients)))
    print(f"{clients} clients, {ended - began:.1f} s: answers {dict(counts)}")
    return counts[200] / (ended - began)


def post(connection: http.client.HTTPConnection, content: bytes, kind: str) -> object:
    """Return the status of an answer, which must be whole."""
    connection.request("POST", "/predict", content, {"Content-Type": kind})
    answer = connection.getresponse()
    answer.read()
    return answer.status


# -- bad clients ---------------------------------------------------------------------------


def misbehave(port: int, process: int, image: Path, count: int) -> None:
    """Print the answers to bad clients, and the server's memory after each kind."""
    good = image.read_bytes()
    bomb = Path(tempfile.gettempdir(), f"bomb-{os.getpid()}.png")
    Image.fromarray(np.zeros((12000, 12000, 3), np.uint8)).save(bomb)
    bombs = bomb.read_bytes()
    bomb.unlink()
    kinds: dict[str, Callable[[], object]] = {
        "killed with half a body": partial(leave, port, good, len(good) // 2),
        "killed while waiting": partial(leave, port, good, len(good)),
        "half a body, and then silence": partial(stall, port, good),
        "text as an image": partial(send_alone, port, b"hello", "image/png"),
        "a cut image": partial(send_alone, port, good[: len(good) // 2], TYPES[image.suffix]),
        "another content type": partial(send_alone, port, good, "text/plain"),
        "a body of 40 MB": partial(send_alone, port, bytes(40_000_000), "image/png"),
        f"a bomb: 432 MB in {len(bombs)} bytes": partial(send_alone, port, bombs, "image/png"),
    }
    print(f"{read_memory(process):.0f} MB before bad clients")
    for name, act in 2 * [*kinds.items()]:  # the second time, its memory must not grow
        with ThreadPoolExecutor(8) as threads:
            statuses = Counter(threads.map(lambda _, act=act: act(), range(count)))
        send_alone(port, good, TYPES[image.suffix])  # behind all that still wait
        print(f"{count} x {name}: {dict(statuses)}, then {read_memory(process):.0f} MB")


def send_alone(port: int, content: bytes, kind: str) -> object:
    """Return the status of an answer on a connection of its own."""
    return post(http.client.HTTPConnection("127.0.0.1", port, timeout=300), content, kind)


def send_head(port: int, content: bytes, sent: int) -> socket.socket:
    """Return a connection on which a part of a body was sent."""
    client = socket.create_connection(("127.0.0.1", port))
    head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
    client.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content[:sent])
    return client


def leave(port: int, content: bytes, sent: int) -> object:
    """Close a connection without waiting for the answer."""
    client = send_head(port, content, sent)
    time.sleep(0.01)
    client.close()
    return "gone"


def stall(port: int, content: bytes) -> object:
    """Return the status of the answer to half a body."""
    with send_head(port, content, len(content) // 2) as client:
        client.settimeout(60)
        with suppress(ConnectionError):
            return client.recv(12)[9:].decode()
    return "reset"


def read_memory(process: int) -> float:
    """Return the memory of a process, in MB."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    found = re.search(r"VmRSS:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) / 1000


def print_log(path: Path) -> None:
    """Print how many lines the log has, by status, and one of each."""
    lines: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        found = re.match(r"\S+ \S+ \S+ POST /predict (\d+) ", line)
        lines.setdefault(found[1] if found else "other", []).append(line)
    for status, found in sorted(lines.items()):
        print(f"log: {len(found)} x {status}, e.g. {found[-1]}")


if __name__ == "__main__":
    main()
