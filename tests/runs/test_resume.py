"""The start of a run: what a resumed one keeps, what it may change, and what it refuses."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.tiny import make_data, make_pairs
from unet_ddp.checkpoints.weights import SavedModel
from unet_ddp.cli import save_config, with_saved
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import DataConfig, LaunchConfig, NetworkConfig, OptimizationConfig, TrainConfig
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.splits import Split
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, count_of
from unet_ddp.extras.transfer.fit import GivenWeights
from unet_ddp.runs import resume as resume_module
from unet_ddp.runs.resume import StartPoint
from unet_ddp.runs.same_data import measure_files


def with_options(given: str = "", **options: Any) -> TrainConfig:
    optimization = replace(OptimizationConfig(), **options)
    return TrainConfig(optimization=optimization, given=frozenset(given.split()))


def saved(per_step: int = 8, **settings: Any) -> StartPoint:
    """A run of so many images per step and these settings."""
    config = {**TrainConfig().to_dict(), **settings}
    return StartPoint({"config": config, "images_per_step": per_step})


def numbers(config: TrainConfig) -> tuple[Any, int, int | None]:
    options = config.optimization
    return options.batch_size, options.accumulate, options.images_per_step


# -- a new run ----------------------------------------------------------------------------------


def test_new_weights_are_not_frozen() -> None:
    config = with_options(freeze="encoder")
    weights = GivenWeights(SavedModel({}, None, None, None, []), Path("x.pt"), is_whole=True)
    with pytest.raises(UserError, match=r"--freeze encoder: .* use --load or --encoder-weights"):
        StartPoint().resolve_settings(config, World())
    pretrained = replace(config, network=NetworkConfig(encoder_weights="imagenet"))
    assert StartPoint().resolve_settings(pretrained, World()) is pretrained
    assert StartPoint(weights=weights).resolve_settings(config, World()) is config
    assert saved(8).resolve_settings(
        with_options("freeze", freeze="encoder"), World()
    )  # trained ones are


@pytest.mark.parametrize(
    ("options", "device", "is_native", "expected"),
    [
        ({}, "cpu", True, "bfloat16"),
        ({}, "cpu", False, "auto"),
        ({}, "cuda", True, "auto"),
        ({"precision": "float32"}, "cpu", True, "float32"),
        ({"precision": "float16"}, "cpu", True, "float16"),  # refused later, in a line
    ],
)
def test_a_new_run_takes_bfloat16_where_the_cpu_has_it_and_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    device: str,
    is_native: bool,
    expected: str,
) -> None:
    monkeypatch.setattr(resume_module, "is_faster_in_bfloat16", lambda: is_native)
    world = World(device=torch.device(device))
    config = StartPoint().resolve_settings(with_options(**options), world)
    assert config.optimization.precision == expected
    assert config.to_dict()["precision"] == expected  # saved with the run
    moved = saved(8, precision="auto").resolve_settings(TrainConfig(), world)
    assert moved.optimization.precision == "auto"  # of a run that began on a GPU
    resumed = saved(8, precision="bfloat16")
    again = resumed.resolve_settings(
        with_options("precision", precision="auto"), world
    )  # as a recipe says
    assert again.optimization.precision == "bfloat16"
    slow = device == "cpu" and not is_native
    assert (
        "bfloat16 is slow on this CPU; --precision float32 goes on without it" in resumed.notes
    ) == slow


@pytest.mark.parametrize(
    ("options", "processes", "expected"),
    [
        ({"batch_size": 4}, 2, (4, 1, None)),
        ({"batch_size": 4, "accumulate": 3}, 2, (4, 3, None)),
        ({"batch_size": 2, "images_per_step": 16}, 1, (2, 8, None)),
        ({"batch_size": 2, "images_per_step": 16}, 2, (2, 4, None)),
        ({"batch_size": 2, "images_per_step": 16}, 4, (2, 2, None)),
        ({"batch_size": 2, "images_per_step": 16, "accumulate": 8}, 1, (2, 8, None)),
        ({"batch_size": 4, "images_per_step": 4}, 1, (4, 1, None)),
        ({"batch_size": "auto", "images_per_step": 6}, 2, ("auto", 1, 6)),
        ({"batch_size": "auto"}, 2, ("auto", 1, None)),
    ],
)
def test_a_new_run_takes_its_images_per_step(
    options: dict[str, Any], processes: int, expected: tuple[Any, int, int | None]
) -> None:
    config = StartPoint().resolve_settings(with_options(**options), World(size=processes))
    assert numbers(config) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images_per_step": 9, "batch_size": 2}, r"--images-per-step 9: 4 at once on 2 processes do"),
        ({"images_per_step": 9, "batch_size": "auto"}, r"9: 2 at once on 2 processes do"),
        (
            {"images_per_step": 8, "batch_size": 2, "accumulate": 4},
            r"8 of --batch-size 2 on 2 processes means --accumulate 2, not 4; leave one",
        ),
    ],
)  # fmt: skip
def test_images_that_make_no_step_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        StartPoint().resolve_settings(with_options(**options), World(size=2))


# -- a resumed run --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "accumulate", "expected"),
    [(1, 1, (8, 1, None)), (2, 1, (4, 1, None)), (4, 1, (2, 1, None)), (2, 2, (2, 2, None))],
)
def test_the_images_per_step_are_kept_on_any_number_of_processes(
    processes: int, accumulate: int, expected: tuple[Any, int, int | None]
) -> None:
    resumed = saved(8, batch_size=4, accumulate=accumulate)
    config = resumed.resolve_settings(TrainConfig(), World(size=processes))
    assert numbers(config) == expected
    note = (
        f"batch size {expected[0]} on {count_of(processes, 'process')} keeps the run's 8 images per "
        "step"
    )
    assert resumed.notes == ([] if expected[0] == 4 else [note])


def test_another_accumulation_is_noted_with_the_images_of_the_statistics() -> None:
    resumed = saved(8, batch_size=4)
    config = resumed.resolve_settings(with_options("accumulate", accumulate=2), World(size=2))
    assert numbers(config) == (2, 2, None)
    assert resumed.notes == [
        "changed since: accumulate 1 -> 2",
        "batch size 2 on 2 processes keeps the run's 8 images per step",
        "--accumulate 2: batch statistics and Dice are now those of 4 images",
    ]


@pytest.mark.parametrize(
    ("resumed", "config", "processes", "message"),
    [
        (saved(8), TrainConfig(), 3, r"run's 8 images per step can't be divided among 3 processes; use 1, 2, 4, 8 of"),
        (saved(12, accumulate=2), TrainConfig(), 4, r"12 images .* among 4 processes; use 1, 2, 3, 6 of them"),
        (saved(9), with_options("batch_size", batch_size="auto"), 2, r"9 images .* use 1, 3, 9 of them"),
        (saved(8), with_options("accumulate", accumulate=3), 1, r"^--accumulate 3: does not divide the run's 8 images per step$"),
        (saved(8), with_options("images_per_step", images_per_step=4), 1, r"--images-per-step 4: the run takes 8 in"),
    ],
)  # fmt: skip
def test_another_number_of_images_per_step_is_refused(
    resumed: StartPoint, config: TrainConfig, processes: int, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        resumed.resolve_settings(config, World(size=processes))


def test_the_run_s_own_images_per_step_may_be_given_again() -> None:
    config = with_options("images_per_step", images_per_step=8)
    assert numbers(saved(8, batch_size=2).resolve_settings(config, World())) == (8, 1, None)


def test_auto_is_kept_for_the_probe_with_the_run_s_images() -> None:
    config = with_options("batch_size", batch_size="auto")
    resumed = saved(8, batch_size=2, accumulate=2)
    assert numbers(resumed.resolve_settings(config, World(size=2))) == ("auto", 2, 8)
    assert resumed.notes == []


def test_saved_settings_are_used_and_changes_are_noted() -> None:
    resumed = saved(4, seed=7, weight_decay=0.5, width=16, save_every=3, images="here")
    given = TrainConfig(given=frozenset({"weight_decay", "save_every", "images", "list"}))
    config = resumed.resolve_settings(given, World())
    assert config.optimization.seed == 7 and config.network.width == 16
    assert config.optimization.weight_decay == 1e-4 and config.run.save_every == 0
    assert resumed.notes == ["changed since: weight_decay 0.5 -> 0.0001"]


def test_auto_does_not_search_again_which_is_said_of_a_run_that_was_given_its_rate(
    tmp_path: Path,
) -> None:
    for kept in ("--learning-rate auto: the run keeps its 0.02", ""):
        resumed = replace(saved(4, learning_rate=0.02), source=tmp_path / "last.pt")
        given = with_options("learning_rate", learning_rate="auto")
        assert resumed.resolve_settings(given, World()).optimization.learning_rate == 0.02
        assert resumed.notes == [kept] * bool(kept)
        (tmp_path / "learning_rate.csv").touch()


def test_nan_is_the_nan_of_the_run(tmp_path: Path) -> None:
    """--nodata nan is usual; a run with it must be continued."""
    resumed = saved(4, nodata=math.nan)
    assert math.isnan(resumed.resolve_settings(TrainConfig(), World()).data.nodata or 0)
    assert resumed.notes == []
    with pytest.raises(UserError, match=r"^--resume: nodata nan -> 7"):
        resumed.resolve_settings(
            TrainConfig(data=DataConfig(nodata=7), given=frozenset({"nodata"})), World()
        )


def test_an_edited_recipe_of_the_run_is_not_read_and_a_line_says_so(tmp_path: Path) -> None:
    resumed = replace(saved(4, nodata=math.nan), source=tmp_path / "last.pt")
    recipe = tmp_path / "config.yaml"
    save_config(with_saved(TrainConfig(), {"nodata": math.nan}), recipe)
    assert resumed.resolve_settings(TrainConfig(), World()).optimization.epochs == 10
    assert resumed.notes == []
    recipe.write_text(recipe.read_text().replace("epochs: 10", "epochs: 50"))
    assert resumed.resolve_settings(TrainConfig(), World()).optimization.epochs == 10
    assert resumed.notes == [
        f"{recipe} has epochs 50, last.pt 10: --resume reads the latter; use flags"
    ]
    resumed.notes.clear()
    resumed.resolve_settings(
        with_options("epochs", epochs=50), World()
    )  # as --config config.yaml does
    assert resumed.notes == ["changed since: epochs 10 -> 50"]
    resumed.notes.clear()  # as a resume on another number of processes writes it
    save_config(with_saved(TrainConfig(), {"nodata": math.nan, "batch_size": 8}), recipe)
    resumed.resolve_settings(TrainConfig(), World())
    assert resumed.notes == []


@pytest.mark.parametrize(
    ("name", "before", "now"),
    [
        ("scale", 0.5, 1.0),
        ("model", "fpn", "unet"),
        ("encoder", "resnet18", None),
        ("width", 16, 32),
        ("bilinear", True, False),
        ("channels", 1, None),
        ("nodata", 7.0, None),
        ("classes", 3, None),
        ("class_names", ["a", "b"], None),
        ("palette", "classes.csv", None),
        ("mask_threshold", 9, None),
        ("invert", True, False),
        ("ignore_index", 255, None),
        ("batch_norm", "local", "global"),
        ("epoch_steps", 7, None),
        ("validation_images", 5, None),
    ],
)
def test_a_setting_on_which_the_weights_depend_is_fixed(name: str, before: Any, now: Any) -> None:
    resumed = saved(4, **{name: before})
    text = re.escape(f"--resume: {name} {before} -> {now}: a run keeps its network, scale and")
    with pytest.raises(UserError, match=f"^{text}"):
        resumed.resolve_settings(TrainConfig(given=frozenset({name})), World())


def test_a_checkpoint_that_is_older_than_a_setting_has_its_default() -> None:
    resumed = saved(4)
    assert resumed.content is not None
    del resumed.content["config"]["epoch_steps"], resumed.content["config"]["clip"]
    resumed.resolve_settings(with_options("clip", clip=2.0), World())
    assert resumed.notes == ["changed since: clip 1.0 -> 2.0"]
    with pytest.raises(UserError, match=r"^--resume: epoch_steps None -> 7: a run keeps"):
        resumed.resolve_settings(with_options("epoch_steps", epoch_steps=7), World())


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("checkpoints", "there"),
        ("exp_name", "one"),
        ("load", "x.pt"),
        ("images", "there"),
        ("masks", "there"),
        ("list", "pairs.csv"),
        ("val_images", "there"),
        ("val_masks", "there"),
        ("wandb", True),
        ("batch_size", 2),
        ("images_per_step", 4),
        ("save_every", 3),
        ("save_every_steps", 3),
        ("save_every_minutes", 1.0),
    ],
)
def test_where_things_are_may_change_silently(name: str, before: Any) -> None:
    resumed = saved(4, **{name: before})
    resumed.resolve_settings(TrainConfig(given=frozenset({name})), World())
    assert resumed.notes == []


def test_a_run_that_was_tracked_says_that_it_is_no_longer() -> None:
    resumed = saved(4, wandb=True)
    assert not resumed.resolve_settings(TrainConfig(), World()).run.wandb
    assert resumed.notes == ["no longer logged to Weights & Biases: that takes --wandb each time"]


# -- its data -------------------------------------------------------------------------------------


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replaces the check of the data set; `data` is what it finds, `asked` how it was called."""
    found = SimpleNamespace(data=make_data(), asked={})

    def prepare(config: Any, **how: Any) -> Any:
        found.asked = how
        return found.data

    monkeypatch.setattr(resume_module, "prepare_data", prepare)
    return found


def content_of(data: Any) -> dict[str, Any]:
    return {
        "labels": data.labels.to_dict(),
        "preprocessing": Preprocessing.for_images(3, scale=1.0).to_dict(),
        "names": data.split.fingerprint,
        "files": measure_files(data.split),
        "crop_size": None,
    }


def test_a_resumed_run_s_data_is_its_own(prepared: SimpleNamespace) -> None:
    config = replace(with_options(seed=5), launch=LaunchConfig(skip_bad_files=2))
    assert StartPoint().prepare_data(config, DATA_PARTS) is prepared.data
    assert prepared.asked["labels"] is None and prepared.asked["parts"] is DATA_PARTS
    assert prepared.asked["seed"] == 5 and prepared.asked["skip_bad"] == 2
    resumed = StartPoint(content_of(prepared.data))
    assert resumed.prepare_data(config, DATA_PARTS) is prepared.data
    assert prepared.asked["labels"] == Labels((0, 255))


@pytest.mark.parametrize(
    "data",
    [
        make_data("abcde", "xy"),
        make_data("abcdefx", "y"),
        make_data(format=ImageFormat(1)),
        make_data(format=ImageFormat(3, "uint16")),
    ],
)
def test_other_images_or_another_split_are_refused(prepared: SimpleNamespace, data: Any) -> None:
    resumed = StartPoint(content_of(prepared.data))
    prepared.data = data
    with pytest.raises(UserError, match=r"--resume: the images .*; use its --images, "):
        resumed.prepare_data(TrainConfig(), DATA_PARTS)


@pytest.mark.usefixtures("prepared")
def test_class_weights_of_another_number_are_refused() -> None:
    with pytest.raises(UserError, match="--class-weights: 3 weights"):
        StartPoint().prepare_data(with_options(class_weights=(1.0, 1.0, 2.0)), DATA_PARTS)


def test_the_split_s_fingerprint_is_of_names_and_sides() -> None:
    split = Split(make_pairs("ab"), make_pairs("c"), "by name")
    expected = hashlib.sha256(b"[['a', 'b'], ['c']]").hexdigest()
    assert split.fingerprint == expected
    moved = Split(make_pairs("ab", Path("/elsewhere")), make_pairs("c"), "otherwise")
    assert moved.fingerprint == expected
    assert Split(make_pairs("a"), make_pairs("bc"), "").fingerprint != expected
    odd = Pairs(replace(pair, name="\udcff") for pair in make_pairs("a"))  # no text
    assert Split(odd, Pairs(), "").fingerprint == hashlib.sha256(b"[['\\udcff'], []]").hexdigest()
