"""The order in which to label images."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.prediction.outputs.writing import image_files, make
from unet_ddp.data.labels import Labels
from unet_ddp.distributed.world import World
from unet_ddp.extras.rank.output import Rank
from unet_ddp.prediction.outputs.base import ImageFiles
from unet_ddp.prediction.outputs.records import Records
from unet_ddp.prediction.prediction import Prediction


def predict(logits: list[list[float]], *, classes: int = 2) -> Prediction:
    """Return the prediction, in bands of 6 rows, of the difference of two logits (H, W)."""
    scores = np.array([logits] if classes == 2 else logits, np.float32)
    size = (scores.shape[1], scores.shape[2])
    bands = [(top, scores[:, top : top + 6]) for top in range(0, size[0], 6)]
    return Prediction(bands, Labels(tuple(range(classes))), input_size=size, size=size)


def watch(rank: Rank, prediction: Prediction, image: Path, index: int = 0) -> ImageFiles:
    files = image_files(image, index=index)
    with rank.watch(files, prediction) as see:
        prediction.compute([see])
    return files


@pytest.fixture
def measure(tmp_path: Path) -> Callable[[Prediction], float]:
    """Return what measures the uncertainty of a prediction."""
    Image.new("RGB", (9, 9)).save(tmp_path / "any.png")

    def measured(prediction: Prediction) -> float:
        rank = make(Rank, prediction.labels, rank="r.csv")
        files = watch(rank, prediction, tmp_path / "any.png")
        return float(json.loads(rank.record(files, prediction))[0])

    return measured


def entropy(p: float) -> float:
    return float(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)))


def test_uncertainty_is_the_entropy_at_the_outline(
    measure: Callable[[Prediction], float],
) -> None:
    """The four columns beside the step count; the unsure corner of the background does not."""
    rows = [[0.0, *[-9.0] * 5, -1.0, 1.0, *[9.0] * 4]] * 3
    beside = entropy(1 / (1 + np.e))
    for turned in (rows, np.transpose(rows).tolist()):
        assert measure(predict(turned)) == pytest.approx(beside, abs=1e-5)
    assert measure(predict([[-1.0] * 5] * 4)) == pytest.approx(beside, abs=1e-5)
    assert measure(predict([[-90.0] * 5] * 4)) == 0


def test_of_several_classes_a_uniform_guess_is_1(measure: Callable[[Prediction], float]) -> None:
    assert measure(predict(np.zeros((3, 4, 5)).tolist(), classes=3)) == pytest.approx(1)


def test_the_least_sure_come_first_and_copies_last(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """A copy stands behind the image that it is like, however unsure it is."""
    photos = {name: rng.integers(0, 256, (40, 40, 3), np.uint8) for name in "abcd"}
    photos["c"] = np.clip(photos["a"] * 0.9 + 5, 0, 255).astype(np.uint8)  # of another exposure
    strength = {"a": 0.5, "b": 2.0, "c": 0.6, "d": 0.1}
    rank = make(Rank, Labels((0, 1)), rank=str(tmp_path / "rank.csv"))
    with closing(Records(rank)) as records:
        for index, (name, pixels) in enumerate(photos.items()):
            image = tmp_path / f"{name}_\udcff.png"  # no UTF-8
            Image.fromarray(pixels).save(image)
            found = predict([[-strength[name]] * 3] * 3)
            records.add(watch(rank, found, image, index), found)
        records.merge(World())
    with (tmp_path / "rank.csv").open(newline="", errors="surrogateescape") as text:
        rows = list(csv.DictReader(text))
    assert [Path(row["image"]).stem[0] for row in rows] == ["d", "a", "b", "c"]
    assert [row["nearly_equal_to"] for row in rows] == ["", "", "", str(tmp_path / "a_\udcff.png")]
    assert float(rows[2]["uncertainty"]) == pytest.approx(entropy(1 / (1 + np.exp(2))), abs=1e-4)


def test_copies_with_pixels_without_data_are_found(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """The nan of an edge makes no images alike, nor hides a copy behind it."""
    arrays = [rng.uniform(1000, 1100, (40, 40)).astype(np.float32) for _ in "ab"]
    arrays += [arrays[0] * 2, np.zeros((40, 40), np.float32)]
    rank = make(Rank, Labels((0, 1)), rank=str(tmp_path / "rank.csv"))
    with closing(Records(rank)) as records:
        for index, pixels in enumerate(arrays):
            pixels[: (40 if index == 3 else 11)] = np.nan
            np.save(tmp_path / f"{index}.npy", pixels)
            found = predict([[float(index)] * 3] * 3)
            records.add(watch(rank, found, tmp_path / f"{index}.npy", index), found)
        records.merge(World())
    rows = list(csv.DictReader((tmp_path / "rank.csv").read_text().splitlines()))
    assert [Path(row["image"]).stem for row in rows] == ["0", "1", "3", "2"]
    assert [row["nearly_equal_to"] for row in rows] == ["", "", "", str(tmp_path / "0.npy")]
