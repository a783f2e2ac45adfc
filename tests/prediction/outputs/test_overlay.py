"""Images with their masks over them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.prediction.models import noise
from tests.prediction.outputs.writing import image_files, make, predicted
from unet_ddp.data.drawing import draw_mask
from unet_ddp.data.labels import Labels
from unet_ddp.data.readers.resize import resize_area, resize_nearest
from unet_ddp.errors import UserError
from unet_ddp.prediction.outputs import overlay as module
from unet_ddp.prediction.outputs.overlay import Overlay

LABELS = Labels((0, 255))


@pytest.mark.parametrize("largest", [40, 39])
def test_an_overlay_is_the_drawn_mask_reduced_if_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    monkeypatch.setattr(module, "LARGEST", largest)
    image, ids = noise(30, 40), (noise(30, 40)[..., 0] > 99).astype(np.uint8)
    Image.fromarray(image).save(tmp_path / "a.png")
    files = image_files(tmp_path / "a.png", tmp_path / "b_mask.png")
    make(Overlay, LABELS).write(files, predicted(ids, LABELS))
    found = np.asarray(Image.open(tmp_path / "b_overlay.png"))
    size = (30, 40) if largest == 40 else (29, 39)
    drawn = draw_mask(resize_area(image, size), resize_nearest(ids, size), LABELS)
    assert np.array_equal(found, drawn.permute(1, 2, 0).numpy())


def test_one_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    Image.fromarray(noise(2, 2)).save(tmp_path / "a.png")
    files = image_files(tmp_path / "a.png", tmp_path / "file" / "a_mask.png")
    with pytest.raises(UserError, match=r"file/a_overlay\.png: can't be written"):
        make(Overlay, LABELS).write(files, predicted(np.zeros((2, 2), np.uint8), LABELS))
