"""run.json: what a run was, on what it ran, and how it ended."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import data_flags, make_set
from tests.ranks import TRAIN, Ranks, call_train, warm_python
from unet_ddp import __version__
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.errors import UserError
from unet_ddp.runs.ending import Ending
from unet_ddp.runs.environment import read_commit
from unet_ddp.runs.record import read_record
from unet_ddp.runs.writers import read_rows

FLAGS = ["--width", "2", "--epochs", "3", "--workers", "0", "-b", "2", "--device", "cpu"]
STOPS = """
import json, os, signal

class Stop:
    def __init__(self, run):
        self.folder = run.folder

    def epoch(self, row):
        if row["epoch"] == 2:
            record = json.loads((self.folder / "run.json").read_text())
            (self.folder / "seen.json").write_text(json.dumps(record))
            os.kill(os.getpid(), signal.SIGTERM)

class Killed:
    def __init__(self, run):
        pass

    def step(self, report, done):
        os.kill(os.getpid(), signal.SIGKILL)

class Faulty:
    def __init__(self, run):
        pass

    def close(self, ending):
        raise OSError("no such host: http://user:hunter2@h/x")
"""


def read(folder: Path) -> Any:
    return json.loads((folder / "checkpoints" / "run.json").read_text())


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped by SIGTERM in its second epoch, and then resumed from another folder."""
    folder = tmp_path_factory.mktemp("record")
    (folder / "my_stops.py").write_text(STOPS)
    argv = [*data_flags(make_set(folder, 12)), *FLAGS, "--callback", "my_stops:Stop"]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr("sys.argv", ["train.py", *argv, "http://user:hunter2@h/x"])
        status, _, err = call_train(argv, str(folder))
    assert status == 143, err
    (folder / "stopped.json").write_text((folder / "checkpoints" / "run.json").read_text())
    other = folder / "other"
    other.mkdir()
    places = ["--checkpoints", str(folder / "checkpoints"), "--resume"]
    status, _, err = call_train([*data_flags(folder), *places, "--device", "cpu"], str(other))
    assert status == 0, err
    return folder


def test_a_run_that_is_killed_leaves_that_it_was_running(stopped: Path) -> None:
    seen = json.loads((stopped / "checkpoints" / "seen.json").read_text())
    assert seen["starts"][0]["end"] == {"state": "running"}
    assert seen["metrics"]["last"]["epoch"] == 1


def test_a_start_that_was_killed_before_its_second_save_stays(tmp_path: Path) -> None:
    """The checkpoint that it leaves has no step."""
    (tmp_path / "my_kills.py").write_text(STOPS)
    data = data_flags(make_set(tmp_path, 6))
    argv = [TRAIN, *data, *FLAGS, "--epochs", "1", "--callback", "my_kills:Killed"]
    done = warm_python(tmp_path, *argv, PYTHONPATH=str(tmp_path))
    assert done.returncode == -signal.SIGKILL, done.stderr
    (killed,) = read(tmp_path)["starts"]
    assert (killed["step"], killed["end"]) == (0, {"state": "running"})
    status, _, err = call_train([*data, "--device", "cpu", "--resume"], str(tmp_path))
    assert status == 0, err
    first, second = read(tmp_path)["starts"]
    assert (first, second["step"], second["end"]["state"]) == (killed, 0, "finished")


def test_a_start_says_on_what_it_ran_and_how_it_ended(stopped: Path) -> None:
    record = json.loads((stopped / "stopped.json").read_text())
    (start,) = record["starts"]
    assert record["format"] == 1
    assert (start["unet_ddp"], start["step"], start["processes"]) == (__version__, 0, 1)
    assert start["packages"]["torch"] == torch.__version__.partition("+")[0]
    assert start["packages"].keys() > {"numpy", "segmentation-models-pytorch", "albumentations"}
    assert (start["folder"], start["commit"], start["gpu"]) == (str(stopped), None, None)
    words = shlex.split(start["command"])
    assert words[:3] == ["train.py", "--images", str(stopped / "imgs")]
    assert words[-1] == "http://h/x"  # without its password
    end = start["end"]
    assert datetime.fromisoformat(start["date"]) <= datetime.fromisoformat(end.pop("date"))
    assert end == {"state": "stopped", "exit_status": 143, "signal": "SIGTERM", "error": None}


def test_a_resume_is_another_start_of_the_record(stopped: Path) -> None:
    record = read(stopped)
    first, second = record["starts"]
    assert first == json.loads((stopped / "stopped.json").read_text())["starts"][0]
    assert (second["folder"], second["end"]["state"]) == (str(stopped / "other"), "finished")
    assert second["step"] == first["step"] + 2 * 5
    rows = read_rows(stopped / "checkpoints" / "metrics.csv")
    last = {name: float(value) for name, value in rows[-1].items() if value}
    assert record["metrics"]["last"] == last
    best = checkpoint.load(stopped / "checkpoints" / "best.pt")
    epoch = best["best"]["epoch"] + 1
    assert record["metrics"]["best"]["epoch"] == epoch
    assert record["metrics"]["best"]["validation_dice"] == float(rows[epoch - 1]["validation_dice"])


@pytest.mark.parametrize("name", ["best.pt", "last.pt"])
def test_a_checkpoint_has_its_start_and_the_figures_of_the_best_epoch(
    stopped: Path, name: str
) -> None:
    made_with = checkpoint.load(stopped / "checkpoints" / name)["made_with"]
    record = read(stopped)
    assert made_with["metrics"] == record["metrics"]["best"]
    start = record["starts"][
        0 if record["metrics"]["best"]["epoch"] < 3 and name == "best.pt" else 1
    ]
    assert {**start, **made_with} == {**start, "metrics": made_with["metrics"]}


def test_the_settings_have_the_paths_that_were_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [*FLAGS, "--stop-after", "1", "--scale", "0.25", "--validation", "0"]
    status, _, err = call_train(argv, str(tmp_path))
    assert status == 0, err
    settings = read(tmp_path)["settings"]
    demo = tmp_path / "data" / "demo"  # no flag names it
    assert (settings["images"], settings["masks"]) == (str(demo / "imgs"), str(demo / "masks"))
    assert settings["checkpoints"] == str(tmp_path / "checkpoints")
    assert (settings["scale"], settings["load"]) == (0.25, None)
    data = read(tmp_path)["data"]
    (demo.parent / "imgs").symlink_to(demo / "imgs")
    (demo.parent / "masks").symlink_to(demo / "masks")
    status, _, err = call_train([*argv, "--overwrite"], str(tmp_path))
    assert status == 0, err
    assert read(tmp_path)["settings"]["images"] == str(demo.parent / "imgs")
    assert read(tmp_path)["data"] == data  # the same files
    assert len(read(tmp_path)["starts"]) == 1  # a new run


def test_another_file_gives_another_fingerprint(tmp_path: Path) -> None:
    argv = [*data_flags(make_set(tmp_path, 6)), *FLAGS, "--epochs", "1", "--overwrite"]
    found = []
    for _ in range(3):
        status, _, err = call_train(argv, str(tmp_path))
        assert status == 0, err
        found.append(read(tmp_path)["data"]["fingerprint"])
        if len(found) == 2:
            mask = tmp_path / "masks" / "bx.png"
            mask.write_bytes((tmp_path / "masks" / "cx.png").read_bytes())
    assert found[0] == found[1] != found[2]


def test_the_record_of_two_processes_is_one(tmp_path: Path, ranks: Ranks) -> None:
    """Its folder of images has a name of bytes that are no text."""
    odd = tmp_path / os.fsdecode(b"c\xff")
    argv = [*data_flags(make_set(odd, 8)), *FLAGS, "--epochs", "1"]
    outcomes = ranks.run(2, call_train, argv, str(tmp_path))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    assert read(tmp_path)["settings"]["images"] == str(odd / "imgs")
    (start,) = read(tmp_path)["starts"]
    assert (start["processes"], start["end"]["state"]) == (2, "finished")


def test_a_callback_that_fails_at_the_end_is_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_faults.py").write_text(STOPS)
    monkeypatch.syspath_prepend(tmp_path)
    argv = [*data_flags(make_set(tmp_path, 6)), *FLAGS, "--callback", "my_faults:Faulty"]
    status, _, _ = call_train(argv, str(tmp_path))
    end = read(tmp_path)["starts"][0]["end"]
    assert status == end["exit_status"] == 2 and end["state"] == "failed"
    assert "OSError: no such host: http://h/x" in end["error"]


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "\0", '{"format": 1, "starts": [1], "settings": {}, "data": {}}',
        '{"format": 0, "starts": [], "settings": {}, "data": {}}',
        '{"format": 1, "starts": [{"packages": {}, "end": 1}], "settings": {}, "data": {}}',
    ],
)  # fmt: skip
def test_a_damaged_record_begins_again(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.json"
    assert read_record(path) == {}
    path.write_text(content)
    assert read_record(path) == {}


def test_the_commit_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    assert read_commit() == (None, None)

    def git(*words: str) -> str:
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *name, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init")
    assert read_commit() == (None, None)
    Path("a.txt").write_text("one")
    git("add", "a.txt")
    git("commit", "-m", "first")
    commit = git("rev-parse", "HEAD")
    Path("untracked.txt").write_text("two")
    assert read_commit() == (commit, False)
    Path("a.txt").write_text("two")
    assert read_commit() == (commit, True)
    monkeypatch.setenv("PATH", "")
    assert read_commit() == (None, None)


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (UserError("a\nb"), Ending("failed", 2, error="a\\nb")),
        (ValueError(), Ending("failed", 1, error="ValueError")),
        (SystemExit(3), Ending("failed", 3, error="3")),
        (KeyboardInterrupt(), Ending("stopped", 130, "SIGINT")),
    ],
)
def test_the_end_of_a_run_that_raises(error: BaseException, ending: Ending) -> None:
    assert Ending.of(error, None) == ending
