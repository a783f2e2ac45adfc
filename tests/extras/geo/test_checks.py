"""Data sets of maps: coordinates of masks, and one ground resolution."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.checks.test_check import collected, in_folder, prepared
from tests.evaluation.examples import CPU, grey_predictor
from tests.maps import CORNER, at, write_map
from tests.prediction.models import noise
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.readers.base import Header
from unet_ddp.data.readers.resize import resize_area, resize_nearest
from unet_ddp.errors import UserError
from unet_ddp.evaluation.dataset import EvaluationDataset
from unet_ddp.extras.geo.checks import check_pairs
from unet_ddp.extras.geo.maps import Place
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.prediction.predictor import Predictor


def make_maps(folder: Path, *, metres: tuple[float, ...] = (0.5,), **mask: Any) -> Path:
    """Write six pairs; their images have these ground resolutions in turn."""
    for number in range(6):
        name, side = f"{chr(97 + number)}x.tif", metres[number % len(metres)]
        size = round(32 * metres[0] / side)
        write_map(folder / "imgs" / name, noise(size, size, number), at(side))
        values = (np.indices((size, size))[0] > size // 2).astype(np.uint8)
        write_map(folder / "masks" / name, values, **{"transform": at(side), **mask})
    return folder


@pytest.mark.parametrize(
    "mask",
    [
        {},
        {"crs": None},
        {"crs": "EPSG:32633+5773"},
        {"transform": at(0.5, (CORNER[0] + 0.04, CORNER[1]))},
    ],
    ids=["equal", "no CRS", "with heights", "a tenth of a pixel"],
)
def test_masks_that_lie_on_their_images_are_trained_on(tmp_path: Path, mask: Any) -> None:
    data = prepared(make_maps(tmp_path, **mask))
    assert data.format.ground_resolution == 0.5 and data.one_size == (32, 32)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"crs": "EPSG:32632"}, "ax.tif: its CRS is not that of .*imgs/ax.tif; use rio warp"),
        ({"crs": "EPSG:32632+5773"}, "ax.tif: its CRS is not that of .*imgs/ax.tif"),
        (
            {"transform": at(0.5, (CORNER[0], CORNER[1] + 2))},
            "lies 4 pixels off its image .*ax.tif",
        ),
        ({"transform": at(0.25)}, "lies 16 pixels off"),
        ({"transform": at(0.5, turn=90)}, "lies 64 pixels off|lies 32 pixels off"),
    ],
)
def test_masks_that_lie_elsewhere_are_an_error(tmp_path: Path, mask: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepared(make_maps(tmp_path, **mask))
    report, _ = collected(in_folder(tmp_path))
    assert len(report.problems) == 6  # again, by the scan's cache


def test_corners_are_compared_in_pixels_of_the_image() -> None:
    """An image of 40x10 pixels of 2 m, and a mask that is twice as high; others have no place."""

    def file(height: int | None) -> Any:
        place = height and Place("", (2.0, 0.0, 7.0, 0.0, -2.0 * height, 9.0), 2.0)
        return SimpleNamespace(place=place, header=Header(40, 10, 3, "uint8"))

    pair = Pair("a", Path("a.tif"), Path("m.tif"))
    scanned: Any = [(pair, file(a), file(b)) for a, b in ((None, 1), (1, None), (1, 2), (1, 1))]
    assert check_pairs(scanned) == [
        "m.tif lies 10 pixels off its image a.tif on the map; use rio warp m.tif NEW.tif --like a.tif"
    ]


def test_different_ground_resolutions_are_an_error_or_brought_to_one(tmp_path: Path) -> None:
    make_maps(tmp_path, metres=(0.5, 1.0))
    with pytest.raises(UserError, match=r"imgs/ax.tif has pixels of 0.5 m .*imgs/bx.tif of 1 m; "
                                        r".* --ground-resolution 1$"):  # fmt: skip
        prepared(tmp_path)
    config = in_folder(tmp_path, ground_resolution=1.0)
    data = prepared(tmp_path, ground_resolution=1.0)
    assert data.format.ground_resolution == 1 and data.one_size is None
    assert data.smallest == data.crop_size == (16, 16)
    pairs = sorted([*data.split.training, *data.split.validation], key=lambda pair: pair.name)
    samples = SegmentationDataset(Pairs(pairs), data.labels, data.format, scale=config.scale)
    for index, pair in enumerate(pairs):
        sample, whole = samples[0, index], noise(*(2 * [16 + 16 * (index % 2 == 0)]), index)
        assert not isinstance(sample, UserError), pair
        assert np.array_equal(sample.image.numpy(), resize_area(whole, (16, 16)))
        mask = (np.indices(whole.shape[:2])[0] > len(whole) // 2).astype(np.uint8)
        assert np.array_equal(sample.mask.numpy(), resize_nearest(mask, (16, 16)))
    with pytest.raises(UserError, match=r"bx.tif: pixels of 1 m on the ground, the network takes"):
        prepared(tmp_path, ground_resolution=0.5)


def test_resolutions_that_are_one_but_for_rounding_leave_the_images_as_they_are(
    tmp_path: Path,
) -> None:
    """Else a set that passes the check has images of several sizes, which no batch takes."""
    for number, metres in enumerate((0.5, 0.4976, 0.498, 0.499)):
        name, values = f"{'abcd'[number]}x.tif", np.indices((256, 256))[0] > 99
        write_map(tmp_path / "imgs" / name, noise(256, 256, number), at(metres))
        write_map(tmp_path / "masks" / name, values.astype(np.uint8), at(metres))
    data = prepared(tmp_path, validation=0)
    assert data.one_size == (256, 256)
    samples = SegmentationDataset(data.split.training, data.labels, data.format, scale=1.0)
    for index, pair in enumerate(data.split.training):
        sample = samples[0, index]
        assert not isinstance(sample, UserError), pair
        own = noise(256, 256, "abcd".index(pair.image.name[0]))
        assert np.array_equal(sample.image.numpy(), own)


def test_a_ground_resolution_and_a_scale_are_multiplied_once(tmp_path: Path) -> None:
    """At 1 m, 32 pixels of 0.75 m are 24; half of them are 12."""
    make_maps(tmp_path, metres=(0.75,))
    data = prepared(tmp_path, ground_resolution=1.0, scale=0.5)
    assert data.smallest == data.crop_size == (12, 12)


def test_a_ground_resolution_needs_images_that_have_one(tmp_path: Path) -> None:
    make_maps(tmp_path)
    write_map(tmp_path / "imgs" / "cx.tif", noise(32, 32), crs=None)
    assert prepared(tmp_path).format.ground_resolution is None  # not known of all
    with pytest.raises(UserError, match=r"^--ground-resolution: .*cx.tif has no map coordinates"):
        prepared(tmp_path, ground_resolution=1.0)


def test_the_files_no_data_value_is_the_sets(tmp_path: Path) -> None:
    for number in range(6):
        name = f"{chr(97 + number)}x.tif"
        write_map(tmp_path / "imgs" / name, noise(32, 32, number).astype(np.int16), nodata=-9)
        write_map(tmp_path / "masks" / name, np.tri(32, dtype=np.uint8))
    assert prepared(tmp_path).format.nodata == -9


@pytest.mark.parametrize("full_size", [True, False])
def test_numbers_of_objects_are_read_at_the_ground_resolution(
    tmp_path: Path, full_size: bool
) -> None:
    """Validation has them at the scale of each image, as the network sees it."""
    numbers = np.zeros((64, 64), np.uint16)
    numbers[8:24, 8:24], numbers[32:56, 32:56] = 1, 2
    image = write_map(tmp_path / "a.tif", noise(64, 64)[..., 0], at(0.25))
    pair = Pair("a", image, write_map(tmp_path / "m.tif", numbers, at(0.25)))
    model = grey_predictor(ObjectLabels.of(("object",))).models
    predictor = Predictor(model, device=CPU, ground_resolution=0.5)
    sample = EvaluationDataset(Pairs([pair]), predictor, full_size=full_size).read(0)
    step = 1 if full_size else 2
    assert sample.image.shape[1:3] == (32, 32)
    assert sample.mask[0].tolist() == numbers[::step, ::step].tolist()
