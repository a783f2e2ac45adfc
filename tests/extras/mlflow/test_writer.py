"""The log of --mlflow, read back from the folder that the real package writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import data_flags, make_set
from tests.ranks import call_train
from tests.tiny import make_state
from unet_ddp.errors import UserError
from unet_ddp.extras.mlflow.writer import MlflowWriter
from unet_ddp.runs.ending import Ending
from unet_ddp.runs.writers import RunInfo, read_rows

FLAGS = ["--width", "2", "--epochs", "3", "--workers", "0", "-b", "2", "--device", "cpu"]
STOP = """
import os, signal

class Stop:
    def __init__(self, run):
        pass

    def epoch(self, row):
        if row["epoch"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.fixture(autouse=True)
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow's own, for a folder."""
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setenv(
        "MLFLOW_ALLOW_FILE_STORE", "true"
    )  # for this one; the program's needs no more
    client = tracking.MlflowClient()
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    return client


def find_runs(client: Any, experiment: str = "unet_ddp") -> list[Any]:
    found = client.get_experiment_by_name(experiment)
    return list(client.search_runs([found.experiment_id], order_by=["attributes.start_time"]))


def make_info(folder: Path, **about: Any) -> RunInfo:
    return RunInfo(folder, "mine", {"epochs": 2, "load": None}, make_state(), None, print, **about)


def test_a_run_that_was_stopped_is_killed_there_and_its_resume_continues_it(
    tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_stops.py").write_text(STOP)
    monkeypatch.syspath_prepend(tmp_path)
    argv = [*data_flags(make_set(tmp_path, 12)), *FLAGS, "--mlflow", "--exp-name", "one"]
    status, _, err = call_train([*argv, "--callback", "my_stops:Stop"], str(tmp_path))
    assert status == 143, err
    (run,) = find_runs(client)
    assert run.info.status == "KILLED" and run.data.tags["exit_status"] == "143"
    assert (run.info.run_name, run.data.params["width"]) == ("one", "2")
    assert run.data.params["mlflow"] == "True" and "load" not in run.data.params
    assert run.data.tags["unet_ddp"] and "mlflow.source.name" in run.data.tags

    status, _, err = call_train([*argv, "--resume"], str(tmp_path))
    assert status == 0, err
    (resumed,) = find_runs(client)
    assert resumed.info.run_id == run.info.run_id and resumed.info.status == "FINISHED"
    rows = read_rows(tmp_path / "checkpoints" / "one" / "metrics.csv")
    history = client.get_metric_history(run.info.run_id, "validation_dice")
    logged = {each.step: each.value for each in history}
    assert logged == {int(row["step"]): float(row["validation_dice"]) for row in rows}
    record = json.loads((tmp_path / "checkpoints" / "one" / "run.json").read_text())
    ids = [start["tracked"] for start in record["starts"]]
    assert ids == [{"mlflow": run.info.run_id}] * 2

    status, _, err = call_train([*argv, "--overwrite", "--stop-after", "1"], str(tmp_path))
    assert status == 0, err
    assert len(find_runs(client)) == 2  # a new run is another one


def test_a_failure_is_one_there_with_its_message(tmp_path: Path, client: Any) -> None:
    writer = MlflowWriter(make_info(tmp_path))
    writer.close(Ending("failed", 1, error="the disk is full"))
    (run,) = find_runs(client)
    assert run.info.status == "FAILED"
    assert (run.data.tags["error"], run.data.tags["exit_status"]) == ("the disk is full", "1")


def test_a_row_that_is_not_taken_is_logged_with_the_next(
    tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException

    writer = MlflowWriter(make_info(tmp_path))
    with monkeypatch.context() as patch:

        def refuse(*_: object, **__: object) -> None:
            raise MlflowException("http://user:hunter2@host: no answer")

        patch.setattr("mlflow.tracking.MlflowClient.log_batch", refuse)
        with pytest.raises(UserError, match="--mlflow: http://host: no answer; check MLFLOW_"):
            writer.epoch({"epoch": 1, "step": 2, "loss": 1.5, "dice_a": ""})
    writer.epoch({"epoch": 2, "step": 4, "loss": 0.5, "dice_größe:1": 0.25})
    writer.close(Ending("finished", 0))
    (run,) = find_runs(client)
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert [(each.step, each.value) for each in losses] == [(2, 1.5), (4, 0.5)]
    assert run.data.metrics["dice_gr__e_1"] == 0.25 and "dice_a" not in run.data.metrics


def test_a_run_that_mlflow_has_no_more_begins_there_again(tmp_path: Path, client: Any) -> None:
    first = MlflowWriter(make_info(tmp_path))
    again = MlflowWriter(make_info(tmp_path, tracked={"mlflow": first.run_id}))
    lost = MlflowWriter(make_info(tmp_path, tracked={"mlflow": "0" * 32}))
    assert again.run_id == first.run_id != lost.run_id


def test_the_experiment_is_the_environment_s(
    tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "cells")
    MlflowWriter(make_info(tmp_path, start={"commit": "abc", "command": "train.py"}))
    (run,) = find_runs(client, "cells")
    assert run.data.tags["mlflow.source.git.commit"] == "abc"


def test_a_folder_needs_no_more_than_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow refuses folders, unless a variable says that they are wanted."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "other").as_uri())
    MlflowWriter(make_info(tmp_path)).close(Ending("finished", 0))
    assert (tmp_path / "other").is_dir()


def test_a_server_that_does_not_answer_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:hunter2@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    argv = [*data_flags(make_set(tmp_path, 4)), *FLAGS, "--mlflow"]
    status, out, err = call_train(argv, str(tmp_path))
    assert status == 2 and err.count("\n") == 1 and "hunter2" not in out + err
    assert err.startswith("error: --mlflow: ") and "check MLFLOW_TRACKING_URI" in err
    assert not (tmp_path / "checkpoints" / "last.pt").exists()
