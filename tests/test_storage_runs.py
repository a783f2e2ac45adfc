"""Whole programs on object storage and packs: the bits of files on this machine, through its faults."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from tests import faults
from tests.conftest import data_flags, make_set
from tests.object_store import ObjectStore, put_folder, running_store, running_web
from tests.prediction.models import write_model
from tests.ranks import Ranks, call_main, call_train, warm_python
from tests.test_resume import assert_same_state
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.data.labels import Labels
from unet_ddp.extras.cloud import Url, list_objects, put, read
from unet_ddp.files import as_path

pytestmark = pytest.mark.processes
thorough, release = pytest.mark.thorough, pytest.mark.release

# 12 images, 2 of them for validation: 5 steps of 2 in each of 2 epochs.
FLAGS = ["--width", "2", "--epochs", "2", "--validation", "17", "--ema", "0.9", "--workers", "0"]
FLAGS += ["--batch-size", "1"]
COMMAND = "unet_ddp.__main__"
SET = Url("s3://bucket/set")
ADDRESSES = ["--images", f"{SET}/imgs", "--masks", f"{SET}/masks"]


def call_with(
    environment: dict[str, str], module: str, argv: list[str], folder: str, report: bool
) -> tuple[int, str, str]:
    """Run a program's `main` with these variables, as another machine may have them."""
    call = call_train if module == "train" and not report else partial(call_main, module)
    with mock.patch.dict(os.environ, environment):
        return call(argv, folder)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("set"), 12, size=(32, 32))


@pytest.fixture(scope="module")
def undisturbed(ranks: Ranks, images: Path) -> Path:
    """The folder of an undisturbed run of two ranks on files of this machine."""
    outcomes = ranks.run(2, call_train, [*data_flags(images), *FLAGS], str(images))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    return images / "checkpoints"


class Place:
    """A run of two ranks at an address, on machines that share nothing else."""

    def __init__(self, ranks: Ranks, store: ObjectStore, images: Path, folder: Path) -> None:
        self.ranks, self.store, self.images, self.folder = ranks, store, images, folder
        self.address = f"s3://bucket/{folder.name}/run"
        self.argv = [*data_flags(images), *FLAGS, "--checkpoints", self.address]

    def on(self, machine: str) -> dict[str, str]:
        """The variables of a machine."""
        return {**self.store.environment, "XDG_CACHE_HOME": str(self.folder / machine)}

    def run(
        self, size: int, machine: str, program: str, *argv: str, report: bool = False
    ) -> tuple[int, str, str]:
        """Run a program on the ranks of a machine; return status, output and errors."""
        job = (call_with, self.on(machine), program, list(argv), str(self.folder), report)
        statuses, outs, errs = zip(*self.ranks.run(size, *job), strict=True)
        assert len({*statuses}) == 1
        return statuses[0], "".join(outs), "".join(errs)

    def train(self, machine: str, *more: str, report: bool = False) -> str:
        return self.succeed(2, machine, "train", *self.argv, *more, report=report)

    def succeed(self, size: int, machine: str, program: str, *argv: str, **how: bool) -> str:
        status, out, err = self.run(size, machine, program, *argv, **how)
        assert (status, err) == (0, "")
        return out

    def start(self, machine: str, fault: str, *more: str, **variables: str) -> Any:
        """Train on two ranks as a program that a fault may end."""
        words = [faults.__file__, fault, *self.argv, "--nproc", "2", *more]
        return warm_python(self.folder, *words, **self.on(machine), **variables)

    def assert_ended_as(self, undisturbed: Path) -> None:
        """Compare the end with an undisturbed run's, bit by bit."""
        names = ("last.pt", "best.pt")
        last, best = (checkpoint.load(as_path(f"{self.address}/{name}")) for name in names)
        assert_same_state(last, checkpoint.load(undisturbed / "last.pt"))
        expected = checkpoint.load(undisturbed / "best.pt")["model"]
        assert all(torch.equal(best["model"][name], expected[name]) for name in expected)
        rows = csv.DictReader(self.read("metrics.csv").decode().splitlines())
        assert [row["step"] for row in rows] == ["5", "10"]

    def read(self, name: str) -> bytes:
        return read(as_path(f"{self.address}/{name}"))  # type: ignore[arg-type]

    def evaluate(self, model: str, output: str, *data: str) -> dict[str, Any]:
        argv = ["evaluate", "--model", model, "--output", output, *data]
        self.succeed(1, "three", COMMAND, *argv)
        return json.loads((self.folder / output / "scores.json").read_text())  # type: ignore[no-any-return]


@pytest.fixture
def place(ranks: Ranks, object_store: ObjectStore, images: Path, tmp_path: Path) -> Place:
    put_folder(images, SET)
    write_model(tmp_path / "m.pt", Labels((0, 255)))
    return Place(ranks, object_store, images, tmp_path)


@pytest.fixture(scope="module")
def web(images: Path) -> Iterator[str]:
    """A web server with the set, which does not list it."""
    with running_web(images) as address:
        yield address


# -- images in storage and in packs ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "fault"),
    [
        ("0", "throttled"),
        *(pytest.param("1", fault, marks=[thorough, release]) for fault in ("half", "cut")),
    ],
)
def test_training_from_storage_ends_with_the_bits_of_training_from_disk(
    place: Place, undisturbed: Path, workers: str, fault: str
) -> None:
    """Stopped in mid-epoch, through faults; a second start downloads no scan again."""
    argv = [*ADDRESSES, *FLAGS, "--workers", workers]
    place.store.set_fault(fault, every=3)
    place.succeed(2, "one", "train", *argv, "--stop-after", "7")
    place.store.set_fault("none")
    before = place.store.count_requests()
    place.succeed(2, "one", "train", *argv, "--resume")
    # Two listings; the images and masks of three steps, one validation, and what is read ahead.
    assert place.store.count_requests() - before < 2 + 2 * (2 * 3 + 2 + 4)
    found = checkpoint.load(place.folder / "checkpoints" / "last.pt")
    assert_same_state(found, checkpoint.load(undisturbed / "last.pt"))


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param("s3://bucket/packed", marks=thorough),
        pytest.param("pack", marks=[thorough, release]),
    ],
)
def test_a_run_begun_on_files_ends_on_a_pack(place: Place, undisturbed: Path, pack: str) -> None:
    """As the run on the files, with reading processes too, and with the same scores on either."""
    files, packed, folder = data_flags(place.images), ["--images", pack], place.folder
    place.succeed(1, "one", COMMAND, "pack", *files, "--output", pack)
    place.succeed(2, "one", "train", *files, *FLAGS, "--stop-after", "3")
    place.succeed(2, "one", "train", *packed, *FLAGS, "--resume", "--workers", "1")
    both = checkpoint.load(folder / "checkpoints" / "last.pt")
    assert_same_state(both, checkpoint.load(undisturbed / "last.pt"))
    new = [*packed, *FLAGS, "--exp-name", "new", "--stop-after", "1"]
    out = place.succeed(2, "one", "train", *new)
    assert "split: image by image; 10 images to train on, 2 to validate" in out
    assert (undisturbed / "split.csv").exists()
    assert not (folder / "checkpoints" / "new" / "split.csv").exists()
    model = str(folder / "checkpoints" / "best.pt")
    one, two = place.evaluate(model, "of_files", *files), place.evaluate(model, "of_pack", *packed)
    assert "12 images in" in two.pop("scored") and one.pop("scored")
    assert one == two


def test_predictions_in_storage_are_those_on_disk(place: Place, web: str) -> None:
    put(SET / "m.pt", place.folder / "m.pt")

    def predict(*argv: str) -> str:
        status, out, err = call_main("predict", list(argv), str(place.folder))
        assert status == 0, err
        return out

    files = str(place.images / "imgs")
    predict(files, "-m", "m.pt", "-o", "out", "--overlay", "--rle", "out/a.csv")
    inputs = [f"{SET}/imgs", "-m", f"{SET}/m.pt"]
    outputs = ["-o", f"{SET}/out", "--overlay", "--rle", f"{SET}/out/a.csv"]
    place.store.set_fault("cut", every=4)
    predict(*inputs, *outputs)
    place.store.set_fault("none")
    found = {key: read(SET / "out" / key) for key, _, _ in list_objects(SET / "out")}
    assert found == {path.name: path.read_bytes() for path in (place.folder / "out").iterdir()}
    put(SET / "list.txt", f"{SET}/imgs/ax.png\nimgs/bx.png\n{files}/cx.png".encode())
    out = predict(f"{SET}/list.txt", *inputs[1:], *outputs[:2], "--skip-existing", "--overlay")
    assert "3 images skipped" in out
    assert not list(place.folder.glob("s3:*"))
    predict(f"{web}/imgs/ax.png", "-m", "m.pt", "-o", "web.png")
    assert (place.folder / "web.png").read_bytes() == found["ax_mask.png"]
    status, _, err = call_main("predict", [*inputs, *outputs], str(place.folder))
    assert status == 2 and f"{SET}/out/ax_mask.png: already exists; use --skip-existing" in err


@thorough
def test_the_other_commands_take_addresses(place: Place, undisturbed: Path, web: str) -> None:
    """They say the same of a run and of images at an address as of their files."""
    for name in ("best.pt", "metrics.csv", "config.yaml"):
        put(as_path(place.address) / name, undisturbed / name)
    stored, local = f"{place.address}/best.pt", str(undisturbed / "best.pt")
    files = data_flags(place.images)
    scores = [
        {**place.evaluate(model, name, *data), "model": "", "scored": ""}
        for model, name, data in ((stored, "a", ADDRESSES), (local, "b", files))
    ]
    assert scores[0] == scores[1]
    tables = [(place.folder / name / "per_image.csv").read_bytes() for name in ("a", "b")]
    assert tables[0] == tables[1]
    said = [place.succeed(1, "three", COMMAND, "doctor", *data) for data in (ADDRESSES, files)]
    assert said[0] == said[1]
    rows = [f"{web}/imgs/{name}x.png,{web}/masks/{name}x.png\n" for name in "abcdef"]
    (place.folder / "list.csv").write_text("".join(["image,mask\n", *rows]))
    place.succeed(1, "three", COMMAND, "doctor", "--list", "list.csv")
    out = place.succeed(1, "three", COMMAND, "report", place.address)
    assert out == f"wrote {place.address}/report.html\n" and b"<html" in place.read("report.html")
    page, gone = place.read("report.html"), place.folder / "gone.pt"
    content = checkpoint.load(undisturbed / "best.pt")
    content["config"]["images"] = "nowhere"
    checkpoint.save(gone, content)
    put(as_path(place.address) / "best.pt", gone)
    status, _, err = place.run(1, "three", COMMAND, "report", place.address)
    assert status == 2 and err.startswith(f"error: {place.address}/report.html: kept, as a new one")
    assert f"--model {place.address} --images" in err and place.read("report.html") == page
    put(as_path(place.address) / "best.pt", undisturbed / "best.pt")
    argv = [*files, *FLAGS, "--stop-after", "1", "--load", stored]
    assert f"network as in {stored}" in place.succeed(1, "three", "train", *argv)


NONE = ["--images", "s3://none/i", "--masks", "s3://none/m"]
MISTAKES = [
    ("train", NONE, "there is no such bucket"),
    ("train", ["--images", f"{SET}/none", "--masks", f"{SET}/masks"], "contains no images"),
    ("train", ["--images", "http://127.0.0.1:9/i", "--masks", "m"], "name them in a list"),
    ("train", ["--images", "ftp://a/i", "--masks", "m"], "ftp:// is not known; use s3://"),
    ("train", [*ADDRESSES, "--checkpoints", "s3://none/run"], "there is no such bucket; create it"),
    ("predict", [f"{SET}/none.png", "-m", "m.pt"], "set/none.png: not found"),
    ("predict", [f"{SET}/imgs", "-m", "m.pt", "-o", "http://a/b"], "http://a/b: can't be written"),
    ("predict", [f"{SET}/imgs", "-m", "m.pt", "-o", "s3://none"], "s3://none: there is no such"),
]


def test_mistakes_are_one_line_on_all_ranks(place: Place) -> None:
    for program, argv, line in MISTAKES:
        status, _, err = place.run(2, "one", program, *argv)
        assert status == 2 and err.startswith("error: ") and err.count("\n") == 1, err
        assert line in err


# -- runs in storage ------------------------------------------------------------------------------


def test_a_run_killed_in_mid_upload_continues_on_another_machine(
    place: Place, undisturbed: Path
) -> None:
    """And ends as the undisturbed one; predictions from there are those from a file."""
    done = place.start("one", "killed in mid-upload", "--save-every-steps", "1")
    assert done.returncode == 1 and "process 0 was ended by SIGKILL" in done.stderr, done.stderr
    saves = json.loads(place.read("last.json"))["saves"]
    assert [each["generation"] for each in saves] == [2, 1]
    out = place.train("two", "--resume", report=True)
    assert f"{place.address}: save 2 copied to {place.folder / 'two'}" in out
    assert f"{place.address} has save" in out
    place.assert_ended_as(undisturbed)
    assert b"<html" in place.read("report.html")
    starts = json.loads(place.read("run.json"))["starts"]
    assert [start["end"]["state"] for start in starts] == ["running", "finished"]
    image = str(place.images / "imgs" / "ax.png")
    for model, mask in ((f"{place.address}/best.pt", "a.png"), (f"{undisturbed}/best.pt", "b.png")):
        out = place.succeed(1, "three", "predict", image, "--model", model, "--output", mask)
        assert f"model: {model}" in out
    assert (place.folder / "a.png").read_bytes() == (place.folder / "b.png").read_bytes()
    status, _, err = place.run(2, "three", "train", *place.argv)  # a second run is refused, once
    assert status == 2 and err.count("\n") == 1
    assert err.startswith(f"error: {place.address} contains a run (last.json): continue it with")


@thorough
@pytest.mark.parametrize("kind", ["cut", pytest.param("throttled", marks=release)])
def test_a_run_through_faults_ends_as_an_undisturbed_one(
    place: Place, undisturbed: Path, kind: str
) -> None:
    """With reading processes, forked from one that has a client."""
    place.store.set_fault(kind, every=3, method="PUT", count=8)
    out = place.train("one", "--workers", "1", "--save-every-steps", "2")
    assert "warning" not in out
    place.assert_ended_as(undisturbed)


@thorough
def test_a_signal_ends_a_run_once_storage_has_its_state(place: Place, undisturbed: Path) -> None:
    done = place.start("one", "signal to one rank")
    assert done.returncode == 143, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1].startswith(f"{place.address} has save "), done.stdout
    assert "stopped by SIGTERM after step" in lines[-2]
    local = next(place.folder.glob("one/unet_ddp/runs/run-*/last.pt"))
    position = checkpoint.load(as_path(f"{place.address}/last.pt"))["position"]
    assert position == checkpoint.load(local)["position"] and position["step"] > 0
    place.train("two", "--resume")
    place.assert_ended_as(undisturbed)


@thorough
def test_storage_that_is_gone_loses_nothing(
    ranks: Ranks, images: Path, undisturbed: Path, tmp_path: Path
) -> None:
    with running_store() as gone:
        place = Place(ranks, gone, images, tmp_path)
        done = place.start("one", "storage ends", STORE=str(gone.process))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "warning: " in done.stdout and "the next save tries again" in done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    (local,) = place.folder.glob("one/unet_ddp/runs/run-*")
    assert f"its files are in {local}: --resume on this machine puts them" in line
    assert_same_state(checkpoint.load(local / "last.pt"), checkpoint.load(undisturbed / "last.pt"))
    with running_store() as back:  # empty
        place.store = back
        done = place.start("one", "none", "--resume")
        assert done.returncode == 0, done.stderr
        assert f"{place.address} has save 1" in done.stdout
