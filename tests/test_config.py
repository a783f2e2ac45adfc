"""Settings: their defaults, limits, names in files, and what follows from them."""

from __future__ import annotations

import math
from dataclasses import astuple
from pathlib import Path

import pytest

from tests.object_store import MemoryBucket
from unet_ddp.cli import read_recipe
from unet_ddp.config import (
    DataConfig,
    LaunchConfig,
    NetworkConfig,
    OptimizationConfig,
    RunConfig,
    TrainConfig,
)
from unet_ddp.errors import Limit, UserError
from unet_ddp.extras.cloud import Url, put
from unet_ddp.extras.palettes.rules import read_palette
from unet_ddp.files import as_path


@pytest.mark.parametrize(
    ("limit", "inside", "outside", "text"),
    [
        (Limit(at_least=1), [1, 2, math.inf], [0.999, -math.inf], "1 or more"),
        (Limit(above=0), [1e-9, 5], [0, -1], "above 0"),
        (Limit(above=0, at_most=1), [0.1, 1], [0, 1.001], "above 0 and at most 1"),
        (Limit(at_least=0, below=100), [0, 99.9], [-0.1, 100], "0 or more and below 100"),
        (Limit(2, 255, note="; so"), [2, 255], [1, 256], "2 or more and at most 255; so"),
    ],
)
def test_limits(limit: Limit, inside: list[float], outside: list[float], text: str) -> None:
    assert all(value in limit for value in inside)
    assert not any(value in limit for value in [*outside, math.nan])
    assert str(limit) == text


def test_defaults_and_saved_names() -> None:
    """README documents the values, and released checkpoints contain the names."""
    assert TrainConfig().to_dict() == {
        "images": None, "masks": None, "list": None, "reader": [], "mask_suffix": None, "val_images": None,
        "val_masks": None, "scale": 1.0, "ground_resolution": None, "crop_size": None, "validation": 10.0,
        "group_pattern": None, "fold": None, "validation_images": None, "channels": None, "nodata": None,
        "classes": None, "class_names": None, "round_masks": False, "palette": None,
        "mask_threshold": None, "invert": False, "instances": False, "overlap": False, "all_masks": False, "ignore_index": None, "resize_masks": False,
        "class_field": None, "window": None, "blocks": None,
        "balance": 0.0, "shares": [], "scale_jitter": None, "augmentation": "photo",
        "model": "unet", "encoder": None, "encoder_weights": None, "width": 32, "bilinear": False,
        "batch_norm": "global", "checkpointing": False,
        "epochs": 10, "epoch_steps": None, "patience": 0, "batch_size": 4, "accumulate": 1, "images_per_step": None,
        "learning_rate": 1e-3, "warmup": 5.0, "weight_decay": 1e-4, "clip": 1.0,
        "encoder_rate": 1.0, "freeze": "none",
        "loss": "dice_ce", "loss_weights": [1.0, 1.0], "class_weights": None,
        "label_smoothing": 0.0, "hard_pixels": 100.0, "boundary_weight": None, "precision": "auto",
        "compile": False, "compress_gradients": False, "ema": 0.0, "seed": 0,
        "checkpoints": "checkpoints", "exp_name": None, "save_every": 0, "save_every_steps": 0,
        "save_every_minutes": 10.0, "load": None, "wandb": False, "mlflow": False,
    }  # fmt: skip


def test_defaults_of_a_start() -> None:
    assert LaunchConfig() == LaunchConfig(
        resume=None, overwrite=False, config=None, stop_after=None, nproc=1, workers=None,
        cache=False, device="auto", timeout=600.0, max_bad_steps=20, skip_bad_files=0,
        rescue_dir=None, profile=False, deterministic=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stop_after", "last"), [(None, None), ("7", 7), ("2epochs", 6), ("1epoch", 3)]
)
def test_a_start_ends_after_steps_or_epochs(stop_after: str | None, last: int | None) -> None:
    assert LaunchConfig(stop_after=stop_after).last_step(3) == last


def test_names_are_unique_over_the_groups() -> None:
    groups = [DataConfig, NetworkConfig, OptimizationConfig, RunConfig, LaunchConfig]
    names = [name for group in groups for name in group.__dataclass_fields__]
    assert len(names) == len(set(names)) == len(astuple(TrainConfig())[:5] and names)


def test_saved_settings_are_plain_values_of_the_run_alone() -> None:
    config = TrainConfig(
        data=DataConfig(pairs_file="pairs.csv", crop_size=(64, 96)),
        optimization=OptimizationConfig(class_weights=(1.0, 2.0)),
        launch=LaunchConfig(stop_after="7"),
        given=frozenset({"list"}),
    )
    saved = config.to_dict()
    assert saved["list"] == "pairs.csv"
    assert saved["crop_size"] == [64, 96] and saved["class_weights"] == [1.0, 2.0]
    assert not saved.keys() & {"pairs_file", "stop_after", "resume", "workers", "given"}


def test_what_was_given_does_not_distinguish_configurations() -> None:
    assert TrainConfig(given=frozenset({"epochs"})) == TrainConfig()


@pytest.mark.parametrize(
    ("run", "resume", "folder", "file"),
    [
        (RunConfig(), None, "checkpoints", "checkpoints/last.pt"),
        (RunConfig("runs", "a"), None, "runs/a", "runs/a/last.pt"),
        (RunConfig("runs", "a"), "auto", "runs/a", "runs/a/last.pt"),
        (RunConfig("runs"), "runs/best.pt", "runs", "runs/best.pt"),
    ],
)
def test_folder_and_checkpoint_to_resume(
    run: RunConfig, resume: str | None, folder: str, file: str
) -> None:
    config = TrainConfig(run=run, launch=LaunchConfig(resume=resume))
    assert config.folder == Path(folder)
    assert config.resume_file == Path(file)


def test_recipes_and_palettes_may_be_objects(memory_store: MemoryBucket) -> None:
    url = Url("s3://bucket/config")
    put(url / "a.yaml", b"epochs: 7\nimages: s3://bucket/imgs\n")
    assert read_recipe(url / "a.yaml") == {"epochs": 7, "images": "s3://bucket/imgs"}
    put(url / "a.csv", b"road,1\ncar,2\n")
    assert read_palette(as_path(f"{url}/a.csv")) == ({"road": 1, "car": 2}, False)
    with pytest.raises(UserError, match=r"^s3://bucket/config/none.yaml: not found$"):
        read_recipe(url / "none.yaml")
