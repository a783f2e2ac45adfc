"""Whole programs on object storage: the same bits as on files of this machine, and its faults."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from tests.conftest import data_flags, make_set
from tests.object_store import ObjectStore, put_folder
from tests.prediction.models import write_model
from tests.ranks import Ranks, call_main
from unet_ddp.__main__ import main
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.data.labels import Labels
from unet_ddp.extras.cloud import Url, list_objects, put, read

FLAGS = ["--epochs", "2", "--width", "2", "--batch-size", "1"]
SET = Url("s3://bucket/set")
ADDRESSES = ["--images", f"{SET}/imgs", "--masks", f"{SET}/masks"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("set"), 10)


@pytest.fixture(autouse=True)
def _in_storage(folder: Path, object_store: ObjectStore) -> None:
    put_folder(folder, SET)


@pytest.fixture(scope="module")
def web(folder: Path) -> Iterator[str]:
    """A web server with the set, which does not list it."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *what: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(environment: dict[str, str], program: str, argv: list[str], place: str) -> Any:
    """Run a program's main on a rank that has the keys of the storage."""
    os.environ.update(environment)
    return call_main(program, argv, place)


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    content = checkpoint.load(folder / "checkpoints" / name / "last.pt")
    state: dict[str, torch.Tensor] = content["model"]
    return state


@pytest.mark.parametrize(
    ("workers", "fault"),
    [
        ("0", "throttled"),
        pytest.param("1", "half", marks=pytest.mark.thorough),
        pytest.param("1", "cut", marks=pytest.mark.thorough),
    ],
)
def test_training_from_storage_ends_with_the_bits_of_training_from_disk(
    folder: Path, tmp_path: Path, object_store: ObjectStore, ranks: Ranks, workers: str, fault: str
) -> None:
    """On two ranks, stopped in mid-epoch, through faults; a second start downloads no scan again."""

    def train(*argv: str) -> None:
        words = [*FLAGS, "--workers", workers, *argv]
        ended = ranks.run(2, run, object_store.environment, "train", words, str(tmp_path))
        assert [status for status, _, _ in ended] == [0, 0], ended

    train(*data_flags(folder), "--exp-name", "disk")
    object_store.set_fault(fault, every=3)
    train(*ADDRESSES, "--exp-name", "storage", "--max-steps", "6")
    object_store.set_fault("none")
    before = object_store.count_requests()
    train(*ADDRESSES, "--exp-name", "storage", "--resume")
    requests = object_store.count_requests() - before
    # Two listings; the images and masks of two steps, one validation, and the report's.
    assert requests < 2 + 2 * (2 * 2 + 2 + 4) + 8
    found, wanted = weights(tmp_path, "storage"), weights(tmp_path, "disk")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_predictions_in_storage_are_those_on_disk(
    folder: Path, tmp_path: Path, object_store: ObjectStore, web: str
) -> None:
    write_model(tmp_path / "m.pt", Labels((0, 255)))
    put(SET / "m.pt", tmp_path / "m.pt")

    def predict(*argv: str) -> str:
        status, out, err = call_main("predict", list(argv), str(tmp_path))
        assert status == 0, err
        return out

    predict(str(folder / "imgs"), "-m", "m.pt", "-o", "out", "--overlay", "--rle", "out/a.csv")
    inputs = [f"{SET}/imgs", "-m", f"{SET}/m.pt"]
    outputs = ["-o", f"{SET}/out", "--overlay", "--rle", f"{SET}/out/a.csv"]
    object_store.set_fault("cut", every=4)
    predict(*inputs, *outputs)
    object_store.set_fault("none")
    found = {key: read(SET / "out" / key) for key, _, _ in list_objects(SET / "out")}
    wanted = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert found == wanted
    put(SET / "list.txt", f"{SET}/imgs/ax.png\nimgs/bx.png\n{folder}/imgs/cx.png".encode())
    out = predict(f"{SET}/list.txt", *inputs[1:], *outputs[:2], "--skip-existing", "--overlay")
    assert "3 images skipped" in out
    assert not list(tmp_path.glob("s3:*"))
    predict(f"{web}/imgs/ax.png", "-m", "m.pt", "-o", "web.png")
    assert (tmp_path / "web.png").read_bytes() == found["ax_mask.png"]
    status, _, err = call_main("predict", [*inputs, *outputs], str(tmp_path))
    assert status == 2 and f"{SET}/out/ax_mask.png: already exists; use --overwrite" in err


@pytest.mark.thorough
def test_doctor_and_evaluate_read_storage(
    web: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "m.pt", Labels((0, 255)))

    def scores(*argv: str) -> tuple[bytes, str]:
        capsys.readouterr()
        assert main(["doctor", *argv]) == 0
        said = capsys.readouterr().out
        with pytest.raises(SystemExit) as end:
            main(["evaluate", "-m", "m.pt", "--overwrite", "--workers", "0", *argv])
        assert not end.value.code
        return (tmp_path / "evaluation" / "per_image.csv").read_bytes(), said

    assert scores(*ADDRESSES) == scores(*data_flags(folder))
    rows = [f"{web}/imgs/{name}x.png,{web}/masks/{name}x.png\n" for name in "abcdef"]
    (tmp_path / "list.csv").write_text("".join(["image,mask\n", *rows]))
    assert main(["doctor", "--list", "list.csv"]) == 0


@pytest.mark.parametrize(
    ("program", "argv", "line"),
    [
        ("train", ["--images", "s3://none/i", "--masks", "s3://none/m"], "there is no such bucket"),
        ("train", ["--images", f"{SET}/none", "--masks", f"{SET}/masks"], "contains no images"),
        ("train", ["--images", "http://127.0.0.1:9/i", "--masks", "m"], "name them in a list"),
        ("train", ["--images", "ftp://a/i", "--masks", "m"], "ftp:// is not known; use s3://"),
        ("predict", [f"{SET}/none.png", "-m", "m.pt"], "set/none.png: not found"),
        (
            "predict",
            [f"{SET}/imgs", "-m", "m.pt", "-o", "http://a/b"],
            "http://a/b: can't be written",
        ),
        (
            "predict",
            [f"{SET}/imgs", "-m", "m.pt", "-o", "s3://none"],
            "s3://none: there is no such",
        ),
    ],
)
def test_mistakes_are_one_line_on_all_ranks(
    tmp_path: Path,
    object_store: ObjectStore,
    ranks: Ranks,
    program: str,
    argv: list[str],
    line: str,
) -> None:
    write_model(tmp_path / "m.pt", Labels((0, 255)))
    ranks.run(2, os.getpid)  # its start is not measured
    started = time.monotonic()
    ended = ranks.run(2, run, object_store.environment, program, argv, str(tmp_path))
    assert [status for status, _, _ in ended] == [2, 2]
    said = "".join(err for _, _, err in ended).strip().splitlines()
    assert len(said) == 1 and said[0].startswith("error: ") and line in said[0], said
    assert time.monotonic() - started < 30


@pytest.mark.thorough
def test_a_server_that_is_not_there_is_one_line_within_seconds(
    tmp_path: Path, object_store: ObjectStore, ranks: Ranks
) -> None:
    elsewhere = {**object_store.environment, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    argv = ["--images", "s3://other/i", "--masks", "s3://other/m"]
    ranks.run(2, os.getpid)  # its start is not measured
    started = time.monotonic()
    ended = ranks.run(2, run, elsewhere, "train", argv, str(tmp_path))
    assert [status for status, _, _ in ended] == [2, 2] and time.monotonic() - started < 60
    said = "".join(err for _, _, err in ended)
    assert said.count("error: ") == 1
    assert (
        "s3://other/i: http://127.0.0.1:9 can't be reached; check the name and the network" in said
    )
