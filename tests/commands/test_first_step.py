"""Starts that end before they have done a step, and those with nothing left to do: in-process, on one rank."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from tests.conftest import data_flags, make_set
from tests.ranks import call_main, call_train, warm_python
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.commands import train
from unet_ddp.errors import UserError

FLAGS = ["--width", "1", "--batch-size", "2", "--validation", "40", "--workers", "0", "--device", "cpu"]  # fmt: skip
FLAGS += ["--augmentation", "none"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A set so small that batch norm refuses single images."""
    return data_flags(make_set(tmp_path_factory.mktemp("set"), 10, size=(12, 10)))


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    """Train with `folder` as the current one; return the exit status and the outputs."""
    return call_train([*words], str(folder))


def new_run(images: list[str], folder: Path, *words: str) -> tuple[int, str, str]:
    return run(folder, *images, *FLAGS, "--epochs", "1", *words)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of each file below a folder, but of the lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_the_way_out_that_a_mistake_at_the_first_step_names_works(
    images: list[str], tmp_path: Path
) -> None:
    """Issue: the run of no steps that was left refused the corrected command."""
    status, _, err = new_run(images, tmp_path, "--batch-size", "1")
    assert status == 2 and err.startswith("error: --batch-size 1: batch norm") and "larger" in err
    assert contents(tmp_path) == {} and not (tmp_path / "checkpoints" / "last.pt").parent.exists()
    assert new_run(images, tmp_path, "--batch-size", "2")[0] == 0


def test_a_mistake_at_the_first_step_brings_back_the_run_that_was_to_be_replaced(
    images: list[str], tmp_path: Path
) -> None:
    assert new_run(images, tmp_path, "--save-every", "1", "--weight-decay", "0.25")[0] == 0
    (tmp_path / "checkpoints" / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    assert {"checkpoints/epoch_0001.pt", "checkpoints/run.json"} <= before.keys()
    assert new_run(images, tmp_path, "--batch-size", "1", "--overwrite")[0] == 2
    assert contents(tmp_path) == before
    assert new_run(images, tmp_path, "--overwrite")[0] == 0
    after = contents(tmp_path)
    assert "checkpoints/epoch_0001.pt" not in after and after["checkpoints/notes.txt"] == b"mine"
    assert not (tmp_path / "checkpoints" / ".replaced").exists()


PARTS = """
import os, signal
import torch

seen = []

def raises(image, mask, generator):
    #Of the first image, which is tried before, none.
    seen.append(int(image.sum()))
    if seen[-1] != seen[0]:
        raise ValueError("of mine")
    return image, mask

class Raises(torch.nn.Module):
    def forward(self, logits, target):
        if "OF_THE_RUN" in os.environ:
            raise ValueError("of mine")
        return logits.square().mean()

class Stops:
    def __init__(self, run):
        pass

    def saved(self, path):
        os.kill(os.getpid(), signal.SIGTERM)

class RaisesLater(Stops):
    def step(self, report, done):
        raise ValueError("of mine")

    saved = None

class Ends:
    def __init__(self, run):
        pass

    def saved(self, path):
        return True
"""
START_OVER = "--overwrite", "--epochs", "3"
GO_BACK = "--resume", "checkpoints/epoch_0001.pt", "--overwrite", "--epochs", "3"


@pytest.fixture(scope="module")
def two_epochs(images: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    assert new_run(images, folder, "--save-every", "1", "--epochs", "2")[0] == 0
    model = ["--model", "checkpoints", "--device", "cpu", "--workers", "0"]
    assert call_main("unet_ddp.commands.evaluate", model, str(folder))[0] == 0
    (folder / "checkpoints" / "notes.txt").write_text("mine")
    (folder / "first_step_parts.py").write_text(PARTS)
    return folder


@pytest.fixture
def finished(two_epochs: Path, tmp_path: Path) -> Path:
    """A folder with a run of two epochs, with what `evaluate` and the user have added."""
    return shutil.copytree(two_epochs, tmp_path / "copy")


@pytest.mark.parametrize("how", [START_OVER, GO_BACK])
@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        (["--batch-size", "1"], 2, "batch norm"),
        (["--augmentation", "first_step_parts:raises"], 2, "of mine"),
        (["--loss", "first_step_parts:Raises"], 1, "of mine"),
        (["--callback", "first_step_parts:Stops"], 143, "stopped by SIGTERM before its first step"),
        (["--callback", "first_step_parts:Ends"], 0, "stopped as asked before its first step"),
    ],
)
def test_a_start_that_ends_before_its_first_step_brings_back_what_it_replaces(
    images: list[str], finished: Path, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...],
    flags: list[str], status: int, said: str,
) -> None:  # fmt: skip
    """Issue: going back had deleted all later epochs by then; a part of the user's own that failed, the run."""
    monkeypatch.syspath_prepend(str(finished))
    before = contents(finished)
    data = [*images, *FLAGS] if how == START_OVER else ["--device", "cpu", "--workers", "0"]
    if how == GO_BACK and flags[0] == "--batch-size":
        flags = ["--accumulate", "2"]
    take = train.train_steps

    def after_the_trial(*state: Any, **of: Any) -> Any:
        patch.setenv("OF_THE_RUN", "1")
        return take(*state, **of)

    with monkeypatch.context() as patch:
        patch.setattr(train, "train_steps", after_the_trial)
        ended = run(finished, *data, *how, *flags)
    assert (ended[0], said in str(ended)) == (status, True), ended
    assert contents(finished) == before
    assert run(finished, "--resume", "--epochs", "3")[0] == 0


@pytest.mark.parametrize("how", [START_OVER, GO_BACK])
@pytest.mark.parametrize("at", ["step", "validation"])
def test_a_start_that_fails_before_a_step_is_saved_brings_back_what_it_replaces(
    images: list[str], finished: Path, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...], at: str
) -> None:  # fmt: skip
    monkeypatch.syspath_prepend(str(finished))
    before = contents(finished)
    data = [*images, *FLAGS] if how == START_OVER else ["--device", "cpu", "--workers", "0"]

    def fails(*_: Any, **of: Any) -> NoReturn:
        raise MemoryError

    with monkeypatch.context() as patch:
        if at == "validation":
            patch.setattr(train, "validate", fails)
        flags = [] if at == "validation" else ["--callback", "first_step_parts:RaisesLater"]
        ended = run(finished, *data, *how, *flags)
    assert ended[0] in (1, 2), ended
    assert contents(finished) == before


def test_a_run_that_goes_back_to_where_it_ends_has_gone_back(finished: Path) -> None:
    """There is nothing left to train: no step replaces what was moved aside."""
    assert run(finished, "--resume", "checkpoints/epoch_0002.pt", "--overwrite")[0] == 0
    place = finished / "checkpoints"
    assert checkpoint.load(place / "last.pt")["resume"] == "epoch_0002.pt"
    assert not (place / ".replaced").exists()


def test_a_mistake_at_the_first_step_leaves_a_folder_of_the_users_as_it_was(
    images: list[str], tmp_path: Path
) -> None:
    """Among them files that a run would write, and replaces: the recipe and the split of one that was deleted."""
    assert new_run(images, tmp_path)[0] == 0
    for name in ("last.pt", "last.1.pt", "best.pt", "metrics.csv"):
        (tmp_path / "checkpoints" / name).unlink(missing_ok=True)
    (tmp_path / "checkpoints" / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    assert {f"checkpoints/{name}" for name in ("config.yaml", "split.csv", "run.json")} <= {*before}
    assert new_run(images, tmp_path, "--batch-size", "1", "--lr", "0.5")[0] == 2
    assert contents(tmp_path) == before


def test_a_file_that_can_not_be_read_at_the_first_step_leaves_a_run_to_continue(
    images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks learn of it, save, and stop; once it is repaired, --resume works."""

    def fails(*_: Any) -> NoReturn:
        raise UserError("a.png: no picture")

    with monkeypatch.context() as patch:
        patch.setattr("unet_ddp.data.dataset.SegmentationDataset.__getitem__", fails)
        status, _, err = new_run(images, tmp_path)
    assert status == 2 and "a.png: no picture" in err
    assert run(tmp_path, "--resume")[0] == 0


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_what_is_no_mistake_of_the_users_leaves_a_run_to_continue(
    images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fails(*_: Any, **how: Any) -> NoReturn:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(train, "train_steps", fails)
        assert new_run(images, tmp_path)[0] not in (0, 2)
    assert run(tmp_path, "--resume")[0] == 0


def test_a_mistake_after_a_step_leaves_the_run(
    images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = train.train_steps

    def fails(*state: Any, **how: Any) -> Any:
        yield next(iter(take(*state, **how)))
        raise UserError("a mistake")

    with monkeypatch.context() as patch:
        patch.setattr(train, "train_steps", fails)
        assert new_run(images, tmp_path)[0] == 2
    assert run(tmp_path, "--resume")[0] == 0


# -- resumed runs -------------------------------------------------------------------------------


def recorded(folder: Path, name: str) -> dict[str, Any]:
    """Return a setting of the run in `folder` as each of its files has it."""
    place = folder / "checkpoints"
    texts = {file: (place / file).read_text() for file in ("config.yaml", "run.json")}
    return {
        "last.pt": checkpoint.load(place / "last.pt")["config"][name],
        "config.yaml": yaml.safe_load(texts["config.yaml"])[name],
        "run.json": json.loads(texts["run.json"])["settings"][name],
    }


@pytest.mark.parametrize("name", ["learning_rate", "class_weights", "epochs", "accumulate"])
@pytest.mark.parametrize("loses", [None, "best.pt"])
def test_a_run_with_nothing_left_to_train_keeps_the_settings_that_it_was_trained_with(
    images: list[str], tmp_path: Path, name: str, loses: str | None
) -> None:
    """Issue: files said 0.5, and the next start accused the user of an edit. Without best.pt, last.pt is saved."""
    assert new_run(images, tmp_path, "--epochs", "2", "--precision", "float32")[0] == 0
    before, batch = recorded(tmp_path, name), recorded(tmp_path, "batch_size")
    if loses:
        (tmp_path / "checkpoints" / loses).unlink()
    flag = {"learning_rate": ["--lr", "0.5"], "class_weights": ["--class-weights", "1", "77"]}
    flag["accumulate"] = ["--accumulate", "2"]
    status, out, err = run(tmp_path, "--resume", *flag.get(name, ["--epochs", "1"]))
    assert (status, err) == (0, "") and "all epochs are done; for more, use --epochs above 2" in out
    kept = "nothing is left to train, so the files of the run keep its settings"
    notes = out[: out.index("data: ")].splitlines()[1:]  # none on how the steps have changed
    assert notes == [kept]
    assert recorded(tmp_path, name) == before and recorded(tmp_path, "batch_size") == batch
    status, out, _ = run(tmp_path, "--resume")
    assert status == 0 and "config.yaml has" not in out and "changed since" not in out
    status, out, _ = run(tmp_path, "--resume", "--epochs", "3", "--lr", "0.5")
    assert status == 0 and set(recorded(tmp_path, "learning_rate").values()) == {0.5}


def test_the_number_of_processes_does_not_change_the_files_of_a_run_with_nothing_left_to_train(
    images: list[str], tmp_path: Path
) -> None:
    """Issue: its config.yaml had the batch of each of two, and trained on half as many images."""
    assert new_run(images, tmp_path)[0] == 0
    done = warm_python(tmp_path, "-m", "unet_ddp", "train", "--resume", "--nproc", "2")
    assert done.returncode == 0, done.stderr
    assert "(1 at a time on each of 2" in done.stdout and "batch size 1" not in done.stdout
    assert set(recorded(tmp_path, "batch_size").values()) == {2}


def test_data_that_were_moved_are_no_edit_of_a_run_with_nothing_left_to_train(
    images: list[str], tmp_path: Path
) -> None:
    """The files go on saying where they were in the training."""
    assert new_run(images, tmp_path)[0] == 0
    before = {name: recorded(tmp_path, name) for name in ("images", "masks")}
    places = {name: tmp_path / f"moved-{name}" for name in ("images", "masks")}
    words = []
    for name, place in places.items():
        shutil.copytree(images[images.index(f"--{name}") + 1], place)
        words += [f"--{name}", place.name]
    assert run(tmp_path, "--resume", "--lr", "0.5", *words)[0] == 0
    assert {name: recorded(tmp_path, name) for name in ("images", "masks")} == before
    assert set(recorded(tmp_path, "learning_rate").values()) == {0.001}
    status, out, _ = run(tmp_path, "--resume")
    assert status == 0 and "config.yaml has" not in out


@pytest.mark.parametrize(("error", "ended"), [(UserError, 2), (ZeroDivisionError, 1)])
def test_a_resumed_run_that_ends_before_its_first_step_keeps_its_settings(
    images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], ended: int
) -> None:  # fmt: skip
    def fails(*_: Any, **how: Any) -> NoReturn:
        raise error("a mistake")

    assert new_run(images, tmp_path, "--epochs", "2", "--stop-after", "1epochs")[0] == 0
    before = contents(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(train, "train_steps", fails)
        assert run(tmp_path, "--resume", "--lr", "0.5")[0] == ended
    after = contents(tmp_path)
    assert {name for name in after if after[name] != before.get(name)} == {"checkpoints/run.json"}
    assert set(recorded(tmp_path, "learning_rate").values()) == {0.001}
    _, out, _ = call_main("train", ["--resume", "--stop-after", "1epochs"], str(tmp_path))
    assert "config.yaml has" not in out
    assert run(tmp_path, "--resume", "--lr", "0.5")[0] == 0
    assert set(recorded(tmp_path, "learning_rate").values()) == {0.5}
