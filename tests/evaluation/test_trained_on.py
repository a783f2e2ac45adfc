"""Scores on images that a network was trained on."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

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


def evaluate(folder: Path, *flags: str) -> tuple[int, str, str]:
    argv = ["evaluate", *flags, "--workers", "0", "--device", "cpu", "-o", "out", "--overwrite"]
    return call_main("unet_ddp.__main__", argv, str(folder))


def test_a_pack_says_how_many_of_its_images_the_network_was_trained_on(folder: Path) -> None:
    """In its place outright, in another place if the run's is empty, and not for other images."""
    for name in ("pack", "fewer"):
        make_set(folder / f"for_{name}", 6 if name == "pack" else 5, size=(32, 32))
        argv = ["pack", *data_flags(Path(f"for_{name}")), "--output", name]
        assert call_main("unet_ddp.__main__", argv, str(folder))[0] == 0
    argv = ["--images", "pack", "--width", "2", "--epochs", "1", "--fold", "1/3", "--workers", "0"]
    argv += ["--model", "unet", "--device", "cpu", "--exp-name", "packed"]
    assert call_train(argv, str(folder))[0] == 0
    packed = "-m", "checkpoints/packed"
    status, out, err = evaluate(folder, *packed, "--images", "pack")
    assert status == 0, err
    assert "warning: it was trained on 4 of these 6 images, which it knows" in out
    assert "warning" not in evaluate(folder, *packed, "--images", "fewer")[1]
    assert "warning" not in evaluate(folder, *packed)[1]
    (folder / "pack").rename(folder / "moved")
    said = "error: checkpoints/packed/best.pt: the data of its run can't be read (pack: not found)"
    status, _, err = evaluate(folder, *packed)
    assert (status, err.startswith(said), err.endswith(", or use --images\n")) == (2, True, True)
    out = evaluate(folder, *packed, "--images", "moved")[1]
    assert (
        "which are no longer in pack: if they are the same, it was trained on 4 of these 6" in out
    )
    assert "warning" not in evaluate(folder, *packed, "--images", "fewer")[1]


def test_moved_images_are_named_as_those_of_the_run_and_can_be_scored_as_its_validation_set(
    folder: Path, tmp_path: Path
) -> None:
    """The advice of the warning is followed: it leads to the scores of the run's validation images."""
    shutil.copytree(folder, tmp_path / "here", symlinks=True)
    here = tmp_path / "here"
    (here / "new").mkdir()
    for name in ("imgs", "masks"):
        (here / name).rename(here / "new" / name)
    fold = "-m", "checkpoints/fold1"
    status, _, err = evaluate(here, *fold)
    assert status == 2 and "imgs: not found" in err and "use --images and --masks" in err
    out = evaluate(here, *fold, *data_flags(Path("new")))[1]
    assert "if they are the same, it was trained on 4 of these 6 images" in out
    assert "move or link them back, and leave out --images" in out
    for name in ("imgs", "masks"):
        (here / name).symlink_to(Path("new", name))
    status, out, err = evaluate(here, *fold)
    assert (status, err) == (0, "") and "scored: 2 images of its run's validation set" in out


@pytest.mark.parametrize("place", ["closed", "loop", "n" * 300, "a\0b"])
def test_a_place_of_the_run_that_cannot_be_looked_at_is_no_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A colleague's checkpoint names a folder that is closed to others, or a name that is none here."""
    (tmp_path / "loop").symlink_to("loop")
    real = os.stat

    def stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if os.fspath(tmp_path / "closed") in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    content = torch.load(folder / "checkpoints" / "fold1" / "best.pt", weights_only=True)
    config = {**content["config"], "images": str(tmp_path / place / "imgs")}
    torch.save({**content, "config": config}, tmp_path / "shared.pt")
    monkeypatch.setattr(os, "stat", stat)
    status, out, err = evaluate(folder, "-m", str(tmp_path / "shared.pt"), *data_flags(Path()))
    assert (status, err) == (0, "") and "scored: 6 images" in out and "warning" not in out


@pytest.mark.parametrize("line", ["", "training", "training,a\0b,", '"', "validation,loop/a.png,"])
def test_a_damaged_list_of_the_split_is_no_error(folder: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    shutil.copy(folder / "checkpoints" / "fold1" / "best.pt", tmp_path)
    (tmp_path / "split.csv").write_text(f"split,image,mask\n{line}\n")
    status, out, err = evaluate(folder, "-m", str(tmp_path / "best.pt"), *data_flags(Path()))
    assert (status, err) == (0, "") and "scored: 6 images" in out
