"""--log json: each line that a program prints is a JSON object."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.conftest import data_flags, make_set
from tests.ranks import TRAIN, call_main, warm_python
from unet_ddp import api
from unet_ddp.errors import UserError
from unet_ddp.files.output import JsonLines, complain, say
from unet_ddp.runs.writers import read_rows

FLAGS = ["--log", "json", "--width", "2", "--epochs", "3", "--workers", "0", "-b", "1"]
STOP = """
import os, signal

class Stop:
    def __init__(self, run):
        print("warning: a print of the user's")

    def epoch(self, row):
        if row["epoch"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)
"""


def parse(text: str) -> list[dict[str, Any]]:
    """The events, each of which must be a line."""
    events = [json.loads(line) for line in text.splitlines()]
    assert all({"event", "time"} <= event.keys() for event in events)
    return events


def parse_output(done: CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.stderr == ""
    return parse(done.stdout)


@pytest.mark.processes
def test_each_line_of_a_kill_and_a_resume_on_two_processes_is_an_object(tmp_path: Path) -> None:
    (tmp_path / "my_stops.py").write_text(STOP)
    argv = [TRAIN, *data_flags(make_set(tmp_path, 8)), *FLAGS, "--nproc", "2"]
    argv += ["--validation", "25"]
    done = warm_python(tmp_path, *argv, "--callback", "my_stops:Stop", PYTHONPATH=str(tmp_path))
    events = parse_output(done)
    assert {"event": "warning", "text": "a print of the user's"}.items() <= events[0].items()
    epochs = [event["row"] for event in events if event["event"] == "epoch"]
    assert [row["epoch"] for row in epochs] == [1, 2]
    assert events[-2]["text"].startswith("stopped by SIGTERM after step")
    end = {name: value for name, value in events[-1].items() if name != "time"}
    assert end == {"event": "end", "exit_status": 143, "signal": "SIGTERM"}
    assert done.returncode == 143

    done = warm_python(tmp_path, *argv, "--resume")
    events = parse_output(done)
    epochs += [event["row"] for event in events if event["event"] == "epoch"]
    end = {name: value for name, value in events[-1].items() if name != "time"}
    assert end == {"event": "end", "exit_status": 0, "signal": None}
    rows = read_rows(tmp_path / "checkpoints" / "metrics.csv")
    assert len(rows) == 3
    for row, written in zip(epochs[-1:], rows[-1:], strict=True):
        texts = {name: "" if value is None else str(value) for name, value in row.items()}
        assert texts == written


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--width", "0"], "--width 0: must be 1 or more"),
        (["--log=json", "--widht", "3"], "did you mean"),
        (["--images", "http://u:hunter2@h/x", "--masks", "x"], "http://h/x: a name or password"),
    ],
)
def test_a_mistake_is_an_object(tmp_path: Path, argv: list[str], text: str) -> None:
    status, out, err = call_main("train", [*FLAGS, *argv], str(tmp_path))
    events = parse(out)
    (error,) = (event for event in events if event["event"] == "error")
    assert status == error["exit_status"] == 2 and text in error["text"]
    assert err == "" and "hunter2" not in out


def test_a_fault_of_the_code_is_an_object_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unet_ddp.commands.train.choose_model", None)
    argv = [*FLAGS, *data_flags(make_set(tmp_path, 4))]
    status, out, err = call_main("train", argv, str(tmp_path))
    *_, error, end = parse(out)
    assert status == error["exit_status"] == end["exit_status"] == 1 and err == ""
    assert "is not callable" in error["text"] and "choose_model(" in error["traceback"]


def test_the_plain_text_stays_the_default(tmp_path: Path) -> None:
    status, out, err = call_main("train", ["--width", "0"], str(tmp_path))
    assert (status, out) == (2, "")
    assert err == "error: --width 0: must be 1 or more\n"


def test_a_recipe_does_not_turn_it_on(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("log: json\n")
    status, out, err = call_main("train", ["--config", "recipe.yaml"], str(tmp_path))
    assert status == 2 and out == "" and "use --log, or delete the line" in err


def test_a_run_from_python_prints_them_and_raises_its_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sys.stdout
    with pytest.raises(UserError, match="checkpoint to resume from"):
        api.train(log="json", resume=True, images="x", masks="y")
    make_set(tmp_path, 4)
    api.train(log="json", images="imgs", masks="masks", validation=0, width=2, stop_after=1)
    assert sys.stdout is before
    assert "stopped as asked" in parse(capsys.readouterr().out)[-1]["text"]


def test_predictions_and_scores_have_it_too(tmp_path: Path) -> None:
    for command in ("predict", "evaluate"):
        words = {"predict": ["nix.jpg"], "evaluate": ["--model", "nix.pt"]}[command]
        status, out, err = call_main(
            "unet_ddp.__main__", [command, *words, "--log", "json"], str(tmp_path)
        )
        events = parse(out)
        assert status == 2 and events[0]["event"] == "error", err
        assert "nix" in events[0]["text"] and err == ""


def test_parts_of_lines_are_one_object_and_line_breaks_are_escapes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", JsonLines(sys.stdout))
    print("one", end=" ")
    print("two\nthree")
    say("epoch 1", event="epoch", row={"loss": 0.5})
    complain("slow\nstorage: http://u:hunter2@h/x?token=hunter2", path="a")
    complain(UserError("bad"))
    say('to "http://h/x?token=hunter2"', event="note", score=float("nan"))
    events = parse(capsys.readouterr().out)
    assert [(event["event"], event["text"]) for event in events] == [
        ("note", "one two"), ("note", "three"), ("epoch", "epoch 1"),
        ("warning", "slow\\nstorage: http://h/x?token=***"), ("error", "bad"),
        ("note", 'to "http://h/x?token=***"'),
    ]  # fmt: skip
    assert events[-1]["score"] is None
    assert (events[2]["row"], events[3]["path"]) == ({"loss": 0.5}, "a")
