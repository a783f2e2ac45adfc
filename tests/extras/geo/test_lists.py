"""Lists of maps in Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tifffile
from PIL import Image

from tests.extras.geo.test_no_data import NUMBERED, TWO, scene
from tests.prediction.models import lively_network, load, noise, write_photo
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.prediction import source
from unet_ddp.prediction.predictor import Predictor


def predictor_of(labels: Labels, **options: Any) -> Predictor:
    model = load(lively_network(classes=labels.num_classes), labels)
    return Predictor([model], device=model.backend.input_device, **options)


@pytest.mark.parametrize("options", [{}, {"tile": 64}, {"tta": "mirror"}], ids=str)
@pytest.mark.parametrize("labels", [TWO, NUMBERED], ids=repr)
@pytest.mark.parametrize("streamed", [source.STREAMED, 1000])
def test_a_list_of_maps_has_the_masks_of_one_by_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    labels: Labels,
    options: dict[str, Any],
    streamed: int,
) -> None:
    """Of large ones too, which are read by rows, and of large TIFFs that are no maps."""
    monkeypatch.setattr(source, "STREAMED", streamed)
    tifffile.imwrite(tmp_path / "tiled.tif", noise(60, 50), photometric="rgb", tile=(16, 16))
    Image.fromarray(noise(60, 50)).save(tmp_path / "plain.tif")
    images: list[Any] = [
        scene(tmp_path / "a.tif", (60, 50)),
        noise(60, 50, seed=3),
        scene(tmp_path / "bb.tif", (60, 50), tiled=True, blockxsize=16, blockysize=16),
        scene(tmp_path / "c.tif"),
        tmp_path / "tiled.tif",
        tmp_path / "plain.tif",
        write_photo(tmp_path / "d.png", (60, 50)),
    ]
    predictor = predictor_of(labels, **options)
    found = predictor.batch(images)
    for prediction, image in zip(found, images, strict=True):
        alone = predictor(image)
        assert prediction.mask.tobytes() == alone.mask.tobytes()
        assert (prediction.nodata, prediction.shares) == (alone.nodata, alone.shares)
    assert [each.nodata for each in found] == [1200, 0, 1200, 1200, 0, 0, 0]


@pytest.mark.parametrize("labels", [TWO, NUMBERED], ids=repr)
def test_a_list_keeps_few_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: Labels
) -> None:
    """A process may have 1,024; images of different sizes wait until all are read."""
    monkeypatch.setattr(source, "STREAMED", 1000)
    paths = [scene(tmp_path / f"{k}.tif", (50 + k, 60)) for k in range(9)]
    predictor, opened = predictor_of(labels), list[int]()

    def count() -> None:
        files = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
        opened.append(len({*files}.intersection(map(str, paths))))

    predictor.on_window = count
    found = predictor.batch(paths)
    assert len(opened) == len(paths) and max(opened) <= 1
    assert [each.nodata for each in found] == [1200] * 9
    count()
    assert opened[-1] == 0


def test_a_map_of_a_list_that_goes_while_it_waits_is_named_by_its_place(tmp_path: Path) -> None:
    first, second = (scene(tmp_path / f"{k}.tif", (60, 50)) for k in range(2))

    def images() -> Iterator[Path]:
        yield first
        first.unlink()
        yield second

    with pytest.raises(UserError, match=rf"^images\[0\]: {first}: not found"):
        predictor_of(TWO).batch(images())
