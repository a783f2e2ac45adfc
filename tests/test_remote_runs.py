"""Runs at an address of an S3 server, on two ranks, whatever happens to them or to it."""

from __future__ import annotations

import csv
import gc
import json
import os
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist

from tests import faults
from tests.conftest import data_flags, make_set
from tests.jobs import fixed_sample, new_state, stack
from tests.object_store import ObjectStore, running_store
from tests.ranks import Ranks, call_main, warm_python
from tests.test_resume import assert_same_state
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.commands.train import validate
from unet_ddp.data.labels import Labels
from unet_ddp.distributed.join import join, leave
from unet_ddp.distributed.stop_signal import StopSignal
from unet_ddp.distributed.world import World
from unet_ddp.extras.cloud import put, read
from unet_ddp.files import as_path

pytestmark = pytest.mark.processes

# 12 images, 2 of them for validation: 5 steps of 2 in each of 2 epochs.
FLAGS = ["--width", "2", "--epochs", "2", "--validation", "17", "--ema", "0.9", "--workers", "0"]
FLAGS += ["--batch-size", "1"]
NPROC = ["--nproc", "2"]
PATIENCE = 2.0  # seconds of --timeout


def call_with(
    environment: dict[str, str], module: str, argv: list[str], folder: str
) -> tuple[int, str, str]:
    """Run a program's `main` with these variables, as another machine may have them."""
    with mock.patch.dict(os.environ, environment):
        return call_main(module, argv, folder)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("set"), 12, size=(32, 32))


@pytest.fixture(scope="module")
def undisturbed(ranks: Ranks, images: Path) -> Path:
    """The folder of an undisturbed run of two ranks."""
    outcomes = ranks.run(2, call_main, "train", [*data_flags(images), *FLAGS], str(images))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    return images / "checkpoints"


class Place:
    """A run at an address, on machines that share nothing else."""

    def __init__(self, ranks: Ranks, store: ObjectStore, images: Path, folder: Path) -> None:
        self.ranks, self.store, self.images, self.folder = ranks, store, images, folder
        self.address = f"s3://bucket/{folder.name}/run"
        self.argv = [*data_flags(images), *FLAGS, "--checkpoints", self.address]

    def on(self, machine: str) -> dict[str, str]:
        """The variables of a machine."""
        return {**self.store.environment, "XDG_CACHE_HOME": str(self.folder / machine)}

    def train(self, machine: str, *more: str) -> tuple[list[int], str, str]:
        """Train on two ranks of a machine; return statuses, output and errors."""
        outcomes = self.ranks.run(
            2, call_with, self.on(machine), "train", [*self.argv, *more], str(self.folder)
        )
        statuses, outs, errs = zip(*outcomes, strict=True)
        return list(statuses), "".join(outs), "".join(errs)

    def call(self, module: str, argv: list[str]) -> str:
        """Run a command on one machine more; return its output."""
        ((status, out, err),) = self.ranks.run(
            1, call_with, self.on("three"), module, argv, str(self.folder)
        )
        assert status == 0, err
        return str(out)

    def start(self, machine: str, fault: str, *more: str, **variables: str) -> Any:
        """Train on two ranks as a program that a fault may end."""
        words = [faults.__file__, fault, *self.argv, *NPROC, *more]
        return warm_python(self.folder, *words, **self.on(machine), **variables)

    def assert_ended_as(self, undisturbed: Path) -> None:
        """Compare the end with an undisturbed run's, bit by bit."""
        last = checkpoint.load(as_path(f"{self.address}/last.pt"))
        assert_same_state(last, checkpoint.load(undisturbed / "last.pt"))
        best, expected = (
            checkpoint.load(path)
            for path in (as_path(f"{self.address}/best.pt"), undisturbed / "best.pt")
        )
        assert all(bool((best["model"][k] == v).all()) for k, v in expected["model"].items())
        rows = csv.DictReader(self.read("metrics.csv").decode().splitlines())
        assert [row["step"] for row in rows] == ["5", "10"]

    def read(self, name: str) -> bytes:
        return read(as_path(f"{self.address}/{name}"))  # type: ignore[arg-type]

    def generations(self) -> list[int]:
        return [each["generation"] for each in json.loads(self.read("last.json"))["saves"]]


@pytest.fixture
def place(ranks: Ranks, object_store: ObjectStore, images: Path, tmp_path: Path) -> Place:
    return Place(ranks, object_store, images, tmp_path)


def test_a_run_killed_in_mid_upload_continues_on_another_machine(
    place: Place, undisturbed: Path
) -> None:
    """And ends as the undisturbed one; predictions from there are those from a file."""
    done = place.start("one", "killed in mid-upload", "--save-every-steps", "1")
    assert done.returncode == 1 and "process 0 was ended by SIGKILL" in done.stderr, done.stderr
    assert place.generations() == [2, 1]
    statuses, out, err = place.train("two", "--resume")
    assert (statuses, err) == ([0, 0], "")
    assert f"{place.address}: save 2 copied to {place.folder / 'two'}" in out
    assert f"{place.address} has save" in out
    place.assert_ended_as(undisturbed)
    assert b"<html" in place.read("report.html")
    masks = []
    for number, model in enumerate((f"{place.address}/best.pt", str(undisturbed / "best.pt"))):
        mask = place.folder / f"{number}.png"
        argv = [str(place.images / "imgs" / "ax.png"), "--model", model, "--output", str(mask)]
        assert f"model: {model}" in place.call("predict", argv)
        masks.append(mask.read_bytes())
    assert masks[0] == masks[1]
    statuses, _, err = place.train("three")  # a second run is refused, once
    assert statuses == [2, 2] and err.count("\n") == 1
    assert err.startswith(f"error: {place.address} contains a run (last.json): continue it with")


@pytest.mark.parametrize(
    ("address", "variables", "said"),
    [
        ("s3://nowhere/run", {}, "s3://nowhere/run/last.json: there is no such bucket; create it"),
        pytest.param(
            "s3://unreached/run",
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            "http://127.0.0.1:9 can't be reached",
            marks=pytest.mark.thorough,
        ),
        ("ftp://host/run", {}, "ftp:// is not known; use s3://"),
    ],
)
def test_an_address_that_is_wrong_is_one_line_of_one_rank(
    place: Place, address: str, variables: dict[str, str], said: str
) -> None:
    argv = [*place.argv, "--checkpoints", address]
    outcomes = place.ranks.run(
        2, call_with, {**place.on("one"), **variables}, "train", argv, str(place.folder)
    )
    assert [status for status, _, _ in outcomes] == [2, 2]
    err = "".join(err for _, _, err in outcomes)
    assert err.startswith("error: ") and err.count("\n") == 1 and said in err


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["throttled", "cut"])
def test_a_run_through_faults_ends_as_an_undisturbed_one(
    place: Place, undisturbed: Path, kind: str
) -> None:
    """With reading processes, forked from one that has a client."""
    place.store.set_fault(kind, every=3, method="PUT", count=8)
    statuses, out, err = place.train("one", "--workers", "1", "--save-every-steps", "2")
    assert (statuses, err) == ([0, 0], "")
    assert "warning" not in out
    place.assert_ended_as(undisturbed)


@pytest.mark.thorough
def test_the_other_commands_take_addresses(place: Place, undisturbed: Path) -> None:
    """They say the same of a run at an address as of its files."""
    address = as_path(place.address)
    for name in ("best.pt", "metrics.csv", "config.yaml"):
        put(address / name, undisturbed / name)
    stored, local = f"{place.address}/best.pt", str(undisturbed / "best.pt")
    scores = []
    for number, model in enumerate((stored, local)):
        argv = ["--model", model, "--output", str(place.folder / str(number))]
        place.call("unet_ddp.commands.evaluate", argv)
        found = json.loads((place.folder / str(number) / "scores.json").read_text())
        scores.append({**found, "model": ""})
    assert scores[0] == scores[1]
    out = place.call("unet_ddp.extras.report.command", [place.address])
    assert out == f"wrote {place.address}/report.html\n" and b"<html" in place.read("report.html")
    argv = [*data_flags(place.images), *FLAGS, "--max-steps", "1", "--load", stored]
    assert f"network as in {stored}" in place.call("train", argv)


class SlowStorage:
    """A run's folder whose uploads rank 0 waits for, twice as long as the ranks do."""

    def __init__(self, world: World) -> None:
        self.seconds = 2 * PATIENCE if world.is_main else 0.0

    def wait(self) -> None:
        time.sleep(self.seconds)


def validate_after_uploads() -> float:
    """Validate once on each rank, and leave; return the Dice."""
    world = join("cpu", 60)
    gloo = dist.group.WORLD._get_backend(world.device)
    gloo._set_default_timeout(timedelta(seconds=PATIENCE))
    storage: Any = SlowStorage(world)
    loaders: Any = SimpleNamespace(validation=Images([stack([fixed_sample(world.rank)])]))
    data: Any = SimpleNamespace(labels=Labels((0, 1, 2)))
    run: Any = SimpleNamespace(
        state=new_state(world), loaders=loaders, folder=storage, data=data, world=world, tuner=None
    )
    run.stop = StopSignal(world)
    validation, _ = validate(run)
    assert validation is not None
    gc.collect()
    storage.wait()  # for the report's
    leave(world)
    return validation.scores.dice


class Images(list[Any]):
    forks = True


@pytest.mark.thorough
def test_ranks_wait_longer_for_uploads_than_for_each_other(ranks: Ranks) -> None:
    one, two = ranks.run(2, validate_after_uploads)
    assert one == two


@pytest.mark.thorough
def test_a_signal_ends_a_run_once_storage_has_its_state(place: Place, undisturbed: Path) -> None:
    done = place.start("one", "signal to one rank")
    assert done.returncode == 143, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1].startswith(f"{place.address} has save "), done.stdout
    assert "stopped by SIGTERM after step" in lines[-2]
    local = next(place.folder.glob("one/unet_ddp/runs/run-*/last.pt"))
    position = checkpoint.load(as_path(f"{place.address}/last.pt"))["position"]
    assert position == checkpoint.load(local)["position"] and position["step"] > 0
    assert place.train("two", "--resume")[0] == [0, 0]
    place.assert_ended_as(undisturbed)


@pytest.mark.thorough
def test_storage_that_is_gone_loses_nothing(
    ranks: Ranks, images: Path, undisturbed: Path, tmp_path: Path
) -> None:
    with running_store() as gone:
        place = Place(ranks, gone, images, tmp_path)
        done = place.start("one", "storage ends", STORE=str(gone.process))
    assert done.returncode == 1
    assert "warning: " in done.stdout and "the next save tries again" in done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    (local,) = place.folder.glob("one/unet_ddp/runs/run-*")
    assert f"its files are in {local}: --resume on this machine puts them" in line
    assert "Traceback" not in done.stderr
    assert_same_state(checkpoint.load(local / "last.pt"), checkpoint.load(undisturbed / "last.pt"))
    with running_store() as back:  # empty
        place.store = back
        done = place.start("one", "none", "--resume")
        assert done.returncode == 0, done.stderr
        assert f"{place.address} has save 1" in done.stdout
