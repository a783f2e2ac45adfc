"""Each setting arrives where a command hands it on: all away from their defaults, and from each other."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

from tests.commands.handing import ArrivedError, arriving, replacing
from tests.conftest import make_pair
from tests.prediction.models import write_model
from unet_ddp.__main__ import main
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.checkpoints.weights import read_model
from unet_ddp.checks.check import check_classes, check_dataset, prepare_data
from unet_ddp.checks.rare import find_rare
from unet_ddp.checks.scan import scan
from unet_ddp.checks.summary import describe_images
from unet_ddp.commands import train
from unet_ddp.config import DataConfig, LaunchConfig, NetworkConfig
from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.dataset import RareKind, SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.loaders import SampleLoader, loader_arguments
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.data.readers.read import use_own_readers
from unet_ddp.data.samplers import ScoringSampler, TrainingSampler
from unet_ddp.data.splits import split_pairs
from unet_ddp.distributed.device import is_faster_in_bfloat16, pick_device
from unet_ddp.distributed.join import join
from unet_ddp.distributed.launch import run_on_all_ranks
from unet_ddp.distributed.replica import replicate
from unet_ddp.distributed.world import World
from unet_ddp.evaluation.boundary import count_boundaries
from unet_ddp.evaluation.dataset import EvaluationDataset, fetch
from unet_ddp.evaluation.results import Evaluation
from unet_ddp.evaluation.scoring import score_pairs
from unet_ddp.extras.cache.samples import SampleCache
from unet_ddp.extras.learning_curve import curve
from unet_ddp.extras.learning_curve.curve import CurveConfig
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.objects.separation import separate
from unet_ddp.extras.onnx.export_data import find_scored
from unet_ddp.extras.packs.pack_index import PackIndex
from unet_ddp.extras.planners.batch_size import BatchSizeProbe, find_batch_size
from unet_ddp.extras.planners.budget import Pace, time_steps, time_validation
from unet_ddp.extras.planners.dry_run import take_dry_steps
from unet_ddp.extras.report.page import render
from unet_ddp.extras.report.write import draw_samples, write_report, write_samples
from unet_ddp.extras.sampling.balance import ClassDraw
from unet_ddp.extras.sampling.cuts import cut_sample
from unet_ddp.extras.serve.queue import PredictionQueue
from unet_ddp.extras.serve.settings import ServeConfig
from unet_ddp.extras.sharing.bioimageio import prepare as prepare_package
from unet_ddp.extras.sharing.card import write_card
from unet_ddp.extras.transfer.fit import fit_weights
from unet_ddp.heads import Softmax
from unet_ddp.network.architecture import build_network, choose_architecture, parameter_groups
from unet_ddp.prediction.backends import TorchBackend, build_model, open_models
from unet_ddp.prediction.outputs.base import open_outputs
from unet_ddp.prediction.paths import name_outputs
from unet_ddp.prediction.pipeline import predict_in_batches
from unet_ddp.prediction.prediction import Prediction
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.threads import one_core_each
from unet_ddp.prediction.tiling import Tiling
from unet_ddp.runs.folder import RunFolder
from unet_ddp.runs.writers import CsvWriter, TensorBoardWriter
from unet_ddp.training.guard import FiniteGuard
from unet_ddp.training.own_network import try_network
from unet_ddp.training.prefetch import Prefetcher
from unet_ddp.training.state import AdamW, Schedule, TrainState
from unet_ddp.training.step import correct_averages, train_step, train_steps
from unet_ddp.training.tensors import WeightAverage
from unet_ddp.training.validation import count_pixels

uvicorn = pytest.importorskip("uvicorn", reason="the extra serve is not installed")

CPU = torch.device("cpu")
FIRST = torch.device("cpu", 0)  # of a machine whose device is not the default
RARE = [RareKind("dark", 0.1, [0, 2])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder of all scenes: pairs, a checkpoint, and one of another program."""
    folder = tmp_path_factory.mktemp("handed_on")
    write_images(folder)
    run = {"scale": 0.5, "resize_masks": True, "precision": "bfloat16", "seed": 6}
    config = {**run, "images": "imgs", "masks": "masks", "mask_suffix": "_m", "validation": 30.0}
    labels = Labels((0, 255), ignore=9)
    for name, threshold in (("own", 0.25), ("other", 0.75)):
        write_model(folder / f"{name}.pt", labels, threshold=threshold, config=config)
    foreign = build_network(
        choose_architecture("unet", None, channels=3, num_classes=2, width=2, bilinear=True)
    )
    torch.save(foreign.state_dict(), folder / "foreign.pth")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


def write_images(folder: Path) -> None:
    """Ten groups of two images, with masks of another name, one of another size, and void."""
    for k in range(20):
        _, mask = make_pair(folder, f"{chr(97 + k // 2)}x_{k % 2}", size=(64, 80))
        values = np.array(Image.open(mask))
        values[0] = 9
        values = values if k else values[::2, ::2]
        Image.fromarray(values).save(mask.with_name(f"{mask.stem}_m.png"))
        mask.unlink()


def without(argv: list[str], *flags: str) -> list[str]:
    """A command line without some of its flags and their values."""
    kept, is_kept = [], True
    for word in argv:
        is_kept = word not in flags if word.startswith("--") else is_kept
        kept += [word] * is_kept
    return kept


def named_pairs(count: int) -> Pairs:
    """The first pairs of the folder."""
    names = [f"{chr(97 + k)}x_1" for k in range(count)]
    return Pairs(
        Pair(name, Path(f"imgs/{name}.png"), Path(f"masks/{name}_m.png")) for name in names
    )


def fast() -> Any:
    """A CPU that is faster in bfloat16."""
    return replacing(is_faster_in_bfloat16, lambda: True)


def run(*argv: str) -> None:
    """Run a command in this process, up to its end or to the call that stops it."""
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with quiet[0], quiet[1], contextlib.suppress(SystemExit, ArrivedError):
        main(argv)


# -- train ----------------------------------------------------------------------------------

DATA = [
    "--images", "imgs", "--masks", "masks", "--mask-suffix", "_m", "--scale", "0.5", "--crop-size",
    "16", "24", "--validation", "40", "--group-pattern", "(.x)", "--nodata", "7", "--channels",
    "3", "--class-names", "ground", "square", "--ignore-index", "9", "--resize-masks", "--seed",
    "11",
]  # fmt: skip
STEPS = [
    "--batch-size", "3", "--accumulate", "2", "--learning-rate", "0.002", "--warmup", "20",
    "--encoder-rate", "0.5", "--weight-decay", "0.03", "--clip", "0.7", "--loss", "dice_focal",
    "--loss-weights", "0.5", "2", "--class-weights", "1", "3", "--label-smoothing", "5",
    "--hard-pixels", "50", "--boundary-weight", "2",
]  # fmt: skip
RUN = [
    "--augmentation", "overhead", "--balance", "30", "--scale-jitter", "0.8", "1.25", "--width",
    "3", "--bilinear", "--epochs", "2", "--ema", "0.9", "--patience", "5", "--compress-gradients",
    "--checkpoints", "out", "--exp-name", "first", "--save-every", "2", "--save-every-steps", "3",
    "--workers", "0", "--timeout", "55", "--device", "cpu", "--max-bad-steps", "7",
    "--skip-bad-files", "2", "--cache", "--precision", "float32",
]  # fmt: skip


@arriving(
    (run_on_all_ranks, {"entrypoint": train.train, "nproc": 1, "device": "cpu", "timeout": 55.0}),
    (find_pairs, {"images": Path("imgs"), "masks": Path("masks"), "suffix": "_m", "planes": True}),
    (scan, {"nodata": 7.0, "channels": 3, "planes": False, "ignore": 9}),
    (split_pairs, {"validation": 40.0, "seed": 11, "pattern": "(.x)", "fold": None}),
    (check_dataset, [
        {"seed": 11, "labels.names": None, "skip_bad": 2, "moved": None},
        {"seed": 11, "labels.names": ("ground", "square"), "skip_bad": 2, "moved": ()},
    ]),
    (describe_images, {"count": 20, "scale": 0.5}),
    (ClassDraw, {"share": 0.3, "seed": 11}),
    (choose_architecture, {
        "model": "unet", "encoder": None, "channels": 3, "num_classes": 2, "width": 3, "bilinear": True,
    }),
    (Preprocessing.for_data, {"image_format.nodata": 7.0, "scale": 0.5}),
    (parameter_groups, {"encoder_rate": 0.5, "last_rate": 5.0}),
    (replicate, {"compress": True, "may_skip": False}),
    (AdamW, {"weight_decay": 0.03, "fused": True}),
    (WeightAverage, {"decay": 0.9}),
    (Schedule, {"highest": 0.002, "steps": 4, "warmup": 0.2}),
    (TrainState, {
        "steps_per_epoch": 2, "patience": 5, "seed": 11, "compiled": None, "has_local_norms": False,
        "has_own_buffers": False, "loss.options.loss_weights": (0.5, 2.0), "loss.options.label_smoothing": 5.0,
    }),
    (SegmentationDataset, [
        {"scale": 0.5, "resize_masks": True, "size": None, "image_format.nodata": 7.0, "labels.ignore": 9},
        {"scale": 0.5, "resize_masks": True, "size": (32, 40), "image_format.nodata": 7.0, "labels.ignore": 9},
    ]),
    (Augmentation, {
        "preset": "overhead", "crop_size": (16, 24), "seed": 11, "num_classes": 2, "cut.args": ((0.8, 1.25),),
    }),
    (cut_sample, [
        {"scales": (0.8, 1.25), "crop_size": (16, 24), "drawn": drawn} for drawn in (None, 1, 0)
    ]),
    (SampleCache, {"folder.name": "unet_ddp", "scale": 0.5, "resize_masks": True, "warns": True}),
    (TrainingSampler, {"count": 12, "per_step": 6, "rank": 0, "size": 1, "seed": 11}),
    (SampleLoader, [
        {"batch_size": 8, "workers": 0, "pin": False, "unbatch": True, "timeout": 44.0},
        {"batch_size": 3, "workers": 0, "pin": False, "unbatch": False, "timeout": 44.0},
    ]),
    (loader_arguments, [{"batch_size": size, "workers": 0} for size in (8, 3, 1)]),
    (Prefetcher, {"ahead": 4, "device": CPU, "on_error.__name__": "request_stop"}),
    (train_steps, [
        {"until": 2, "accumulate": 2, "clip": 0.7}, {"until": 400, "accumulate": 2, "clip": 0.7},
    ]),
    (train_step, {"accumulate": 2, "clip": 0.7}),
    (correct_averages, {"batches": 2}),
    (count_pixels, {"num_classes": 2}),
    (Softmax.tuner, {"resize_masks": True}),
    (FiniteGuard, {"most": 7, "has_scaler": False, "skipped": 0}),
    (checkpoint.save_all, {"folder": Path("out/first"), "keep_previous": True}),
    (RunFolder.save, [{"is_best": False, "labels": None}, {"is_best": True, "labels": None}]),
    (CsvWriter, [{"path": Path("out/first/metrics.csv"), "after": done} for done in (0, 2)]),
    (TensorBoardWriter, [{"folder": Path("out/first"), "after": done} for done in (0, 2)]),
    (write_samples, {"folder": Path("out/first"), "device": CPU, "network": "unet"}),
    (write_report, {"folder": Path("out/first"), "rare": RARE, "notes": (), "workers": 0, "network": "unet"}),
    (build_model, [
        {"source": Path("out/first/best.pt"), "fold": True, "bfloat16": True, "network": "unet"},
        {"source": Path("out/first/best.pt"), "fold": False, "bfloat16": True, "network": "unet"},
    ]),
    (EvaluationDataset, {"full_size": False, "resize_masks": True}),
    (score_pairs, {"threshold": pytest.approx(0.5, abs=0.499), "tolerance": None, "workers": 0}),  # the checkpoint's
    (fetch, {"workers": 0}),
)  # fmt: skip
def test_train_hands_on_its_settings_at_a_start_and_at_a_resume(folder: Path) -> None:
    """A run that stops after an epoch, and then goes on to its end."""
    quick = replacing(render, lambda page: ""), replacing(draw_samples, lambda *how: None)
    with quick[0], quick[1], replacing(find_rare, lambda table, split: RARE), fast():
        run("train", *DATA, *STEPS, *RUN, "--stop-after", "2")
        run("train", *DATA, *STEPS, *RUN, "--stop-after", "400", "--resume")


@arriving(
    (BatchSizeProbe, {
        "size": (16, 24), "checkpointing": True, "has_average": True, "frozen": "encoder",
    }),
    (find_batch_size, {"share": 6, "start": 6}),
    (BatchSizeProbe.find_largest, {"share": 6, "start": 6, "processes": 1}),
    last=BatchSizeProbe.find_largest,
)  # fmt: skip
def test_a_batch_size_is_found_for_the_run_s_settings(folder: Path) -> None:
    """An encoder that stays as it is takes no memory for its gradients."""
    own = "--exp-name probed --load own.pt --freeze encoder --checkpointing --batch-size auto --images-per-step 6"
    run("train", *DATA, *without(STEPS, "--batch-size", "--accumulate"), *RUN, *own.split())


@arriving(
    (build_network, {"encoder_weights": None, "checkpointing": True}),
    (take_dry_steps, {"options.accumulate": 2, "options.clip": 0.7}),
    (Prefetcher, {"ahead": 4, "device": CPU}),
    (train_steps, {"until": None, "accumulate": 2, "clip": 0.7}),
    last=train_steps,
)  # fmt: skip
def test_steps_at_a_rising_rate_are_those_of_the_run(folder: Path) -> None:
    own = ["--exp-name", "ranged", "--learning-rate", "auto", "--checkpointing"]
    run("train", *DATA, *STEPS, *RUN, *own)


@arriving(
    (time_steps, {"options.accumulate": 2, "budget": 2.0}),
    (time_validation, {"images": 8, "labels.ignore": 9}),
    (Prefetcher, {"ahead": 4, "device": CPU}),
    (train_steps, {"until": None, "accumulate": 2, "clip": 0.7}),
    (count_pixels, {"num_classes": 2}),
    (Softmax.tuner, {"resize_masks": True}),
)  # fmt: skip
def test_steps_that_are_timed_are_those_of_the_run(folder: Path) -> None:
    """Too short a time for an epoch, of which a few steps are tried."""
    own = ["--exp-name", "budgeted", "--budget", "2s"]
    run("train", *DATA, *STEPS, *without(RUN, "--epochs"), *own)


@arriving(
    (TrainingSampler, {"count": 12, "per_step": 6, "steps": 3}),
    (ScoringSampler, {"count": 2}),
    (Pace, {"step": 1.0, "steps": 3, "validation": 5.0, "report": 20.0}),
    last=Pace,
)  # fmt: skip
def test_epochs_of_steps_that_score_a_part_of_the_images_are_planned_as_such(folder: Path) -> None:
    """The report scores all eight."""
    own = "--exp-name parted --budget 2s --epoch-steps 3 --validation-images 2"
    times = replacing(time_steps, lambda *_, **how: 1.0), replacing(time_validation, lambda *_, **how: 5.0)  # fmt: skip
    with times[0], times[1]:
        run("train", *DATA, *STEPS, *without(RUN, "--epochs"), *own.split())


@arriving((Augmentation, {"num_classes": 128, "crop_size": (16, 24)}), last=Augmentation)
def test_ids_of_classes_that_overlap_are_augmented(folder: Path) -> None:
    """A pixel has an id of seven bits."""
    for name, kind in product(("p1", "p2", "q1", "q2"), ("car", "road", "tree")):
        _, mask = make_pair(folder / "planes", name, size=(64, 80))
        (mask.parent / kind).mkdir(exist_ok=True)
        mask.rename(mask.parent / kind / mask.name)
    own = "--images planes/imgs --masks planes/masks --overlap --crop-size 16 24 -b 1 --exp-name overlaps"
    run("train", *own.split(), *without(RUN, "--balance", "--exp-name"))


@arriving(
    (fit_weights, {"source": Path("own.pt"), "encoder_only": False}),
    last=replicate,
)  # fmt: skip
def test_a_given_network_is_taken_whole(folder: Path) -> None:
    run("train", *DATA, *RUN, "--exp-name", "loaded", "--load", "own.pt")


@arriving(
    (fit_weights, {"source": Path("foreign.pth"), "encoder_only": True}),
    last=replicate,
)  # fmt: skip
def test_of_given_encoder_weights_the_encoder_is_taken(folder: Path) -> None:
    own = [
        "--exp-name", "encoder", "--encoder-weights", "foreign.pth", "--freeze", "encoder",
        "--width", "2",
    ]  # fmt: skip
    run("train", *DATA, *RUN, *own)


@arriving(
    (build_network, [
        {"architecture.model": "tests.zoo:N_counter", "architecture.width": 3, "encoder_weights": None, "checkpointing": False},
    ]),
    (try_network, {"name": "tests.zoo:N_counter", "example.shape": (2, 3, 16, 24)}),
    last=try_network,
)  # fmt: skip
def test_an_own_network_is_tried_on_images_of_the_run_s_size(folder: Path) -> None:
    own = ["--exp-name", "own", "--model", "tests.zoo:N_counter"]
    run("train", *DATA, *STEPS, *without(RUN, "--bilinear"), *own)


@arriving(
    (join, {"device": "cpu", "timeout": 55.0}),
    last=join,
)  # fmt: skip
def test_a_process_waits_for_the_others_as_long_as_it_is_told(folder: Path) -> None:
    run("train", *DATA, "--timeout", "55", "--device", "cpu")


@arriving(
    (check_dataset, {"seed": 11, "labels": None, "skip_bad": 2, "moved": None}),
    (check_classes, {"weights": (1.0, 3.0)}),
    (TrainingSampler, {"count": 12, "per_step": 6, "rank": 0, "size": 1, "seed": 11}),
)  # fmt: skip
def test_doctor_hands_on_its_settings(folder: Path) -> None:
    of_steps = [
        "--batch-size", "3", "--accumulate", "2", "--class-weights", "1", "3", "--skip-bad-files",
        "2",
    ]  # fmt: skip
    run("doctor", *DATA, *of_steps)


@arriving(
    (check_dataset, {"seed": 11, "labels": None, "skip_bad": 2, "moved": None}),
    (PackIndex, {"attempt": "", "mark": ".mask", "validation": 2, "nodata": 7.0, "channels": 3}),
    (use_own_readers, {"names": ()}),
)  # fmt: skip
def test_pack_hands_on_its_settings(folder: Path) -> None:
    own = [
        "--val-images", "val/imgs", "--val-masks", "val/masks", "--skip-bad-files", "2", "-o",
        "pack",
    ]  # fmt: skip
    for name in ("ax", "bx"):
        _, mask = make_pair(folder / "val", name, size=(64, 80))
        mask.rename(mask.with_name(f"{mask.stem}_m.png"))
    run("pack", *without(DATA, "--crop-size", "--validation", "--group-pattern"), *own)


@arriving(
    (prepare_data, {"seed": 11, "labels": None, "skip_bad": 2, "moved": None}),
    last=prepare_data,
)  # fmt: skip
def test_a_learning_curve_s_data_are_those_of_its_settings(folder: Path) -> None:
    run("learning-curve", *DATA, "--skip-bad-files", "2")


@arriving(
    (Predictor.from_checkpoint, {"device": FIRST, "fold": False, "network": "own:network", "scale": None}),
    (World, {"device": FIRST}),
    (EvaluationDataset, {"full_size": False, "resize_masks": True}),
    (score_pairs, {"threshold": None, "tolerance": None, "workers": 0}),
)  # fmt: skip
def test_a_network_of_a_learning_curve_is_scored_as_its_run_did(folder: Path) -> None:
    """The score of one training of a learning curve."""
    config = replace(
        CurveConfig(),
        data=DataConfig(resize_masks=True),
        network=NetworkConfig(model="own:network"),
        launch=LaunchConfig(device="cpu", workers=0),
    )
    with replacing(pick_device, lambda device: FIRST):
        curve.score(Path("own.pt"), config, named_pairs(2))


@arriving(
    (run_on_all_ranks, {"nproc": 1, "device": "cpu", "timeout": 44.0}),
    (build_model, {
        "source": Path("own.pt"), "device": CPU, "fold": False, "bfloat16": True, "network": "own:network",
    }),
    (TorchBackend, {"device": CPU, "fold": False, "dtype": torch.bfloat16}),
    (EvaluationDataset, {"full_size": True, "resize_masks": True}),
    (score_pairs, {"threshold": 0.3, "tolerance": 2.5, "workers": 0}),
    (Evaluation, {"threshold": 0.3, "tolerance": 2.5, "full_size": True}),
    (count_boundaries, {"tolerance": 2.5}),
    (find_pairs, {"images": Path("imgs"), "masks": Path("masks"), "suffix": "_m", "planes": True}),
)  # fmt: skip
def test_evaluate_hands_on_its_settings(folder: Path) -> None:
    with fast():
        run(
            "evaluate", "-m", "own.pt", "--threshold", "0.3", "--tolerance", "2.5", "--workers", "0", "-o", "scores",
            "--network", "own:network", "--device", "cpu", "--timeout", "44",
        )  # fmt: skip


@arriving(
    (build_model, {"source": Path("other.pt"), "fold": False, "bfloat16": False, "network": None}),
    (score_pairs, {"threshold": 0.75, "tolerance": None, "workers": 0}),
    last=count_boundaries,
)  # fmt: skip
def test_another_network_is_scored_with_its_own_threshold(folder: Path) -> None:
    """Of two networks, each with its threshold, in float32."""
    with fast():
        argv = "evaluate -m own.pt --against other.pt --workers 0 -o scores --device cpu"
        run(*argv.split(), "--precision", "float32", "--overwrite")


@arriving(
    (read_model, {"path": Path("foreign.pth"), "scale": 0.3}),
    (find_pairs, {"images": Path("imgs"), "masks": Path("masks"), "suffix": None, "planes": False}),
    last=build_model,
)  # fmt: skip
def test_a_network_of_another_program_is_scored_at_the_scale_that_is_typed(folder: Path) -> None:
    run(
        "evaluate",
        "-m",
        "foreign.pth",
        "--images",
        "imgs",
        "--masks",
        "masks",
        "-s",
        "0.3",
        "-o",
        "x",
    )


@arriving(
    (Predictor.from_checkpoint, {
        "paths": (Path("own.pt"), Path("other.pt")), "device": CPU, "scale": None, "fold": True, "precision": "auto",
        "network": "own:network", "runtime": None, "options": {
            "tile": 48, "overlap": 12.5, "tta": "mirror", "threshold": 0.3, "ground_resolution": 2.0,
        },
    }),
    (build_model, [
        {"source": Path(name), "device": CPU, "fold": True, "bfloat16": True, "network": "own:network"}
        for name in ("own.pt", "other.pt")
    ]),
    (Tiling, {"side": 48, "overlap": 0.125, "stride": 16}),
    (open_outputs, {"config.tile": 48, "labels.ignore": 9, "image_format.ground_resolution": 2.0}),
    (name_outputs, {
        "images": [Path("imgs/ax_0.png"), Path("imgs/ax_1.png")], "config.output": "predicted",
        "models": [Path("own.pt"), Path("other.pt")], "ground_resolution": 2.0,
    }),
    (predict_in_batches, {"batch_size": 3, "threads": 2}),
    (one_core_each, {"threads": 2}),
    (Prediction, {"input_size": (32, 40), "size": (64, 80), "threshold": 0.3}),
)  # fmt: skip
def test_predict_hands_on_its_settings(folder: Path) -> None:
    with fast():
        run(
            "predict", "imgs/ax_0.png", "imgs/ax_1.png", "-m", "own.pt", "other.pt", "--network", "own:network",
            "--threshold", "0.3", "--tta", "mirror", "--tile", "48", "--overlap", "12.5", "--ground-resolution", "2",
            "--batch-size", "3", "--workers", "2", "--device", "cpu", "-o", "predicted",
        )  # fmt: skip


@arriving(
    (separate, {"separation": (0.6, 0.4), "smoothing": 3.0}),  # twice that at the network's scale
)  # fmt: skip
def test_predicted_objects_are_told_apart_as_the_checkpoint_says(folder: Path) -> None:
    labels = ObjectLabels.of(("cell",))
    labels = replace(labels, separation=(0.6, 0.4), smoothing=1.5)
    write_model(folder / "objects.pt", labels, scale=0.5)
    run("predict", "imgs/ax_0.png", "-m", "objects.pt", "-o", "objects", "--device", "cpu")


@arriving(
    (Predictor.from_checkpoint, {
        "paths": (Path("foreign.pth"),), "device": CPU, "scale": 0.3, "precision": "float32", "network": "own:network",
        "runtime": "openvino", "options": {
            "tile": 48, "overlap": 25.0, "tta": "d4", "threshold": None, "ground_resolution": None,
        },
    }),
    last=Predictor.from_checkpoint,
)  # fmt: skip
def test_predict_loads_networks_as_it_is_told(folder: Path) -> None:
    run(
        "predict", "imgs/ax_0.png", "-m", "foreign.pth", "--scale", "0.3", "--tta", "d4", "--tile", "48", "--network",
        "own:network", "--runtime", "openvino", "--precision", "float32", "--device", "cpu",
    )  # fmt: skip


@arriving(
    (open_models, [
        {"network": "own:network", "how": {"scale": None, "runtime": None, "bfloat16": True, "fold": False}},
        {"network": None, "how": {"scale": 0.3, "runtime": None, "bfloat16": True, "fold": True}},
    ]),
    (read_model, [{"scale": None}, {"scale": 0.3}]),
    (TorchBackend, [
        {"device": CPU, "fold": False, "dtype": torch.bfloat16}, {"device": CPU, "fold": True, "dtype": torch.float32},
    ]),
    (Predictor, [
        {"device": CPU, "tile": 48, "overlap": 12.5, "tta": "flips", "threshold": 0.3, "ground_resolution": None},
        {"device": CPU, "tile": None, "overlap": 25.0, "tta": "none", "threshold": None, "ground_resolution": 2.0},
    ]),
)  # fmt: skip
def test_a_predictor_is_made_with_all_its_options(folder: Path) -> None:
    how: dict[str, Any] = {"tile": 48, "overlap": 12.5, "tta": "flips", "threshold": 0.3}
    with fast():
        Predictor.from_checkpoint("own.pt", device="cpu", fold=False, network="own:network", **how)
        Predictor.from_checkpoint("foreign.pth", device="cpu", scale=0.3, ground_resolution=2.0)


@arriving(
    (Predictor.from_checkpoint, {
        "paths": (Path("own.pt"),), "device": CPU, "precision": "auto", "network": "own:network", "options": {
            "tile": 48, "overlap": 12.5, "tta": "mirror", "threshold": 0.3, "ground_resolution": 2.0,
        },
    }),
    (one_core_each, {"threads": 2}),
    (PredictionQueue, {"predictor.concurrency": 2, "config.batch_size": 3}),
    (uvicorn.Config, {"lifespan": "off", "ws": "none", "server_header": False}),
    last=PredictionQueue,
)  # fmt: skip
def test_serve_hands_on_its_settings(folder: Path) -> None:
    with fast():
        run(
            "serve", "own.pt", "--port", "0", "--network", "own:network", "--threshold", "0.3", "--tta", "mirror", "--tile",
            "48", "--overlap", "12.5", "--ground-resolution", "2", "--batch-size", "3", "--workers", "2", "--device", "cpu",
        )  # fmt: skip


@arriving(
    (open_outputs, {"config.overwrite": True, "config.batch_size": 3, "image_format.ground_resolution": 2.0}),
    (name_outputs, {"config.overwrite": True, "models": (), "ground_resolution": 2.0}),
    (predict_in_batches, {"batch_size": 3, "threads": 3}),
)  # fmt: skip
def test_images_that_clients_have_sent_are_predicted_as_told(folder: Path) -> None:
    """At most a batch of those that wait."""
    config = ServeConfig(batch_size=3, ground_resolution=2.0, threshold=0.3)
    predictor = Predictor.from_checkpoint("own.pt", device="cpu", ground_resolution=2.0)
    pool: Any = SimpleNamespace(submit=lambda work: None)
    queue = PredictionQueue(predictor, folder, pool, config)
    sent = [Path(shutil.copy("imgs/bx_0.png", f"sent_{k}.png")) for k in range(4)]
    answers = [queue.predict(path, is_json=False) for path in sent]
    queue.predict_some()
    assert [answer.done() for answer in answers] == [True, True, True, False]


@arriving(
    (Predictor.from_checkpoint, {"paths": (Path("own.pt"), Path("other.pt")), "network": "own:network"}),
    last=Predictor.from_checkpoint,
)  # fmt: skip
def test_a_page_to_try_a_network_shows_that_network(folder: Path) -> None:
    """In the page of `demo`."""
    gradio = {"gradio": SimpleNamespace(__spec__=SimpleNamespace())}
    with mock.patch.dict(sys.modules, gradio):
        run("demo", "own.pt", "other.pt", "--network", "own:network")


@arriving(
    (read_model, {"path": Path("foreign.pth"), "scale": 0.3}),
    (build_model, {"source": Path("foreign.pth"), "device": CPU, "fold": False, "network": "own:network"}),
    (prepare_package, {
        "licence": "mit", "authors": ("A", "B"), "cite": "10.1234/x", "sample": "imgs/ax_0.png",
    }),
    (find_scored, {"images": "imgs", "masks": "masks", "source": Path("foreign.pth")}),
    last=find_scored,
)  # fmt: skip
def test_export_hands_on_its_settings(folder: Path) -> None:
    run(
        "export", "foreign.pth", "x.zip", "--bioimageio", "--license", "mit", "--authors", "A", "B", "--cite", "10.1234/x",
        "--sample", "imgs/ax_0.png", "--images", "imgs", "--masks", "masks", "--network", "own:network", "-s", "0.3",
    )  # fmt: skip


@arriving(
    (build_model, {"source": Path("own.pt"), "device": CPU, "fold": True, "network": "own:network"}),
    last=find_scored,
)  # fmt: skip
def test_a_network_is_folded_before_it_is_quantised(folder: Path) -> None:
    run(
        "export",
        "own.pt",
        "x.onnx",
        "--precision",
        "int8",
        "--runtime",
        "onnxruntime",
        "--network",
        "own:network",
    )


@arriving(
    (build_model, {"source": Path("foreign.pth"), "device": CPU, "fold": False, "network": "own:network"}),
    (write_card, {"folder": Path("card"), "licence": "mit", "overwrite": True}),
    last=write_card,
)  # fmt: skip
def test_a_card_is_of_the_network_as_it_was_typed(folder: Path) -> None:
    own = [
        "--card", "card", "--license", "mit", "--overwrite", "--network", "own:network", "-s",
        "0.3",
    ]  # fmt: skip
    run("export", "foreign.pth", *own)


@arriving(
    (prepare_data, {"seed": 6, "labels.ignore": 9, "skip_bad": 0, "moved": ()}),
    (write_report, {
        "folder": Path("run"), "world.device": CPU, "notes": [], "workers": None, "network": "own:network", "rare": RARE,
    }),
    last=write_report,
)  # fmt: skip
def test_a_report_is_of_the_run_s_validation_images(folder: Path) -> None:
    Path("run").mkdir()
    shutil.copy("own.pt", "run/best.pt")
    with replacing(find_rare, lambda table, split: RARE):
        run("report", "run", "--network", "own:network", "--device", "cpu")


@arriving(
    (write_report, {
        "notes": ["no scores and images: gone/best.pt: the data of its run can't be read (x: not found); start in the folder where it was trained, or score others with python -m unet_ddp evaluate --model gone --images DIR --masks DIR"],
        "rare": [], "network": None,
    }),
    last=write_report,
)  # fmt: skip
def test_a_report_without_images_says_why(folder: Path) -> None:
    """A run whose images are gone."""
    write_model(folder / "gone" / "best.pt", Labels((0, 255)), config={"images": "x", "masks": "y"})
    run("report", "gone")
