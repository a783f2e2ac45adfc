"""Separation of objects, by hand and against a watershed of the whole image."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from scipy import ndimage
from skimage.segmentation import watershed

from tests.evaluation.examples import CPU, grey_predictor
from unet_ddp.data.labels import Labels
from unet_ddp.evaluation.scoring import decide
from unet_ddp.extras.objects.borders import CLASS_NAMES
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.objects.separation import separate, to_shares
from unet_ddp.heads import SOFTMAX
from unet_ddp.prediction.prediction import Prediction
from unet_ddp.prediction.predictor import Predictor


def decode(labels: ObjectLabels, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mask and the extent of probabilities (C, H, W), in one band."""
    _, height, width = probabilities.shape
    logits = torch.from_numpy(probabilities).log()[None]
    return labels.decode([decide(logits, None, SOFTMAX)], (height, width))


def shares(*rows: str) -> np.ndarray:
    """Probabilities from digits: 9 stands for 0.9."""
    return np.rint(np.array([[int(c) for c in row] for row in rows]) * 25.5).astype(np.uint8)


def test_two_bodies_in_one_extent_are_two_objects_that_meet_where_the_body_is_least() -> None:
    body = shares("0000000000", "0995199900", "0994199900")
    extent = shares("0000000000", "8999999980", "0999999900")
    numbers = separate(body, extent, (0.6, 0.6))
    assert numbers.tolist() == [
        [0] * 10,
        [1, 1, 1, 1, numbers[1, 4], 2, 2, 2, 2, 0],
        [0, 1, 1, 1, numbers[2, 4], 2, 2, 2, 0, 0],
    ]
    assert {int(numbers[1, 4]), int(numbers[2, 4])} <= {1, 2}
    assert separate(body, extent, (0.1, 0.6)).max() == 1  # one seed: nothing to separate


def test_an_extent_without_a_seed_is_no_object_and_corners_do_not_connect() -> None:
    body, extent = shares("900", "090", "004"), shares("900", "090", "009")
    assert separate(body, extent, (0.5, 0.5)).tolist() == [[1, 0, 0], [0, 2, 0], [0, 0, 0]]


def test_a_body_beyond_its_extent_is_not_of_the_object() -> None:
    body, extent = shares("990099"), shares("900000")
    assert separate(body, extent, (0.5, 0.5)).tolist() == [[1, 0, 0, 0, 0, 0]]


def test_smoothing_joins_the_seeds_of_a_noisy_body_and_keeps_two_objects_apart() -> None:
    """Two squares of 9x9 that touch, with a low pixel in every second place of their bodies."""
    body, extent = np.zeros((2, 13, 24), np.uint8)
    for left in (2, 12):
        body[2:11, left : left + 9] = 240
        body[2:11:2, left : left + 9] = 120
    extent[2:11, 2:21] = 250
    assert separate(body, extent, (0.6, 0.5)).max() == 8  # rows
    numbers = separate(body, extent, (0.6, 0.5), smoothing=1.5)
    assert numbers.max() == 2
    assert {*numbers[6, 3:9].tolist()} == {1} and {*numbers[6, 14:20].tolist()} == {2}


def test_labels_decode_with_their_smoothing_and_networks_with_the_mean() -> None:
    body = np.full((16, 16), 0.05, np.float32)
    body[4:12, 4:12], body[4:12:2, 4:12] = 0.95, 0.4
    background = np.full((16, 16), 0.9, np.float32)
    background[4:12, 4:12] = 0.02
    probabilities = np.stack([background, body, 1 - background - body])
    plain = ObjectLabels((0, 1, 2), names=CLASS_NAMES, separation=(0.6, 0.5))
    smooth = replace(plain, smoothing=1.5)
    assert decode(plain, probabilities)[0].max() == 4
    mask, extent = decode(smooth, probabilities)
    assert mask.max() == 1 and np.array_equal(extent, decode(plain, probabilities)[1])
    assert plain.average([plain, smooth]).smoothing == 0.75
    kept = smooth.to_dict()
    assert Labels.from_dict(kept) == smooth
    assert Labels.from_dict({k: v for k, v in kept.items() if k != "smoothing"}) == plain


@pytest.mark.parametrize("separation", [(0.5, 0.5), (0.8, 0.3), (0.4, 0.7)])
def test_parts_apart_give_the_watershed_of_the_whole_image(
    rng: np.random.Generator, separation: tuple[float, float]
) -> None:
    """No two pixels of a part are equally high: the library's queue does not order such."""
    body, extent = ndimage.gaussian_filter(rng.random((2, 90, 70)), (0, 2, 2))
    extent = np.where(extent > np.quantile(extent, 0.65), 255, 0).astype(np.uint8)
    extent[::14] = extent[:, ::14] = 0  # parts of fewer pixels than there are heights
    parts, count = ndimage.label(extent)
    for part in range(1, count + 1):
        ranks = body[parts == part].argsort().argsort()
        body[parts == part] = np.linspace(70, 250, len(ranks)).astype(int)[ranks]
    body = body.astype(np.uint8)
    inside = extent >= separation[1] * 255
    seeds = ndimage.label(inside & (body >= separation[0] * 255))[0]
    numbers = separate(body, extent, separation)
    assert numbers.dtype == np.int32 and numbers.max() == seeds.max() > count > 5
    assert np.array_equal(numbers, watershed(255 - body, seeds, mask=inside))


def test_shares_are_rounded_probabilities(rng: np.random.Generator) -> None:
    probabilities = rng.random((3, 9, 7), np.float32)
    probabilities /= probabilities.sum(0)
    body, extent = found = to_shares(probabilities)
    assert found.dtype == np.uint8
    assert np.abs(body - 255 * probabilities[1]).max() <= 0.51
    assert np.abs(extent - 255 * (1 - probabilities[0])).max() <= 0.51


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_an_object_across_the_seams_of_windows_is_one(scale: float) -> None:
    """A bar over five windows, and one that touches it in the second of them."""
    labels = ObjectLabels((0, 1, 2), names=CLASS_NAMES, separation=(0.6, 0.5))
    image = np.zeros((40, 160), np.uint8)
    image[8:20, 4:150] = image[20:32, 40:70] = 255
    image[18:22, 40:70] = 128
    whole, tiled = (
        Predictor(grey_predictor(labels, scale=scale).models, device=CPU, tile=tile)(image)
        for tile in (None, 32)
    )
    assert whole.mask.max() == 2 and len(np.unique(whole.mask[8:16, 4:150])) == 1
    assert np.array_equal(whole.mask, tiled.mask)
    assert np.array_equal(tiled.ids, tiled.mask > 0) and tiled.mask.dtype == np.uint16


def test_outlines_are_inside_and_between_objects_too() -> None:
    numbers = np.zeros((5, 8), np.uint16)
    numbers[1:4, 1:4], numbers[1:4, 4:7] = 1, 2
    expected = (numbers > 0).astype(np.uint8)
    expected[2, 2] = expected[2, 5] = 0
    labels = ObjectLabels.of(("object",))
    assert np.array_equal(labels.layer(numbers), expected)
    values = np.where(numbers > 0, numbers.astype(np.int32) * 1_000_001, 0)
    outlines = ObjectLabels.of(("a", "b")).layer(values)
    assert np.array_equal(outlines, expected * numbers)  # class 2 is the second one
    ids = expected * 7
    assert Labels((0, 255)).layer(ids) is ids


def test_an_object_has_the_class_of_the_highest_mean_probability() -> None:
    """The left one's pixels are mostly cars, a little; the others trees, surely; the right one's cars."""
    car = shares("5550099", "0000000") / 255
    tree = shares("4449000", "0000000") / 255
    background = 1 - car - tree
    probabilities = np.stack([background, car, tree, 0 * car]).astype(np.float32)
    planes = to_shares(probabilities)
    assert planes.shape == (4, 2, 7) and planes[0, 0].tolist() == planes[1, 0].tolist()
    assert np.array_equal(planes[2:], np.rint(255 * probabilities[1:3]))
    labels = ObjectLabels.of(("car", "tree"))
    values, extent = decode(labels, probabilities)
    assert np.array_equal(extent, planes[1])
    assert values.tolist() == [[2_000_001] * 4 + [0] + [1_000_002] * 2, [0] * 7]
    sky = np.stack([background * 0 + 1, *np.zeros((3, 2, 7))]).astype(np.float32)
    nothing, _ = decode(labels, sky)
    assert nothing.dtype == np.int32 and not nothing.any()


def test_a_prediction_has_classes_in_its_numbers_ids_and_shares() -> None:
    """White is a car, grey a tree, and what lies between their border."""
    image = np.zeros((12, 30), np.uint8)
    image[2:10, 2:14], image[2:10, 16:28] = 255, 128
    prediction = grey_predictor(ObjectLabels.of(("car", "tree")))(image)
    assert set(np.unique(prediction.mask)) == {0, 1_000_001, 2_000_002}
    assert prediction.mask.dtype == np.int32
    assert prediction.ids[5, 5] == 1 and prediction.ids[5, 20] == 2 and prediction.ids[0, 0] == 0
    for array in (prediction.mask, prediction.extent):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0
    prediction.ids[:] = 0  # made at each use
    assert prediction.shares[1] > 0.2 < prediction.shares[2] and prediction.shares[3] == 0


@pytest.mark.parametrize("factor", [2, 4])
def test_an_enlarged_image_has_the_objects_of_the_network_s_scale(factor: int) -> None:
    """Smoothing is in pixels of the network, in which it was chosen."""
    rng = np.random.default_rng(0)  # one young network
    rows, columns = np.mgrid[:96, :96]
    body = np.zeros((96, 96), bool)
    for y, x in product(range(16, 96, 32), repeat=2):
        body |= (rows - y) ** 2 + (columns - x) ** 2 < 121
    logits = np.where(body, 1.5, -4.0) + rng.normal(0, 1.2, body.shape)
    scores = np.stack([-logits / 2, logits / 2, np.full(body.shape, -6.0)]).astype(np.float32)
    labels = replace(ObjectLabels.of(("cell",)), separation=(0.8, 0.5), smoothing=1.5)
    counts = []
    for each in (1, factor):
        prediction = Prediction([(0, scores)], labels, (96, 96), (96 * each, 96 * each))
        counts.append(len(np.unique(prediction.mask)) - 1)
    assert 9 <= counts[0] < 40
    assert abs(counts[1] - counts[0]) <= 0.2 * counts[0]
