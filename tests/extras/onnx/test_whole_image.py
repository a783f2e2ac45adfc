"""The steps before and after an exported network are those of a prediction."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.prediction.models import load, noise
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.data.readers.resize import resize_area, scaled_size
from unet_ddp.errors import UserError
from unet_ddp.extras.onnx.whole_image import (
    Decide,
    Foreground,
    FromUnit,
    Shrink,
    add_image_steps,
    add_qgis_steps,
    describe_for_qgis,
)


@pytest.mark.parametrize("scale", [1.0, 0.75, 0.5, 0.25, 0.125, 1 / 3, 0.3])
@pytest.mark.parametrize("channels", [1, 2, 3, 6])
def test_images_are_reduced_as_files_are(scale: float, channels: int) -> None:
    """To the last bit at fractions of 2, also between two whole numbers."""
    shrink, equal = Shrink(Preprocessing.for_images(channels, scale=scale)), []
    for height, width in ((64, 96), (96, 40), (63, 97), (41, 40), (5, 3), (1, 1), (9, 200)):
        image = np.dstack([noise(height, width, seed) for seed in (0, 1)])[..., :channels]
        found = shrink(torch.from_numpy(image)[None])[0].numpy()
        expected = resize_area(image, scaled_size(height, width, scale))
        assert found.dtype == np.uint8 and found.shape == expected.shape
        assert np.abs(found.astype(int) - expected).max() <= 1
        equal.append((found == expected).mean())
    assert np.mean(equal) > 0.99
    if scale not in (1 / 3, 0.3):
        assert equal[:2] == [1, 1]


def test_pixels_that_are_no_whole_numbers_stay_so() -> None:
    pixels = Preprocessing(1, (0.0,), (1.0,), 0.5, "float32", low=0.0, high=1.0)
    assert Shrink(pixels)(torch.tensor([[[[0.25], [0.5]]]])).tolist() == [[[[0.375]]]]


@pytest.mark.parametrize(
    ("labels", "threshold", "expected"),
    [
        (Labels((0, 200)), None, [0, 200]),
        (Labels((0, 200)), 0.9, [0, 0]),
        (Labels((0, 40000)), 0.5, [0, 40000]),
        (Labels((0xFF0000, 0x00FF01), rgb=True), None, [[255, 0, 0], [0, 255, 1]]),
    ],
)
def test_mask_values_are_those_of_a_prediction(
    labels: Labels, threshold: float | None, expected: list[Any]
) -> None:
    decide = Decide(load(torch.nn.Identity(), labels, threshold=threshold))
    logits = torch.tensor([[[[0.0, 0.0]], [[-1.0, 1.0]]]])  # probabilities 0.27, 0.73
    mask = decide(logits, torch.zeros(1, 1, 2, 3))[0, 0]
    assert mask.tolist() == expected
    ids = np.array([[0, int(threshold != 0.9)]], np.uint8)
    assert np.array_equal(mask.numpy()[None], labels.to_values(ids))
    assert mask.dtype == torch.from_numpy(labels.to_values(ids)).dtype


def test_logits_are_enlarged_before_the_decision() -> None:
    decide = Decide(load(torch.nn.Identity(), Labels((0, 1))))
    logits = torch.tensor([[[[0.0, 0.0]], [[-1.0, 5.0]]]])
    assert decide(logits, torch.zeros(1, 1, 4, 3)).tolist() == [[[0, 1, 1, 1]]]


def test_qgis_gives_shares_of_255_and_takes_probabilities() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert torch.equal(FromUnit()(pixels * np.float32(1 / 255)), pixels.permute(0, 2, 3, 1))
    probabilities = torch.rand(1, 3, 4, 5).softmax(1)
    assert torch.equal(Foreground()(probabilities), probabilities)
    assert torch.equal(Foreground()(probabilities[:, :2]), probabilities[:, 1:2])


def test_qgis_s_plugin_finds_what_it_reads() -> None:
    """By its own conversions, of `processing/models/model_base.py`."""
    labels = Labels((0, 200), names=("ground", "field"))
    model = load(torch.nn.Identity(), labels, scale=0.5, threshold=0.3)
    found = describe_for_qgis(model)
    names = sorted(json.loads(found["class_names"]).items(), key=lambda kv: int(kv[0]))
    assert [int(key) for key, _ in names] == [0, 1]
    assert [name for _, name in names] == ["ground", "field"]
    assert str(json.loads(found["model_type"])).capitalize() == "Segmentor"
    assert float(json.loads(found["seg_thresh"])) == 0.3
    assert (
        int(json.loads(found["tile_size"])) == 512 and int(json.loads(found["tiles_overlap"])) == 25
    )
    assert [float(x) for x in json.loads(found["standardization_std"])] == [1.0] * 3
    assert "resolution" not in found
    on_the_ground = replace(model.preprocessing, ground_resolution=0.3)
    resolution = describe_for_qgis(replace(model, preprocessing=on_the_ground))["resolution"]
    assert json.loads(resolution) == 60  # centimetres: half as many pixels, each twice as large
    several = load(torch.nn.Identity(), Labels((0, 1, 2)))
    assert json.loads(describe_for_qgis(several)["seg_thresh"]) == 0  # the most probable class


def test_what_a_graph_does_not_hold_is_refused() -> None:
    network = torch.nn.Identity()
    pixels = Preprocessing.for_images(3, scale=1.0)
    empty = load(network, Labels((0, 1)))
    object.__setattr__(empty, "preprocessing", Preprocessing(**{**pixels.__dict__, "nodata": 0.0}))
    with pytest.raises(UserError, match="--whole: pixels without data are not in a graph"):
        add_image_steps(None, empty)
    deep = load(network, Labels((0, 1)))
    object.__setattr__(deep, "preprocessing", Preprocessing.for_images(3, 65535, scale=1.0))
    with pytest.raises(UserError, match="--qgis: its plugin has images of 8 bit"):
        add_qgis_steps(None, deep)
