"""The log of --wandb, read back from the file that the real package writes offline."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.jobs import PIXELS
from unet_ddp.data.dataset import Sample
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.errors import UserError
from unet_ddp.extras.wandb.writer import WandbWriter, as_grey
from unet_ddp.network.precision import Precision
from unet_ddp.runs.ending import Ending
from unet_ddp.runs.writers import RunInfo
from unet_ddp.training.losses import SegmentationLoss
from unet_ddp.training.state import Schedule, TrainState
from unet_ddp.training.step import train_step

SAMPLE = Sample(
    torch.full((2, 2, 3), 90, dtype=torch.uint8),
    torch.tensor([[0, 1], [2, IGNORE_ID]], dtype=torch.uint8),
    torch.tensor(0),
)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


@pytest.fixture
def state() -> TrainState:
    """A network of one layer that finds class 1 everywhere."""
    network = torch.nn.Conv2d(3, 3, 1)
    torch.nn.init.zeros_(network.weight)
    network.bias.data = torch.tensor([0.0, 1.0, 0.0])
    return TrainState(
        network,
        network,
        torch.optim.AdamW(network.parameters(), fused=True),
        Precision(torch.device("cpu")),
        SegmentationLoss(),
        PIXELS,
        Schedule(1e-3, 10),
        steps_per_epoch=2,
    )


def step(state: TrainState, times: int = 1) -> None:
    batch = Sample(*(part[None] for part in SAMPLE))
    for _ in range(times):
        train_step(state, iter([batch]))


def read_runs(folder: Path) -> list[tuple[Any, dict[int, dict[str, Any]], int | None]]:
    """Return W&B's runs in `folder`, the oldest first, each with its rows by step and its exit status."""
    return sorted(_read_runs(folder), key=lambda run: run[0].start_time.ToNanoseconds())


def _read_runs(folder: Path) -> Iterator[tuple[Any, dict[int, dict[str, Any]], int | None]]:
    """Yield what each file, a log as LevelDB has it, holds."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # its service has then written all
    for path in folder.glob("wandb/offline-run-*/*.wandb"):
        data, at, content, run, rows = path.read_bytes(), 7, b"", None, {}
        status = None
        while at < len(data):
            if (left := 32768 - at % 32768) < 7:  # a block's end
                at += left
                continue
            length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
            content += data[at + 7 : at + 7 + length]
            at += 7 + length
            if kind not in (1, 4):  # the whole, or the last part, of a record
                continue
            record = wandb_internal_pb2.Record.FromString(content)
            content = b""
            if record.HasField("run"):
                run = record.run
            if record.HasField("exit"):
                status = record.exit.exit_code
            if record.HasField("history"):
                row = {
                    "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item
                }
                rows[row["_step"]] = row
        yield run, rows, status


def test_figures_images_and_histograms_are_logged(tmp_path: Path, state: TrainState) -> None:
    """Under the well-known script's names; weights and gradients of an epoch's first step."""
    images: Any = {(0, 0): SAMPLE}
    settings = {"optimization": {"epochs": 2}}
    writer = WandbWriter(RunInfo(tmp_path, "mine", settings, state, images, print))
    step(state, 2)
    writer.epoch({"epoch": 1, "step": 2, "validation_dice": 0.25, "dice_cat": ""})
    state.network.bias.data[:] = 7.0
    step(state)
    state.network.bias.data[:] = float("nan")
    writer.epoch({"epoch": 2, "step": 4, "validation_dice": 0.5, "dice_cat": ""})
    writer.close(Ending("finished", 0))
    ((run, rows, status),) = read_runs(tmp_path)
    assert (run.project, run.display_name, status) == ("unet_ddp", "mine", 0)
    logged = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert logged["optimization"] == {"epochs": 2}
    assert list(rows) == [2, 4]
    assert (rows[2]["epoch"], rows[2]["validation_dice"]) == (1, 0.25)
    assert (rows[4]["epoch"], rows[4]["validation_dice"]) == (2, 0.5)
    assert not any("dice_cat" in row for row in rows.values())
    for row, biases in ((rows[2], (0.0, 1.0)), (rows[4], (7.0, 7.0))):
        names = {name.rsplit("/", 1)[0] for name in row if name.endswith("/bins")}
        assert names == {f"{kind}/{part}" for kind in ("Weights", "Gradients")
                         for part in ("weight", "bias")}  # fmt: skip
        bins = row["Weights/bias/bins"]
        assert min(bins) <= biases[0] <= biases[1] <= max(bins)
        assert sum(row["Weights/weight/values"]) == 9
        assert any(row["Gradients/bias/bins"])
    pictures = {
        name: np.asarray(
            Image.open(next(tmp_path.glob(f"wandb/offline-run-*/files/{row['path']}")))
        )
        for name in ("images", "masks/true", "masks/pred")
        for row in [{"path": rows[2][f"{name}/path"]}]
    }
    assert pictures["images"].tolist() == [[[90] * 3] * 2] * 2
    assert pictures["masks/true"].tolist() == [[0, 127], [255, 128]]
    assert pictures["masks/pred"].tolist() == [[127, 127], [127, 127]]


def test_a_resumed_run_continues_there_too(tmp_path: Path, state: TrainState) -> None:
    """Without a validation image here; a new run in the same folder is another one there."""
    ids: dict[str, str] = {}
    for done, tracked in ((0, {}), (2, ids), (0, {})):
        info = RunInfo(tmp_path, None, {}, state, None, print, tracked=tracked)
        writer = WandbWriter(info)
        ids["wandb"] = writer.run_id
        writer.epoch({"loss": 0.5, "step": done + 2})
        writer.close(Ending("stopped", 143, "SIGTERM"))
    (first, rows, status), (resumed, later, _), (new, _, _) = read_runs(tmp_path)
    assert first.run_id == resumed.run_id != new.run_id
    assert list(rows) == [2] and list(later) == [4] and status == 143
    assert "images/path" not in rows[2]


def test_a_refusal_is_the_user_s_error(
    tmp_path: Path, state: TrainState, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    asked: dict[str, object] = {}

    def refuse(**how: object) -> None:
        asked.update(how)
        raise wandb.errors.UsageError("no API key configured")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(UserError, match="--wandb: no API key configured; run `wandb login`"):
        WandbWriter(RunInfo(tmp_path, None, {}, state, None, print))
    images: Any = {(0, 0): UserError("bad.png")}
    with pytest.raises(UserError, match=r"bad\.png"):
        WandbWriter(RunInfo(tmp_path, None, {}, state, images, print))
    assert (asked["dir"], asked["id"], asked["resume"]) == (tmp_path, None, "allow")


def test_masks_are_grey_images_of_bytes() -> None:
    """As PIL takes them."""
    grey = as_grey(SAMPLE.mask, 3)
    assert (grey.dtype, grey.tolist()) == (np.uint8, [[0, 127], [255, 128]])


def test_masks_of_classes_that_overlap_are_no_grey_images(
    tmp_path: Path, state: TrainState
) -> None:
    """Their values are bits of up to 15 classes."""
    bits = torch.tensor([[0, 1], [300, IGNORE_ID]], dtype=torch.int16)
    images: Any = {(0, 0): SAMPLE._replace(mask=bits)}
    writer = WandbWriter(RunInfo(tmp_path, None, {"overlap": True}, state, images, print))
    writer.epoch({"loss": 0.5, "step": 2})
    writer.close(Ending("finished", 0))
    ((_, rows, _),) = read_runs(tmp_path)
    assert "images/path" in rows[2] and "masks/true/path" not in rows[2]
