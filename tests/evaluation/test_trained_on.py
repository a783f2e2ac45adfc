"""Scores on images that a network was trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import data_flags, make_set
from tests.ranks import call_main, call_train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two folds, each with 4 of 6 images to train on; a link to the images, links to each of them, and a copy."""
    folder = make_set(tmp_path_factory.mktemp("seen"), 6, size=(32, 32))
    make_set(folder / "copy", 6, size=(32, 32))
    (folder / "link").symlink_to(folder, target_is_directory=True)
    (folder / "links").mkdir()
    for image in (folder / "imgs").iterdir():
        (folder / "links" / image.name).symlink_to(Path("../imgs", image.name))
    for k in (1, 2):
        argv = [*data_flags(Path()), "--width", "2", "--epochs", "1", "--fold", f"{k}/3"]
        argv += ["--workers", "0", "--model", "unet", "--device", "cpu", "--exp-name", f"fold{k}"]
        assert call_train(argv, str(folder))[0] == 0
    return folder


@pytest.mark.parametrize(
    ("flags", "own", "other"),
    [
        ((), "", "2 of these 2 images"),
        (data_flags(Path()), "4 of these 6 images", "4 of these 6 images"),
        (data_flags(Path("link")), "4 of these 6 images", "4 of these 6 images"),
        (["--images", "links", "--masks", "masks"], "4 of these 6 images", "4 of these 6 images"),
        (data_flags(Path("copy")), "", ""),
    ],
)
def test_each_network_says_how_many_of_the_images_it_was_trained_on(
    folder: Path, flags: list[str], own: str, other: str
) -> None:
    argv = ["evaluate", "-m", "checkpoints/fold1", *flags, "--against", "checkpoints/fold2"]
    argv += ["--workers", "0", "--device", "cpu", "-o", "out", "--overwrite"]
    status, out, err = call_main("unet_ddp.__main__", argv, str(folder))
    assert status == 0, err
    first, second = out.split("against checkpoints/fold2:")
    for said, count in ((first, own), (second, other)):
        assert ("warning: it was trained on" in said) == bool(count)
        assert count in said
