"""The server as people start it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.prediction.models import write_model, write_photo
from tests.prediction.test_predict import run as run_predict
from tests.ranks import LIMIT, ROOT
from unet_ddp import Predictor
from unet_ddp.__main__ import main
from unet_ddp.data.labels import Labels
from unet_ddp.errors import how_to_install
from unet_ddp.extras.serve.settings import TOKEN, ServeConfig

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("rasterio", reason="the extra serve is not installed")


def test_a_server_that_can_t_begin_says_why_before_the_network_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "missing.pt", "--port", port]) == 2
    said = f"error: --host 127.0.0.1 --port {port}: can't listen there (Address already in use); use another --port\n"
    assert capsys.readouterr().err == said
    assert main(["serve", "missing.pt", "--host", "0.0.0.0"]) == 2
    assert capsys.readouterr().err.startswith("error: --host 0.0.0.0: set UNET_DDP_TOKEN ")
    assert main(["serve", "missing.pt", "--port", "0"]) == 2
    assert capsys.readouterr().err.startswith("error: missing.pt: checkpoint not found")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name != "uvicorn" or None)
    assert main(["serve", "missing.pt"]) == 2
    assert capsys.readouterr().err == (
        f"error: serve: needs uvicorn, which is not installed; {how_to_install('serve')}\n"
    )


def test_a_network_that_can_t_be_loaded_ends_the_server_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    (tmp_path / "bad.pt").write_bytes(b"no checkpoint")
    assert main(["serve", str(tmp_path / "bad.pt"), "--port", "0"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {tmp_path / 'bad.pt'}: ") and said.err.count("\n") == 1
    assert "on http" not in said.out


def get(port: int, path: str) -> tuple[int, bytes]:
    """Return the status of an answer, and the answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT) as answer:
            return answer.status, bytes(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, bytes(refused.read())


def hold_predictions(predictor: Predictor) -> tuple[threading.Event, threading.Event]:
    """Have predictions wait: the first event says that one does, the second lets them go on."""
    held, released = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert released.wait(LIMIT)

    predictor.on_window = hold
    return held, released


def test_it_is_ready_from_the_network_s_first_answer_until_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unet_ddp.extras.serve.app import Service
    from unet_ddp.extras.serve.queue import PredictionQueue
    from unet_ddp.extras.serve.server import Server

    monkeypatch.delenv(TOKEN, raising=False)
    write_model(tmp_path / "best.pt", Labels((0, 255)))
    photo = write_photo(tmp_path / "a.png").read_bytes()
    predictor = Predictor.from_checkpoint(tmp_path / "best.pt")
    held, released = hold_predictions(predictor)
    loaded = threading.Event()

    def open_queue() -> PredictionQueue:
        assert loaded.wait(LIMIT)
        return PredictionQueue(predictor, tmp_path, pool, config)

    config = ServeConfig()
    server = Server(Service(None, config))
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(2) as others:
        loading = server.load(open_queue, "here", pool)
        running = others.submit(server.run, sockets=[listener])
        try:
            assert get(port, "/health")[0] == 200
            assert get(port, "/ready") == (503, b'{"status":"starting"}')
            loaded.set()
            loading.result(LIMIT)
            assert get(port, "/ready") == (200, b'{"status":"ready"}')
            answer = others.submit(post, port, photo)
            assert held.wait(LIMIT)
            server.should_exit = True  # as a signal does
            states = iter(lambda: get(port, "/ready"), (503, b'{"status":"stopping"}'))
            assert {status for status, _ in states} <= {200}
            with pytest.raises(urllib.error.HTTPError, match="503"):
                post(port, photo)
            assert not answer.done()
        finally:
            loaded.set()
            released.set()
            server.should_exit = True
        assert answer.result(LIMIT).startswith(b"\x89PNG")
        running.result(LIMIT)
    assert server.config.timeout_graceful_shutdown in range(40, 61)  # what is left of a minute
    with pytest.raises(OSError, match="refused"):
        get(port, "/ready")


@contextmanager
def serve(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield the program and its port; its temporary files are in `temporary`."""
    (folder / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(folder / "temporary"), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "unet_ddp", "serve", "best.pt", "--port", "0", *flags]
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "model: best.pt\n"
        found = re.fullmatch(
            r"on http://127\.0\.0\.1:(\d+)/ until Ctrl-C\n", process.stdout.readline()
        )
        assert found is not None, process.communicate()
        yield process, int(found[1])
    finally:
        process.kill()
        process.communicate()


def post(port: int, content: bytes) -> bytes:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/predict", content, {"Content-Type": "image/png"}
    )
    with urllib.request.urlopen(request, timeout=LIMIT) as answer:
        return bytes(answer.read())


def send_half(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port))
    head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    client.sendall(f"{head}Content-Length: 1000\r\n\r\nhalf".encode())
    return client


@pytest.mark.thorough
@pytest.mark.processes
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.release)]
)
def test_a_signal_ends_it_once_all_that_wait_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "best.pt", Labels((0, 255)), scale=1.0)
    photo = write_photo(tmp_path / "a.png", (900, 900)).read_bytes()
    assert run_predict("a.png", "-m", "best.pt") == 0
    mask = (tmp_path / "a_mask.png").read_bytes()
    flags = "--max-megabytes", "5", "--timeout", "3", "--workers", "1"
    with serve(tmp_path, *flags) as (process, port), ThreadPoolExecutor(8) as clients:
        send_half(port).close()
        with pytest.raises(urllib.error.HTTPError) as refused:  # though it was not read whole
            post(port, bytes(40_000_000))
        assert refused.value.code == 413
        assert json.loads(refused.value.read())["error"].startswith("larger than 5 million bytes")
        answers = [clients.submit(post, port, photo) for _ in range(8)]
        assert answers[0].result() == mask
        half = send_half(port)  # does not hold it for longer than --timeout
        process.send_signal(number)
        assert [answer.result() for answer in answers] == [mask] * 8
        _, log = process.communicate(timeout=LIMIT)
        half.close()
    assert process.returncode == 0
    statuses = re.findall(r"^\S+ \S+ 127\.0\.0\.1 POST /predict (\d+) ", log, flags=re.M)
    late = {"408", "503"} & {*statuses}  # of the half: was it begun before the signal arrived?
    assert sorted(statuses) == sorted(["200"] * 8 + ["413", "499", *late]) and len(late) == 1
    assert log.count("\n") == len(statuses)
    assert [*(tmp_path / "temporary").iterdir()] == []
