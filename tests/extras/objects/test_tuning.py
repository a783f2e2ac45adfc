"""Objects from training to scores: the separation that suits validation, and what it is worth."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from benchmarks.objects import draw_ellipses
from tests.conftest import data_flags
from tests.evaluation.examples import CPU, Grey, grey_predictor
from tests.ranks import call_main, call_train
from tests.tiny import make_data
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.checkpoints.weights import read_model
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.data.readers.read import read_mask
from unet_ddp.data.splits import Split
from unet_ddp.distributed.world import World
from unet_ddp.evaluation.dataset import EvaluationDataset, fetch
from unet_ddp.evaluation.scoring import score_pairs
from unet_ddp.evaluation.validation_split import rebuild
from unet_ddp.extras.objects.borders import CLASS_NAMES
from unet_ddp.extras.objects.labels import EXTENTS, SEEDS, ObjectLabels
from unet_ddp.extras.objects.scores import ObjectCounts
from unet_ddp.extras.objects.tuning import SeparationTuner, choose_separation
from unet_ddp.heads import find_head
from unet_ddp.network.precision import Precision
from unet_ddp.prediction.predictor import Predictor

OBJECTS = ObjectLabels((0, 1, 2), names=CLASS_NAMES, separation=(0.5, 0.5))
FLAGS = ["--instances", "--width", "2", "--batch-size", "2", "--workers", "0", "--validation", "34"]


def write_pair(folder: Path, name: str, image: np.ndarray, numbers: np.ndarray) -> Pair:
    paths = folder / f"{name}.png", folder / f"{name}_mask.png"
    for path, array in zip(paths, (image.astype(np.uint8), numbers.astype(np.uint16)), strict=True):
        Image.fromarray(array).save(path)
    return Pair(name, *paths)


def two_squares(folder: Path, between: int) -> Pair:
    """Two white squares that touch; their border has the grey `between`, 128 for the surest."""
    numbers, image = np.zeros((20, 30)), np.zeros((20, 30))
    numbers[3:17, 3:15], numbers[3:17, 15:27] = 4, 900
    image[numbers > 0] = 255
    image[3:17, 14:16] = between
    return write_pair(folder, f"grey{between}", image, numbers)


def test_the_search_finds_what_separates_the_validation_images(tmp_path: Path) -> None:
    """The body's probability at the border is 0.27, 0.51, 0.61; in the middle of a square 0.72."""
    predictor = grey_predictor(OBJECTS)
    for between, seed in ((128, 0.5), (200, 0.6), (225, 0.7)):
        dataset = EvaluationDataset(
            Pairs([two_squares(tmp_path, between)]), predictor, full_size=True
        )
        world = World(device=CPU)
        found, precision = choose_separation(predictor, fetch(dataset, world, workers=0), world)
        assert found == replace(OBJECTS, separation=(seed, 0.5)) and precision > 0.9


def test_scores_count_objects_and_leave_ignored_pixels_out(tmp_path: Path) -> None:
    labels = ObjectLabels((0, 1, 2), names=CLASS_NAMES, separation=(0.5, 0.5), ignore=7)
    image, numbers = np.zeros((20, 30)), np.zeros((20, 30))
    image[2:8, 2:28], numbers[2:8, 2:15], numbers[2:8, 15:28] = 255, 1, 2  # merged
    image[12:18, 2:12], numbers[12:18, 2:12] = 255, 3
    image[12:18, 15:25], numbers[12:18, 14:26] = 255, 7
    pair = write_pair(tmp_path, "a", image, numbers)
    predictor = grey_predictor(labels)
    dataset = EvaluationDataset(Pairs([pair]), predictor, full_size=True)
    evaluation = score_pairs(predictor, dataset, World(device=CPU), threshold=None, workers=0)
    counts = evaluation.tally
    assert isinstance(counts, ObjectCounts)
    assert (counts.truth, counts.predicted, counts.merged, counts.split) == (3, 2, 1, 0)
    assert counts.precisions[0] == 1 / 4 == evaluation.worst(1)[0].score


def test_masks_at_the_networks_scale_have_their_numbers_scaled(tmp_path: Path) -> None:
    pair = two_squares(tmp_path, 128)
    for full_size, shape in ((True, (1, 20, 30)), (False, (1, 10, 15))):
        sample = EvaluationDataset(
            Pairs([pair]), grey_predictor(OBJECTS, scale=0.5), full_size=full_size
        ).read(0)
        assert sample.mask.shape == sample.truth.shape == shape
        assert sample.mask.unique().tolist() == [0, 4, 900]
    classes = EvaluationDataset(Pairs([pair]), grey_predictor(Labels((0, 4, 900))), full_size=True)
    sample = classes.read(0)
    assert sample.mask.data_ptr() == sample.truth.data_ptr()  # not a copy


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nine images of ellipses, and a run that stopped and resumed."""
    folder = tmp_path_factory.mktemp("objects")
    draw_ellipses(folder, count=9, side=48)
    argv = [*data_flags(folder), *FLAGS, "--epochs", "2"]
    for more in (["--stop-after", "4"], ["--resume"]):
        status, out, err = call_main("train", [*argv, *more], str(folder))
        assert status == 0, err
    assert "classes: background, object, border, from the numbers of the objects" in out
    assert "objects: seeded from probability" in out and "report.html" in out
    return folder


def test_a_best_network_is_written_with_the_separation_that_suits_it(tmp_path: Path) -> None:
    """Also if the run is stopped before its end."""
    draw_ellipses(tmp_path, count=9, side=48)
    argv = [*data_flags(tmp_path), *FLAGS, "--epochs", "9", "--stop-after", "4epochs"]
    argv += ["--lr", "0.03"]
    assert call_train(argv, str(tmp_path))[0] == 0
    best, world = tmp_path / "checkpoints" / "best.pt", World(device=CPU)
    predictor, model = Predictor.from_checkpoint(best, device=CPU, fold=False), read_model(best)
    assert model.labels is not None
    pairs = rebuild(model.run, best, model.labels).split.validation
    dataset = EvaluationDataset(pairs, predictor, full_size=False)
    found, precision = choose_separation(predictor, fetch(dataset, world, workers=0), world)
    assert found == model.labels == predictor.labels and precision > 0


def new_tuner(pairs: Pairs) -> tuple[SeparationTuner, Any]:
    """A tuner on these pairs, and the state of a run whose network sees grey values."""
    data = make_data(labels=OBJECTS, split=Split(pairs, pairs, "by name"))
    tuner = SeparationTuner(data, World(device=CPU), resize_masks=False)
    state: Any = SimpleNamespace(
        validation_network=Grey(3),
        preprocess=Preprocessing(1, (0.5,), (0.5,), 1.0),
        precision=Precision(CPU, "float32"),
    )
    return tuner, state


@pytest.mark.thorough
@pytest.mark.release
def test_of_large_images_the_middle_is_tuned_and_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two million pixels in all: eight of ten images; what is at their edges says another pair."""
    image, numbers = np.zeros((700, 600)), np.zeros((700, 600))
    for top, left, between in ((350, 300, 200), *((20, 20 + 40 * n, 128) for n in range(12))):
        numbers[top : top + 14, left : left + 12] = numbers.max() + 1
        numbers[top : top + 14, left + 12 : left + 24] = numbers.max() + 1
        image[top : top + 14, left : left + 24] = 255
        image[top : top + 14, left + 11 : left + 13] = between
    pairs = Pairs(write_pair(tmp_path, f"{n}", image, numbers) for n in range(10))
    read: list[int] = []
    real = EvaluationDataset.read
    monkeypatch.setattr(
        EvaluationDataset, "read", lambda self, index: read.append(index) or real(self, index)
    )
    tuner, state = new_tuner(pairs)
    for _ in range(2):
        found, *score = tuner.tune(state, ANY, watch=lambda samples: samples)
        assert found == replace(OBJECTS, separation=(0.6, 0.5))
        assert score == [1.0, "mean AP"]
        assert read == [0, 0, 1, 3, 4, 5, 6, 8, 9]


@pytest.mark.parametrize("is_high", [False, True], ids=["wide", "high"])
def test_of_a_long_image_the_middle_is_tuned(tmp_path: Path, is_high: bool) -> None:
    """Two touching squares in the middle; the many at the ends want another pair."""
    image, numbers = np.zeros((100, 1800)), np.zeros((100, 1800))
    for left, between in ((900, 200), *((20 + 40 * n, 128) for n in range(12))):
        numbers[40:54, left : left + 12] = numbers.max() + 1
        numbers[40:54, left + 12 : left + 24] = numbers.max() + 1
        image[40:54, left : left + 24] = 255
        image[40:54, left + 11 : left + 13] = between
    if is_high:
        image, numbers = image.T, numbers.T
    pairs = Pairs([write_pair(tmp_path, "long", image, numbers)])
    tuner, state = new_tuner(pairs)
    found, *score = tuner.tune(state, ANY, watch=lambda samples: samples)
    assert found == replace(OBJECTS, separation=(0.6, 0.5))
    assert score == [1.0, "mean AP"]


def test_only_objects_have_something_to_choose(tmp_path: Path) -> None:
    data = make_data(split=Split([], [two_squares(tmp_path, 128)], "by name"))
    for labels, is_chosen in ((OBJECTS, True), (Labels((0, 255)), False)):
        tuner = find_head(labels).tuner(data, World(device=CPU), resize_masks=False)
        assert (tuner is not None) == is_chosen


def test_a_resumed_run_of_objects_ends_as_the_undisturbed_one(run: Path, tmp_path: Path) -> None:
    argv = [*data_flags(run), *FLAGS, "--epochs", "2"]
    assert call_train(argv, str(tmp_path))[0] == 0
    for name in ("last.pt", "best.pt"):
        one, other = (checkpoint.load(f / "checkpoints" / name) for f in (run, tmp_path))
        assert one["labels"] == other["labels"]
        assert all(torch.equal(one["model"][key], other["model"][key]) for key in one["model"])
    assert one["labels"]["separation"][0] in SEEDS and one["labels"]["separation"][1] in EXTENTS


def test_predict_without_flags_writes_numbers_and_lists(run: Path, tmp_path: Path) -> None:
    argv = [str(run / "imgs"), "--output", str(tmp_path / "out"), "--overlay"]
    argv += ["--objects", str(tmp_path / "o.csv"), "--polygons", str(tmp_path / "p.json")]
    status, out, err = call_main("predict", argv, str(run))
    assert status == 0, err
    rows = list(csv.DictReader((tmp_path / "o.csv").read_text().splitlines()))
    features = json.loads((tmp_path / "p.json").read_text())["features"]
    assert len(features) == len(rows)
    for index in range(9):
        numbers = np.asarray(Image.open(tmp_path / "out" / f"{index:03}_mask.png"))
        areas = [int(row["area"]) for row in rows if row["image"] == f"{index:03}.png"]
        assert numbers.dtype == np.uint16 and numbers.shape == (48, 48)
        assert areas == np.bincount(numbers.ravel())[1:].tolist()
        assert f"{index:03}_overlay.png: {len(areas)} objects" in out
    again = call_main("predict", [*argv, "--skip-existing", "--overwrite"], str(run))
    assert again[0] == 2 and "use one of them" in again[2]


def test_evaluate_adds_the_scores_of_objects(run: Path, tmp_path: Path) -> None:
    argv = ["evaluate", "--output", str(tmp_path), "--workers", "0"]
    status, out, err = call_main("unet_ddp.__main__", argv, str(run))
    assert status == 0, err
    assert "objects: AP 0." in out and "merged" in out
    found = json.loads((tmp_path / "scores.json").read_text())["objects"]
    assert found["true_objects"] > 10
    assert list(found)[:10] == [f"ap_0.{n}" for n in range(50, 100, 5)]
    with (tmp_path / "per_image.csv").open() as file:
        images = list(csv.DictReader(file))
    assert sum(int(image["true_objects"]) for image in images) == found["true_objects"]
    page = (tmp_path / "report.html").read_text()
    assert "by their own AP at IoU 0.5" in page and "false negative" in page


def test_without_the_extra_each_program_says_how_to_install_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "skimage", None)
    argv = [*data_flags(run), *FLAGS, "--exp-name", "other"]
    for module, words in (
        ("train", argv),
        ("predict", [str(run / "imgs"), "--output", str(tmp_path)]),
        ("unet_ddp.__main__", ["evaluate", "--output", str(tmp_path)]),
    ):
        status, _, err = call_main(module, words, str(run))
        assert status == 2 and err.count("\n") == 1
        assert "needs skimage, which is not installed; python -m pip install" in err


def draw_shapes(folder: Path, *, count: int, side: int) -> None:
    """Write images of discs and squares in clumps, and numbered masks in a folder for each class."""
    for index in range(count):
        rng = np.random.default_rng([7, index])
        masks = {name: np.zeros((side, side), np.uint8) for name in ("disc", "square")}
        shades, taken = rng.normal(40, 10, (side, side)), np.zeros((side, side), bool)
        placed = [rng.uniform(0, side, 2)]
        for number in range(1, side * side // 150):
            angle = rng.uniform(0, 2 * np.pi)
            x, y = placed[rng.integers(len(placed))] + 12 * np.array([np.cos(angle), np.sin(angle)])
            name = ("disc", "square")[number % 2]
            shape = Image.new("1", (side, side))
            draw = ImageDraw.Draw(shape)
            {"disc": draw.ellipse, "square": draw.rectangle}[name](
                (x - 6, y - 6, x + 6, y + 6), fill=1
            )
            inside = np.asarray(shape)
            if (inside & ~taken).sum() < 0.8 * max(50, inside.sum()):
                continue
            placed.append(np.array([x, y]))
            masks[name][inside & ~taken] = number
            shades[inside & ~taken] += 100
            taken |= inside
        for name, array in {"imgs": shades.clip(0, 255).astype(np.uint8), **masks}.items():
            (folder / name).mkdir(exist_ok=True)
            Image.fromarray(array).save(folder / name / f"{index:02}.png")


@pytest.mark.thorough
@pytest.mark.release
def test_touching_objects_of_two_classes_have_their_class(tmp_path: Path) -> None:
    """From folders of masks to a training, to masks whose values have the classes."""
    draw_shapes(tmp_path, count=24, side=64)
    here = str(tmp_path)
    argv = ["import", here, "--images", f"{here}/imgs", "-o", f"{here}/masks", "--instances"]
    status, out, err = call_main("unet_ddp.__main__", argv, here)
    assert status == 0, err
    assert "--instances --class-names disc square" in out
    argv = ["--list", f"{here}/masks/pairs.csv", *FLAGS, "--class-names", "disc", "square"]
    argv += ["--width", "8", "--epochs", "10", "--lr", "3e-3", "--channels", "1"]
    assert call_train(argv, here)[0] == 0
    assert call_main("predict", [f"{here}/imgs", "--output", f"{here}/found"], here)[0] == 0
    with (tmp_path / "checkpoints/split.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "validation"]
    right = []
    for name in (Path(row["image"]).stem for row in rows):
        truth = read_mask(tmp_path / "masks" / f"{name}.tif") // 1_000_000
        found = read_mask(tmp_path / "found" / f"{name}_mask.tif")
        for value in np.unique(found)[1:]:
            classes = np.bincount(truth[found == value], minlength=3)
            right.append(classes.argmax() == value // 1_000_000)
    assert len(right) > 50 and np.mean(right) > 0.8  # of 79 objects
    status, out, err = call_main("unet_ddp.__main__", ["evaluate", "--workers", "0"], here)
    assert status == 0, err
    assert "  disc: AP 0." in out and "  square: AP 0." in out
    scores = json.loads((tmp_path / "checkpoints/evaluation/scores.json").read_text())
    for key in ("true_objects", "predicted_objects", "split_objects", "merged_objects"):
        by_class = [each[key] for each in scores["objects_by_class"].values()]
        assert sum(by_class) == scores["objects"][key]
