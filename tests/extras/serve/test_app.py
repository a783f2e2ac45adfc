"""The server's answers, in this process."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import unet_ddp
from tests.maps import write_map
from tests.prediction.models import noise, write_model, write_photo
from tests.prediction.test_predict import run as run_predict
from unet_ddp import Predictor
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.extras.overlap.labels import OverlapLabels
from unet_ddp.prediction import pipeline
from unet_ddp.prediction.outputs.image_files import write_png

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("rasterio", reason="the extra serve is not installed")
pytest.importorskip("prometheus_client", reason="the extra serve is not installed")
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from unet_ddp.extras.serve import queue as queue_module
from unet_ddp.extras.serve.app import Service
from unet_ddp.extras.serve.queue import PredictionQueue
from unet_ddp.extras.serve.settings import TOKEN, ServeConfig

PNG = {"Content-Type": "image/png"}
TYPES = {"png": "image/png", "jpg": "image/jpeg", "tif": "image/tiff", "bmp": "image/bmp"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TOKEN, raising=False)
    write_model(tmp_path / "best.pt", Labels((0, 128, 255), names=("road", "car", "sky")))
    return tmp_path


@contextmanager
def serving(here: Path, **settings: Any) -> Iterator[Service]:
    """Yield a server's answers; its one thread predicts."""
    (here / "work").mkdir(exist_ok=True)
    predictor = Predictor.from_checkpoint(here / "best.pt")
    with ThreadPoolExecutor(1) as pool:
        config = ServeConfig(**settings)
        yield Service(PredictionQueue(predictor, here / "work", pool, config), config)
    assert [*(here / "work").iterdir()] == []


def connect(service: Service) -> TestClient:
    return TestClient(
        service.build_app(), base_url="http://127.0.0.1:8000", raise_server_exceptions=False
    )


def to_png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


# -- what is found -------------------------------------------------------------------------


def test_a_mask_is_predict_s_to_the_byte(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = [write_photo(here / f"a.{suffix}", (141, 167)) for suffix in ("png", "jpg", "bmp")]
    images.append(write_photo(here / "plain.tif", (60, 50)))
    images.append(write_map(here / "map.tif", noise(64, 80)))
    with serving(here) as service:
        for image in images:
            assert run_predict(image.name, "-m", "best.pt", "--overwrite") == 0
            kind = TYPES[image.suffix[1:]]
            capsys.readouterr()
            got = connect(service).post(
                "/predict", content=image.read_bytes(), headers={"Content-Type": kind}
            )
            ending = "tif" if image.stem == "map" else "png"
            assert got.status_code == 200
            assert got.headers["content-type"] == f"image/{ending.replace('tif', 'tiff')}"
            assert got.content == (here / f"{image.stem}_mask.{ending}").read_bytes()
            log = capsys.readouterr().err
            assert " POST /predict 200 " in log and " s, road " in log and log.count("\n") == 1


def test_parameters_are_refused(here: Path) -> None:
    """Issue: a threshold was ignored."""
    content = write_photo(here / "a.png").read_bytes()
    with serving(here) as service:
        got = connect(service).post("/predict?threshold=0.1&a=secret", content=content, headers=PNG)
        assert got.status_code == 400 and got.json() == {
            "error": "threshold, a: /predict takes no parameters; settings, as --threshold, are given "
            "when the server starts"
        }
        assert connect(service).post("/predict?", content=content, headers=PNG).status_code == 200


def test_classes_that_overlap_are_pages_of_one_file(here: Path) -> None:
    write_model(here / "best.pt", OverlapLabels((1, 2, 4)))
    photo = write_photo(here / "a.png")
    assert run_predict("a.png", "-m", "best.pt", "--mask-format", "tif") == 0
    with serving(here) as service:
        got = connect(service).post("/predict", content=photo.read_bytes(), headers=PNG)
        headers = {**PNG, "Accept": "application/json"}
        found = connect(service).post("/predict", content=photo.read_bytes(), headers=headers)
    assert got.headers["content-type"] == "image/tiff"
    assert got.content == (here / "a_mask.tif").read_bytes()
    assert len(found.json()["classes"]) == 3


def test_json_has_the_shares_and_predict_s_polygons(here: Path) -> None:
    image = write_photo(here / "image.png", (41, 67))
    assert run_predict("image.png", "-m", "best.pt", "--polygons", "all.json") == 0
    mask = np.asarray(Image.open(here / "image_mask.png"))
    with serving(here) as service:
        headers = {**PNG, "Accept": "application/json"}
        got = connect(service).post("/predict", content=image.read_bytes(), headers=headers)
    assert got.headers["content-type"] == "application/json"
    found = got.json()
    assert (found["width"], found["height"]) == (67, 41)
    assert found["polygons"] == json.loads((here / "all.json").read_text())
    shares = {each["name"]: each["share"] for each in found["classes"]}
    assert shares == {
        name: pytest.approx((mask == value).mean())
        for value, name in ((0, "road"), (128, "car"), (255, "sky"))
    }


@pytest.mark.parametrize(
    ("accepted", "kind"),
    [
        (["Application/JSON"], "application/json"),
        (["image/png, application/json; q=0.5"], "application/json"),
        (["image/png", "application/json"], "application/json"),
        (["application/json;q=0"], "image/png"),
        (["application/json; Q=0.000, image/png"], "image/png"),
        (["application/jsonl"], "image/png"),
        (["*/*"], "image/png"),
    ],
)
def test_json_is_for_who_accepts_it_in_any_case(here: Path, accepted: list[str], kind: str) -> None:
    image = write_photo(here / "image.png").read_bytes()
    with serving(here) as service:
        headers = [*PNG.items(), ("Host", "LocalHost"), *(("Accept", each) for each in accepted)]
        got = connect(service).post("/predict", content=image, headers=headers)
    assert (got.status_code, got.headers["content-type"]) == (200, kind)


def test_the_model_and_the_health_are_told(here: Path) -> None:
    with serving(here) as service:
        client = connect(service)
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/model").json() == {
            "classes": ["road", "car", "sky"],
            "mask_values": {"0": "road", "128": "car", "255": "sky"},
            "threshold": None,
            "channels": 3,
            "dtype": "uint8",
            "scale": 0.5,
        }


# -- what is refused -----------------------------------------------------------------------


def test_a_bad_image_is_predict_s_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = to_png(noise(20, 30))
    write_png(bomb := io.BytesIO(), [], (14000, 13000))
    cases = {
        b"": 400,
        b"hello": 400,
        b"<!DOCTYPE html>": 400,
        good[:-40]: 400,
        bomb.getvalue(): 413,
    }
    with serving(here) as service:
        for content, status in cases.items():
            (here / "image.png").write_bytes(content)
            assert run_predict("image.png", "-m", "best.pt") == 2
            line = capsys.readouterr().err.strip()
            got = connect(service).post("/predict", content=content, headers=PNG)
            assert got.status_code == status
            assert f"error: {got.json()['error']}" == line
            log = capsys.readouterr().err
            assert log.endswith(f" POST /predict {status} {line}\n") and log.count("\n") == 1


def in_parts(count: int) -> Iterator[bytes]:
    """A body whose size is not said before."""
    for _ in range(count):
        yield bytes(1000)


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        ({"method": "GET"}, 405, "Method Not Allowed"),
        ({"url": "/nothing"}, 404, "Not Found"),
        ({"headers": {"Content-Type": "text/plain"}}, 415, "Content-Type text/plain: is no image"),
        ({"headers": {"Content-Type": "x" * 9000}}, 415, "Content-Type xxx"),
        ({"headers": {}}, 415, "Content-Type none: is no image"),
        ({"headers": {**PNG, "Host": "somebody.example"}}, 403, "Host somebody.example: is not"),
        ({"content": bytes(2001)}, 413, "larger than 0.002 million bytes"),
        ({"content": in_parts(3)}, 413, "larger than 0.002 million bytes"),
        ({"content": to_png(np.zeros((100, 101)))}, 413, "image.png: 101x100 pixels, more than 0.01"),
    ],
)  # fmt: skip
def test_a_request_that_is_refused(
    here: Path,
    request_: dict[str, Any],
    status: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(here, max_megabytes=0.002, max_megapixels=0.01) as service:
        service.queue.predictor.on_window = lambda: pytest.fail("predicts")
        whole = {"method": "POST", "url": "/predict", "headers": PNG, "content": b"", **request_}
        got = connect(service).request(**whole)
    assert got.status_code == status
    assert got.json()["error"].startswith(said)
    log = capsys.readouterr().err
    assert f" {status} error: {got.json()['error'][:490]}" in log and log.count("\n") == 1
    assert len(log) < 1100


def test_a_token_is_needed_and_then_any_name_of_the_host_is_right(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "a secret of many words")
    with serving(here, host="0.0.0.0") as service:
        client = connect(service)
        assert client.get("/health").status_code == 200
        for given in ({}, {"Authorization": "Bearer a secret"}, {"Authorization": "a secret of"}):
            for method, path in (("GET", "/model"), ("POST", "/predict")):
                got = client.request(method, path, headers={**PNG, **given})
                assert got.status_code == 401
                assert got.headers["WWW-Authenticate"] == "Bearer"
        right = {"Authorization": "bearer a secret of many words", "Host": "gpu7:8000"}
        assert client.get("/model", headers=right).status_code == 200


@pytest.mark.parametrize(
    ("host", "token"),
    [
        ("0.0.0.0", None),
        ("0.0.0.0", ""),
        ("127.0.0.1", "short"),
        ("127.0.0.1", "ein Schlüssel aus Wörtern"),  # clients differ in its bytes
        ("127.0.0.1", "a secret of many words\n"),  # no header ends so
    ],
)
def test_others_need_a_token_that_can_t_be_guessed_and_be_sent(
    monkeypatch: pytest.MonkeyPatch, host: str, token: str | None
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    if token is not None:
        monkeypatch.setenv(TOKEN, token)
    with pytest.raises(UserError, match=f"--host {host}: set UNET_DDP_TOKEN to a secret of 16 or"):
        _ = ServeConfig(host=host).token


def test_a_fault_of_ours_is_no_client_s(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill_disk(*args: Any) -> None:
        raise UserError("image_mask.png: can't be written: No space left on device")

    def divide(*args: Any) -> None:
        raise ZeroDivisionError("by zero")

    body = {"content": to_png(noise(20, 30)), "headers": PNG}
    with serving(here) as service:
        monkeypatch.setattr(queue_module, "write_outputs", fill_disk)
        got = connect(service).post("/predict", **body)
        assert got.status_code == 500 and "No space left" in got.json()["error"]
        assert capsys.readouterr().err.count("\n") == 1
        monkeypatch.setattr(queue_module, "write_outputs", divide)
        got = connect(service).post("/predict", **body)
        assert got.status_code == 500 and got.json()["error"].startswith("the server has a fault")
        with pytest.raises(ZeroDivisionError):  # uvicorn logs it
            TestClient(service.build_app(), base_url="http://127.0.0.1").post("/predict", **body)


STAGES = {
    "names": (queue_module, "name_outputs", lambda args: args[0][0]),
    "read": (pipeline, "check_length", lambda args: args[0].image),
    "predict": (Predictor, "predict_batch", lambda args: args[1]),
    "write": (queue_module, "write_outputs", lambda args: args[1].image),
}
"""Where a stage of a request begins, and what of its arguments knows the image."""


@pytest.mark.parametrize(
    "fault", [UserError("is odd"), RuntimeError("is odd")], ids=["line", "fault"]
)
@pytest.mark.parametrize("stage", STAGES)
def test_what_is_wrong_with_an_image_is_no_other_s_answer(
    here: Path, monkeypatch: pytest.MonkeyPatch, stage: str, fault: Exception
) -> None:
    owner, name, key = STAGES[stage]
    function = getattr(owner, name)

    def fail(*args: Any, **kwargs: Any) -> Any:
        known = key(args)
        is_odd = "odd" in str(known) if stage != "predict" else not all(map(np.any, known))
        if is_odd:
            raise fault
        return function(*args, **kwargs)

    with serving(here, batch_size=3) as service:
        queue = service.queue
        (here / "photos").mkdir()
        paths = [here / "photos" / name for name in ("a.png", "odd.png", "b.png")]
        for path in paths:
            image = noise(40, 60, len(path.name) + ord(path.name[0]))
            path.write_bytes(to_png(image * (path.stem != "odd")))
        monkeypatch.setattr(queue._pool, "submit", lambda work: None)
        right = [queue.predict(path, is_json=False) for path in paths]
        queue.predict_some()
        monkeypatch.setattr(owner, name, fail)
        answers = [queue.predict(path, is_json=False) for path in paths]
        queue.predict_some()
    assert "is odd" in str(answers[1].exception())
    for k in (0, 2):
        assert answers[k].result().content == right[k].result().content


# -- who waits -----------------------------------------------------------------------------


class Gate:
    """Holds the network at its first batch, and counts the batches."""

    def __init__(self, service: Service) -> None:
        self.held, self.released, self.batches = threading.Event(), threading.Event(), 0
        service.queue.predictor.on_window = self.pass_

    def pass_(self) -> None:
        self.batches += 1
        self.held.set()
        assert self.released.wait(20)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_waiting_images_are_one_batch_and_the_rest_is_refused_at_once(here: Path) -> None:
    photos = [to_png(noise(40, 60, seed)) for seed in range(5)]
    answers: list[Future[Any]] = []
    with serving(here, batch_size=3, max_requests=4) as service, connect(service) as client:
        post = lambda content: client.post("/predict", content=content, headers=PNG)  # noqa: E731
        gate = Gate(service)
        with ThreadPoolExecutor(4) as threads:
            try:
                answers.append(threads.submit(post, photos[0]))
                assert gate.held.wait(20)
                answers += [threads.submit(post, photo) for photo in photos[1:4]]
                wait_until(lambda: service.requests == 4)
                full = post(photos[4])
                assert (full.status_code, full.headers["Retry-After"]) == (503, "1")
                assert client.get("/health").status_code == 200  # the network blocks no answer
                assert not any(answer.done() for answer in answers)
            finally:
                gate.released.set()
            got = [answer.result() for answer in answers]
        assert gate.batches == 2 and service.requests == 0
        for photo, answer in zip(photos, got, strict=False):
            (here / "one.png").write_bytes(photo)
            assert run_predict("one.png", "-m", "best.pt", "--overwrite") == 0
            assert answer.content == (here / "one_mask.png").read_bytes()


def ask(service: Service, receive: Callable[[], Any]) -> Any:
    """Return the coroutine of a request whose messages `receive` gives, and its status."""
    statuses: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def run() -> int:
        headers = [(b"content-type", b"image/png"), (b"host", b"localhost")]
        about = {"type": "http", "method": "POST", "path": "/predict", "query_string": b""}
        scope = {**about, "headers": headers, "client": ("127.0.0.1", 4000)}
        await service.build_app()(scope, receive, send)
        return statuses[0]

    return run()


def sending(parts: list[bytes], end: Callable[[], Any]) -> Callable[[], Any]:
    """Return the messages of a client that sends the parts of a body; then comes what `end` returns."""
    left = [*parts]

    async def receive() -> Any:
        if left:
            body = left.pop(0)
            return {
                "type": "http.request",
                "body": body,
                "more_body": bool(left) or body == b"half",
            }
        return await end()

    return receive


async def go() -> Any:
    return {"type": "http.disconnect"}


async def stay() -> Any:
    await asyncio.sleep(60)


@pytest.mark.parametrize(("end", "status"), [(go, 499), (stay, 408)])
def test_half_a_body_is_a_line_and_nothing_stays(
    here: Path, end: Any, status: int, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr("unet_ddp.extras.serve.app.LINGER", 0.05)
    with serving(here, timeout=0.1) as service:
        assert asyncio.run(ask(service, sending([b"half"], end))) == status
        assert service.requests == 0
    log = capsys.readouterr().err
    assert f" POST /predict {status} error: the " in log and log.count("\n") == 1


def test_a_client_that_goes_while_it_waits_costs_no_forward_pass(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo, left = to_png(noise(40, 60)), asyncio.Event()

    async def leave() -> Any:
        await left.wait()
        return await go()

    async def run(service: Service, gate: Gate) -> list[int]:
        first = asyncio.ensure_future(ask(service, sending([photo], stay)))
        await asyncio.to_thread(gate.held.wait, 20)
        second = asyncio.ensure_future(ask(service, sending([photo], leave)))
        while service.requests < 2:
            await asyncio.sleep(0.005)
        left.set()
        statuses = [await second]
        gate.released.set()
        return [*statuses, await first]

    with serving(here) as service:
        gate = Gate(service)
        try:
            assert asyncio.run(run(service, gate)) == [499, 200]
        finally:
            gate.released.set()
    assert gate.batches == 1
    assert "499 error: the client has gone" in capsys.readouterr().err


def test_a_client_that_goes_while_its_image_is_predicted_holds_its_place(here: Path) -> None:
    """Its file is being read, and its turn counts for --max-requests until the network is free."""
    photo, left, went = to_png(noise(40, 60)), asyncio.Event(), asyncio.Event()

    async def leave() -> Any:
        await left.wait()
        went.set()
        return await go()

    async def run(service: Service, gate: Gate) -> int:
        request = asyncio.ensure_future(ask(service, sending([photo], leave)))
        await asyncio.to_thread(gate.held.wait, 20)
        left.set()
        await went.wait()
        for _ in range(20):  # turns of the loop, in which the request hears of it
            await asyncio.sleep(0)
        assert not request.done() and service.requests == 1
        gate.released.set()
        return int(await request)

    with serving(here) as service:
        gate = Gate(service)
        try:
            assert asyncio.run(run(service, gate)) == 200
        finally:
            gate.released.set()
        assert service.requests == 0


# -- what is told to who watches -------------------------------------------------------------


def read_metrics(client: TestClient) -> dict[str, float]:
    """Return the values of /metrics by name and labels, as Prometheus reads them."""
    got = client.get("/metrics")
    assert got.status_code == 200 and got.headers["content-type"].startswith("text/plain;")
    families = text_string_to_metric_families(got.text)
    samples = [sample for family in families for sample in family.samples]
    return {" ".join((sample.name, *sample.labels.values())): sample.value for sample in samples}


def test_metrics_count_what_was_asked_and_predicted(here: Path) -> None:
    good = {"content": to_png(noise(20, 30)), "headers": PNG}
    with serving(here) as service:
        client = connect(service)
        before = read_metrics(client)
        assert before["unet_ddp_images_total"] == 0 and before["unet_ddp_queue_length"] == 0
        assert before[f"unet_ddp_info {torch.__version__} {unet_ddp.__version__}"] == 1
        began = time.monotonic()
        for body in (good, good, {**good, "content": b"hello"}, {**good, "headers": {}}):
            client.post("/predict", **body)
        passed = time.monotonic() - began
        client.get("/health")
        found = read_metrics(client)
    assert found["unet_ddp_images_total"] == found["unet_ddp_prediction_seconds_count"] == 2
    assert 0 < found["unet_ddp_prediction_seconds_sum"] < passed
    statuses = {name.split()[1]: value for name, value in found.items() if "requests_total" in name}
    assert statuses == {"200": 2, "400": 1, "415": 1}
    assert found["process_resident_memory_bytes"] > 1e7


def test_the_queue_s_length_is_that_of_images_whose_turn_has_not_come(here: Path) -> None:
    with serving(here) as service, connect(service) as client:
        gate = Gate(service)
        with ThreadPoolExecutor(3) as threads:
            post = lambda: client.post("/predict", content=to_png(noise(40, 60)), headers=PNG)  # noqa: E731
            try:
                answers = [threads.submit(post) for _ in range(3)]
                wait_until(lambda: service.queue.length == 2)
                assert read_metrics(client)["unet_ddp_queue_length"] == 2
            finally:
                gate.released.set()
            assert [answer.result().status_code for answer in answers] == [200] * 3
        assert read_metrics(client)["unet_ddp_queue_length"] == 0


def test_metrics_need_the_token_and_readiness_does_not(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "a secret of many words")
    with serving(here, host="0.0.0.0") as service:
        client = connect(service)
        assert client.get("/metrics").status_code == 401
        right = {"Authorization": "Bearer a secret of many words", "Host": "gpu7:8000"}
        assert client.get("/metrics", headers=right).status_code == 200
        got = client.get("/ready", headers={"Host": "10.0.0.7"})  # of a probe, which has no token
        assert (got.status_code, got.json()) == (200, {"status": "ready"})


def test_a_server_that_starts_or_stops_lives_and_is_not_ready(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {"content": to_png(noise(20, 30)), "headers": PNG}
    with serving(here) as service:
        starting = Service(None, ServeConfig())
        service.is_stopping = True
        for other, state in ((starting, "starting"), (service, "stopping")):
            client = connect(other)
            capsys.readouterr()
            got = client.get("/ready")
            assert (got.status_code, got.json()) == (503, {"status": state})
            assert client.get("/health").status_code == 200
            assert capsys.readouterr().err == ""  # a probe asks every few seconds
            assert client.get("/model").status_code == 503
            refused = client.post("/predict", **body)
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert refused.json() == {"error": f"the server is {state}; try again"}
            assert read_metrics(client)["unet_ddp_requests_total 503"] == 2
