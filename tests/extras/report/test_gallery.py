"""The pictures of the worst images."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.evaluation.examples import grey_predictor, write_pairs
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.distributed.world import World
from unet_ddp.evaluation.dataset import EvaluationDataset
from unet_ddp.evaluation.scoring import score_pairs
from unet_ddp.extras.report.gallery import Picture, difference, legend, make_gallery

ORANGE, BLUE, GREY, GREEN = (213, 94, 0), (0, 114, 178), (128, 128, 128), (0, 255, 150)


def decode(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))


def colours(uri: str) -> list[list[tuple[int, int, int] | None]]:
    """Colours of a layer's pixels; None where it is transparent."""
    pixels = np.asarray(decode(uri).convert("RGBA")).tolist()
    return [[tuple(p[:3]) if p[3] else None for p in row] for row in pixels]


def pictures_of(
    folder: Path,
    labels: Labels,
    *,
    threshold: float | None = None,
    **arrays: tuple[np.ndarray, np.ndarray],
) -> list[Picture]:
    predictor = grey_predictor(labels)
    dataset = EvaluationDataset(write_pairs(folder, **arrays), predictor, full_size=True)
    evaluation = score_pairs(predictor, dataset, World(), threshold=threshold, workers=0)
    return make_gallery(evaluation, predictor, dataset)


IMAGE = np.array([[0, 255, 0, 255, 255, 150]])
MASK = np.array([[0, 0, 255, 255, 9, 0]])


def test_layers_of_two_classes_show_foreground_and_mistakes(tmp_path: Path) -> None:
    labels = Labels((0, 255), ignore=9)
    (picture,) = pictures_of(tmp_path, labels, threshold=0.8, a=(IMAGE, MASK))
    assert list(picture.layers) == ["truth", "prediction", "difference"]
    truth, prediction, wrong = map(colours, picture.layers.values())
    assert truth == [[None, None, GREEN, GREEN, GREY, None]]
    assert prediction == [[None, GREEN, None, GREEN, GREY, None]]
    assert wrong == [[None, ORANGE, BLUE, None, GREY, None]]
    for uri in picture.layers.values():  # as opaque as the page says
        assert set(np.unique(np.asarray(decode(uri).convert("RGBA"))[..., 3])) == {0, 255}
    assert (picture.name, picture.width, picture.height, picture.score) == ("a", 6, 1, 0.5)
    assert picture.caption == "Dice 0.5000, IoU 0.3333, precision 0.5000, recall 0.5000"
    assert decode(picture.photo).format == "JPEG"
    assert legend(labels) == [
        ("255", GREEN), ("false positive", ORANGE), ("false negative", BLUE), ("ignored", GREY),
    ]  # fmt: skip


def test_layers_of_more_classes_show_each(tmp_path: Path) -> None:
    labels = Labels((0, 1, 2, 3)[:3], names=("sky", "<car>", "road"))
    image, mask = np.array([[0, 255, 128, 128]]), np.array([[0, 2, 2, 2]])
    (picture,) = pictures_of(tmp_path, labels, a=(image, mask))
    truth, prediction, wrong = map(colours, picture.layers.values())
    first, second, third = labels.colours
    assert truth == [[first, third, third, third]]
    assert prediction == [[first, second, third, third]]
    assert wrong == [[None, ORANGE, None, None]]
    assert picture.caption == (
        "mean Dice 0.6000; worst classes: <car> (0.000), road (0.800), sky (1.000)"
    )
    assert [name for name, _ in legend(labels)] == ["sky", "<car>", "road", "wrong class"]


def test_worst_images_are_shown_first_and_large_ones_reduced(tmp_path: Path) -> None:
    good = (np.full((2, 1281), 255), np.full((2, 1281), 255))
    bad = (np.zeros((2, 2)), np.full((2, 2), 255))
    some = {f"n{k:02}": good for k in range(24)}
    pictures = pictures_of(tmp_path, Labels((0, 255)), **some, z=bad)
    assert len(pictures) == 24
    assert [picture.name for picture in pictures[:2]] == ["z", "n00"]
    size = (pictures[1].width, pictures[1].height)
    assert size == decode(pictures[1].photo).size == decode(pictures[1].layers["truth"]).size
    assert size == (640, 1)


@pytest.mark.parametrize(("classes", "kind"), [(2, 2), (3, 1)])
def test_differences(classes: int, kind: int) -> None:
    truth = np.array([[0, 0, 1, 1, IGNORE_ID]], np.uint8)
    predicted = np.array([[0, 1, 0, 1, 1]], np.uint8)
    assert difference(truth, predicted, classes).tolist() == [[0, 1, kind, 0, IGNORE_ID]]


def test_captions_leave_out_classes_that_do_not_occur(tmp_path: Path) -> None:
    image, mask = np.array([[0, 0]]), np.array([[0, 0]])
    (picture,) = pictures_of(tmp_path, Labels((0, 1, 2)), a=(image, mask))
    assert picture.caption == "mean Dice 1.0000; worst classes: 0 (1.000)"
    (empty,) = pictures_of(tmp_path, Labels((0, 1)), a=(image, mask))
    assert empty.caption == "Dice -, IoU -, precision -, recall -"
    assert replace(empty, name="b").name == "b"
