"""The order in which to label images, and the masks of the sure ones."""

from __future__ import annotations

import csv
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unet_ddp.cli import parse_train
from unet_ddp.data.checks.check import prepare_data
from unet_ddp.data.formats.read import read_mask
from unet_ddp.data.labels import IGNORE_ID, Labels, object_labels
from unet_ddp.data.pairs import Pair
from unet_ddp.data.splits import Split, write_split
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.lists import Listed, ShardFile
from unet_ddp.prediction.outputs.names import name_outputs
from unet_ddp.prediction.outputs.uncertainty import (
    format_pair,
    measure_uncertainty,
    pairs_file,
    rank_file,
    write_sure,
)
from unet_ddp.prediction.prediction import Prediction


def predict(logits: list[list[float]], *, classes: int = 2) -> Prediction:
    """Return the prediction, in bands of 6 rows, of the difference of two logits (H, W)."""
    scores = np.array([logits] if classes == 2 else logits, np.float32)
    size = (scores.shape[1], scores.shape[2])
    bands = [(top, scores[:, top : top + 6]) for top in range(0, size[0], 6)]
    return Prediction(bands, Labels(tuple(range(classes))), input_size=size, size=size)


def entropy(p: float) -> float:
    return float(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)))


def test_uncertainty_is_the_entropy_at_the_outline() -> None:
    """The four columns beside the step count; the unsure corner of the background does not."""
    rows = [[0.0, *[-9.0] * 5, -1.0, 1.0, *[9.0] * 4]] * 3
    beside = entropy(1 / (1 + np.e))
    for turned in (rows, np.transpose(rows).tolist()):
        assert measure_uncertainty(predict(turned)) == pytest.approx(beside, abs=1e-5)
    assert measure_uncertainty(predict([[-1.0] * 5] * 4)) == pytest.approx(beside, abs=1e-5)
    assert measure_uncertainty(predict([[-90.0] * 5] * 4)) == 0


def test_of_several_classes_a_uniform_guess_is_1() -> None:
    assert measure_uncertainty(predict(np.zeros((3, 4, 5)).tolist(), classes=3)) == pytest.approx(1)


def test_the_least_sure_come_first_and_copies_last(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """By two processes; a copy stands behind the image that it is like, however unsure it is."""
    photos = {name: rng.integers(0, 256, (40, 40, 3), np.uint8) for name in "abcd"}
    photos["c"] = np.clip(photos["a"] * 0.9 + 5, 0, 255).astype(np.uint8)  # of another exposure
    strength = {"a": 0.5, "b": 2.0, "c": 0.6, "d": 0.1}
    file = rank_file(tmp_path / "rank.csv")
    shards = [ShardFile(file, rank) for rank in range(2)]
    for index, (name, pixels) in enumerate(photos.items()):
        image = tmp_path / f"{name}_\udcff.png"  # no UTF-8
        Image.fromarray(pixels).save(image)
        found = predict([[-strength[name]] * 3] * 3)
        listed = Listed(image, found.mask, uncertainty=measure_uncertainty(found))
        shards[index % 2].add(index, listed)
    shards[0].add(len(photos), Listed(Path("done.png"), found.mask))  # by an earlier job
    file.merge(2)
    for shard in shards:
        shard.close()
    with file.path.open(newline="", errors="surrogateescape") as text:
        rows = list(csv.DictReader(text))
    assert [Path(row["image"]).stem[0] for row in rows] == ["d", "a", "b", "c"]
    assert [row["nearly_equal_to"] for row in rows] == ["", "", "", str(tmp_path / "a_\udcff.png")]
    assert float(rows[2]["uncertainty"]) == pytest.approx(entropy(1 / (1 + np.exp(2))), abs=1e-4)


def judge(prediction: Prediction, image: Path) -> tuple[list[str], Any]:
    """Return the row of an image and its mask, or nothing."""
    mask = image.with_suffix(".tif")
    row = format_pair(listed(prediction, image, mask))
    return next(csv.reader([row]), []), read_mask(mask) if mask.exists() else None


def listed(prediction: Prediction, image: Path, mask: Path | None) -> Listed:
    sure = mask and write_sure(prediction, mask)
    return Listed(image, prediction.mask, prediction=prediction, sure=sure)


@pytest.mark.parametrize("threshold", [None, 0.999])
def test_unsure_pixels_are_ignored(tmp_path: Path, threshold: float | None) -> None:
    """A pixel has the class of probability 0.95 or more, whatever the threshold, or is ignored."""
    logits = np.full((10, 10), -9.0)
    logits[:4] = 9.0
    limit = float(np.log(0.95 / 0.05))
    logits[0, :4] = limit - 0.01, limit + 0.01, 0.01 - limit, -0.01 - limit
    prediction = predict(logits.tolist())
    prediction.threshold = threshold
    prediction.labels = Labels((0, 255))
    row, codes = judge(prediction, tmp_path / "a b.png")
    assert row == [str(tmp_path / "a b.png"), str(tmp_path / "a b.tif"), "", "training"]
    wanted = np.where(logits > 0, 255, 0)
    wanted[0, [0, 2]] = 254
    assert np.array_equal(codes, wanted)
    ids = replace(prediction.labels, ignore=254).to_ids(codes, tmp_path)
    assert np.array_equal(ids == IGNORE_ID, wanted == 254)


@pytest.mark.parametrize(("unsure", "is_sure"), [(10, True), (11, False)])
def test_of_a_sure_image_nine_pixels_in_ten_are(tmp_path: Path, unsure: int, is_sure: bool) -> None:
    logits = np.full(100, 9.0)
    logits[:unsure] = 0
    row, mask = judge(predict(logits.reshape(10, 10).tolist()), tmp_path / "a.png")
    assert bool(row) == (mask is not None) == is_sure


@pytest.mark.parametrize("rows", [0, 3, 10])
def test_pixels_without_data_are_unsure(tmp_path: Path, rows: int) -> None:
    """They do not count as pixels of the image either; without any others there is no mask."""
    prediction = predict([[9.0] * 10] * 10)
    prediction.labels = Labels((0, 7))
    prediction.ids[:rows] = IGNORE_ID  # as `mark_nodata` does
    prediction.nodata = 10 * rows
    row, codes = judge(prediction, tmp_path / "a.png")
    if rows == 10:
        assert not row and codes is None
    else:
        assert row and np.unique(codes[rows:]).tolist() == [7]
        assert np.unique(codes[:rows]).tolist() == [255] * (rows > 0)


def test_a_labelled_image_gets_no_other_mask(tmp_path: Path) -> None:
    """Nor a row, as it has one already."""
    name = "a\udcff.png"  # no UTF-8
    split = Split([Pair("a", Path(name), Path("m.png"))], [], "")
    write_split(split, {}, tmp_path / "split.csv")
    config = PredictConfig((name, "b.png"), pseudo=str(tmp_path / "p"), output=str(tmp_path))
    images, models = {Path(name): False, Path("b.png"): False}, [tmp_path / "best.pt"]
    a, b = name_outputs(images, config, Labels((0, 255)), models=models)
    assert (a.pseudo, b.pseudo) == (None, tmp_path / "p" / "b.tif")
    assert format_pair(listed(predict([[9.0] * 5] * 4), a.image, a.pseudo)) == ""
    models = [tmp_path / "other" / "best.pt"]
    a, b = name_outputs(images, config, Labels((0, 255)), models=models)
    assert a.pseudo == tmp_path / "p" / "a\udcff.tif"


def test_a_sure_border_without_an_object_is_no_background(tmp_path: Path) -> None:
    """Its pixels have no number, as nothing seeds them: they are ignored."""
    pytest.importorskip("skimage")
    scores = np.full((3, 10, 30), -9.0)
    scores[0] = 9
    scores[:, 4, 5:9] = [[-9.0], [-9.0], [9.0]]
    prediction = predict(scores.tolist(), classes=3)
    prediction.labels = replace(object_labels(("object",)), separation=(0.5, 0.4))
    _, codes = judge(prediction, tmp_path / "a.png")
    assert not prediction.numbers.any()
    assert np.argwhere(codes).tolist() == [[4, column] for column in range(5, 9)]
    assert {*codes[4, 5:9].tolist()} == {-1}


def test_a_pixel_that_is_surely_of_another_class_than_its_object_is_unsure(tmp_path: Path) -> None:
    pytest.importorskip("skimage")
    scores = np.full((4, 10, 30), -9.0)
    scores[0] = 9
    scores[:, 2:8, 2:20] = [[[-9.0]], [[9.0]], [[-9.0]], [[-9.0]]]
    scores[1:3, 2:8, 17:20] = [[[-9.0]], [[9.0]]]  # a tree's pixels in a car
    scores[1:, 4, 2] = -9, -9, 9  # and one of its border
    prediction = predict(scores.tolist(), classes=4)
    prediction.labels = replace(object_labels(("car", "tree")), separation=(0.5, 0.4))
    _, codes = judge(prediction, tmp_path / "a.png")
    assert set(np.unique(prediction.numbers)) == {0, 1_000_001}
    assert (codes[2:8, 17:20] == -1).all() and (codes[2:8, 2:17] == 1_000_001).all()
    assert (codes == -1).sum() == 18


@pytest.mark.parametrize(
    ("names", "ignore", "value"),
    [(("object",), None, -1), (("object",), 77, 77), (("car", "tree"), None, -1)],
)
def test_unsure_pixels_of_objects(
    tmp_path: Path, names: tuple[str, ...], ignore: int | None, value: int
) -> None:
    """Numbers stay, with their class if there are several, and none is the value of unsure pixels."""
    pytest.importorskip("skimage")
    scores = np.full((len(names) + 2, 12, 30), -9.0)
    scores[0] = 9
    for left in (2, 17):
        scores[:2, 2:9, left : left + 10] = [[[-9.0]], [[9.0]]]
    scores[:3, 4, 5] = 0, 0.5, 0
    prediction = predict(scores.tolist(), classes=len(scores))
    prediction.labels = replace(object_labels(names, ignore), separation=(0.5, 0.4))
    _, codes = judge(prediction, tmp_path / "a.png")
    wanted = prediction.numbers.copy()
    first = 1_000_000 * (len(names) > 1)
    assert set(np.unique(wanted)) == {0, first + 1, first + 2}
    wanted[4, 5] = value
    assert np.array_equal(codes, wanted)
    ids = replace(prediction.labels, ignore=value).to_ids(codes, tmp_path)
    assert np.argwhere(ids == IGNORE_ID).tolist() == [[4, 5]]


def test_train_takes_the_list_and_ignores_what_is_unsure(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """With the settings and the pairs of the model's run, from the command that is printed."""
    pairs = []
    for name in ("hand/a", "hand/b", "new/c", "new/d", "new/e"):
        image, mask = tmp_path / "imgs" / f"{name}.png", tmp_path / "masks" / f"{name}.png"
        for path in (image, mask):
            path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), np.uint8)).save(image)
        if "hand" in name:
            Image.fromarray(np.eye(20, dtype=np.uint8) * 255).save(mask)
            pairs.append(Pair(name, image, mask))
    (tmp_path / "my run").mkdir()
    write_split(Split(pairs[:1], pairs[1:], ""), {}, tmp_path / "my run" / "split.csv")
    (tmp_path / "my run" / "config.yaml").write_text("images: imgs\nmasks: masks\nepochs: 7\n")
    logits = np.full((20, 20), -9.0)
    logits[3:7] = 9
    logits[7] = 0
    sure, labels = predict(logits.tolist()), Labels((0, 255))
    sure.labels = labels
    unsure = predict(np.zeros((20, 20)).tolist())
    found = pairs_file(tmp_path / "pseudo" / "pairs.csv", tmp_path / "my run", labels)
    shards = [ShardFile(found, rank) for rank in range(2)]
    (tmp_path / "pseudo").mkdir(exist_ok=True)
    for index, (name, prediction) in enumerate((("c", sure), ("d", unsure), ("e", sure))):
        image, mask = tmp_path / "imgs" / "new" / f"{name}.png", tmp_path / "pseudo" / f"{name}.tif"
        shards[index % 2].add(index, listed(prediction, image, mask))
    shards[1].add(3, listed(sure, pairs[0].image, None))  # labelled by hand
    found.merge(2)
    said, command = found.describe(3, 2).split(": python ")
    for shard in shards:
        shard.close()
    assert said.startswith(f"{found.path}: 2 of 3 images are sure")
    config = parse_train(shlex.split(command)[1:])
    assert (config.optimization.epochs, config.run.exp_name) == (7, "pseudo")
    data = prepare_data(config.data, seed=0)
    assert [pair.image.stem for pair in data.split.validation] == ["b"]
    assert [pair.image.stem for pair in data.split.training] == ["a", "c", "e"]
    assert data.labels.values == (0, 255)
    for pair in data.split.training[1:]:
        ids = data.labels.to_ids(read_mask(pair.mask), pair.mask)
        assert np.array_equal(ids == IGNORE_ID, logits == 0)
        assert np.array_equal(ids == 1, logits == 9)


def test_without_the_run_the_list_has_the_sure_images_alone(tmp_path: Path) -> None:
    prediction = predict([[9.0] * 5] * 3 + [[0.0, *[9.0] * 4]])
    prediction.labels = Labels((0xFFFFFF, 7), rgb=True)
    found = pairs_file(tmp_path / "pairs.csv", tmp_path, prediction.labels)
    shard = ShardFile(found, 0)
    shard.add(0, listed(prediction, tmp_path / "a.png", tmp_path / "a.tif"))
    found.merge(1)
    command = found.describe(1, 1).split(": python ")[1]
    shard.close()
    row = f"{tmp_path}/a.png,{tmp_path}/a.tif,,training"
    assert found.path.read_text() == f"image,mask,group,split\n{row}\n"
    assert read_mask(tmp_path / "a.tif")[3].tolist() == [0xFFFFFE, *[7] * 4]
    config = parse_train(shlex.split(command)[1:])
    assert (config.data.pairs_file, config.data.ignore_index) == (str(found.path), 0xFFFFFE)
