"""The built-in demo set of leaves, and how any of them is written."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from unet_ddp.data.matching import find_pairs
from unet_ddp.errors import UserError
from unet_ddp.extras.demo_set import draw as demo
from unet_ddp.extras.demo_set.draw import write_demo
from unet_ddp.extras.demo_set.leaves import draw_leaves


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in (("SCENES", 3), ("VIEWS", 2), ("UNSEEN", 1)):
        monkeypatch.setattr(demo, name, count)


def test_leaves_are_160_images_of_40_scenes() -> None:
    assert (demo.SCENES, demo.VIEWS, demo.UNSEEN) == (40, 4, 4)


@pytest.mark.usefixtures("few")
def test_the_set_is_written_once(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "demo"
    assert write_demo(folder, "leaves") == folder
    pairs = find_pairs(folder / "imgs", folder / "masks")
    assert [pair.name for pair in pairs] == [
        f"scene{scene:02d}_{view}" for scene in range(3) for view in range(2)
    ]
    assert [path.name for path in (folder / "unseen").iterdir()] == ["scene03_0.jpg"]
    assert {pair.image.suffix for pair in pairs} == {".jpg"}
    pairs[0].image.unlink()
    write_demo(folder)  # any kind; a user may delete what is not needed
    assert not pairs[0].image.exists()
    note = folder / "README.txt"
    note.write_text(
        f"Being d{note.read_text()[1:]}"
    )  # as after a run that was killed while drawing
    write_demo(folder)
    assert pairs[0].image.exists() and note.read_text().startswith("Drawn by unet_ddp (leaves)")
    note.unlink()
    with pytest.raises(
        UserError, match="imgs: contains files that are not of the demo set; use an"
    ):
        write_demo(folder)


def test_views_differ_and_are_drawn_again_alike() -> None:
    drawn = {}
    for scene, view in ((0, 0), (0, 1), (5, 0)):
        image, mask = draw_leaves(scene, view)
        assert image.mode == "RGB" and image.size == mask.size == (128, 96)
        assert set(np.unique(mask)) == {0, 255}
        assert 0.02 < (np.asarray(mask) > 0).mean() < 0.6
        again = draw_leaves(scene, view)
        assert image.tobytes() == again[0].tobytes() and mask.tobytes() == again[1].tobytes()
        drawn[scene, view] = (image.tobytes(), mask.tobytes())
    assert (
        len({image for image, _ in drawn.values()})
        == len({mask for _, mask in drawn.values()})
        == 3
    )


def test_leaves_are_the_pictures_of_version_0_1() -> None:
    """The same images give the figures of the README in later versions."""
    pixels = hashlib.sha256()
    for scene in range(demo.SCENES + demo.UNSEEN):
        for view in range(demo.VIEWS):
            for picture in draw_leaves(scene, view):
                pixels.update(picture.tobytes())
    assert pixels.hexdigest() == "c05c115c86a266f70012a45fd66323d20c06925e33211c8f96c76bd0944311aa"


def test_leaves_differ_from_the_background_by_their_texture() -> None:
    """Fine stripes: neighbouring pixels differ more inside leaves than outside."""
    inside, outside = [], []
    for scene in range(12):
        image, mask = draw_leaves(scene, 0)
        grey, leaf = np.asarray(image.convert("L")).astype(float), np.asarray(mask) > 0
        change = np.abs(np.diff(grey, axis=1))
        inside.append(change[leaf[:, 1:]].mean())
        outside.append(change[~leaf[:, 1:]].mean())
    assert np.mean(inside) > 1.5 * np.mean(outside)


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/demo: can't be written: .*the demo set goes there"):
        write_demo(tmp_path / "file" / "demo")
