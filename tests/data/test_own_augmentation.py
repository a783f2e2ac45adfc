"""An augmentation of the user's own: a function, or a transform of albumentations."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import data_flags, install_package, make_set
from tests.ranks import Ranks, call_train
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.cli import parse_train
from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.errors import UserError

SOURCE = """
import albumentations


def brighter(image, mask, generator):
    return image // 2 + generator.integers(100, dtype="uint8"), mask


noise = albumentations.GaussNoise(p=1)
"""
IMAGE = np.arange(20 * 30 * 3, dtype=np.uint8).reshape(20, 30, 3)
MASK = np.arange(20 * 30, dtype=np.int64).reshape(20, 30).astype(np.uint8) % 2


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module, and a package that is installed there with an entry point."""
    (tmp_path / "my_augmentations.py").write_text(SOURCE)
    entry = "[unet_ddp.augmentations]\nbrighter = my_augmentations:brighter\n"
    install_package(tmp_path, entry)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_augmentations", raising=False)
    return tmp_path


def make(name: str, crop_size: tuple[int, int] | None = None) -> Augmentation:
    return Augmentation(ImageFormat(3), name, crop_size, seed=3, num_classes=2)


@pytest.mark.parametrize(
    "name", ["my_augmentations:brighter", "brighter", "my_augmentations:noise"]
)
def test_it_is_a_function_of_seed_epoch_and_index(own: Path, name: str) -> None:
    """In whatever order, by whichever process."""
    first, second = make(name, (16, 16)), pickle.loads(pickle.dumps(make(name, (16, 16))))
    keys = [(0, 0), (0, 1), (1, 0)]
    drawn = [first(IMAGE, MASK, epoch=epoch, index=index) for epoch, index in keys]
    assert all(image.shape == (16, 16, 3) and mask.shape == (16, 16) for image, mask in drawn)
    assert len({image.tobytes() for image, _ in drawn}) == 3
    for (epoch, index), (image, mask) in reversed([*zip(keys, drawn, strict=True)]):
        again = second(IMAGE, MASK, epoch=epoch, index=index)
        assert (again[0] == image).all() and (again[1] == mask).all()


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (
            "image[:9], mask",
            r"returns image \(9, 30, 3\) of uint8; expected \(20, 30, 3\) of uint8",
        ),
        ("image / 2, mask", "returns image .* of float64; expected"),
        ("image, mask.astype(int)", "returns mask .* of int64; expected .* of uint8"),
        ("image, mask + 1", f"returns class 2; expected 0 to 1, or {IGNORE_ID} to ignore"),
        ("image", "ValueError: "),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        (
            "numpy.random.rand(*image.shape).astype('f4').view('u1')[..., ::4], mask",
            "gives two results",
        ),
    ],
)
def test_what_it_must_not_return_is_a_line(own: Path, returned: str, said: str) -> None:
    text = f"import numpy\ndef wrong(image, mask, generator):\n    return {returned}\n"
    (own / "my_augmentations.py").write_text(text)
    with pytest.raises(UserError, match=f"--augmentation my_augmentations:wrong: {said}"):
        make("my_augmentations:wrong")(IMAGE, MASK, epoch=0, index=0)


def test_it_may_write_into_its_arrays(own: Path) -> None:
    """A cache has the same ones."""
    text = "def dark(image, mask, generator):\n    image //= 2\n    return image, mask\n"
    (own / "my_augmentations.py").write_text(text)
    image = IMAGE.copy()
    for _ in range(2):
        assert (make("my_augmentations:dark")(image, MASK, epoch=0, index=0)[0] == IMAGE // 2).all()


def test_pixels_may_be_ignored(own: Path) -> None:
    text = "def none(image, mask, generator):\n    return image, mask | 255\n"
    (own / "my_augmentations.py").write_text(text)
    assert (make("my_augmentations:none")(IMAGE, MASK, epoch=0, index=0)[1] == IGNORE_ID).all()


def test_an_unknown_name_is_refused_before_anything_is_read(own: Path) -> None:
    said = "--augmentation wild: not one of none, photo, overhead, street, nor MODULE:NAME"
    with pytest.raises(UserError, match=said):
        parse_train(["--augmentation", "wild"])
    assert parse_train(["--augmentation", "brighter"]).data.augmentation == "brighter"


def test_a_run_is_the_same_on_two_processes_with_workers(own: Path, ranks: Ranks) -> None:
    make_set(own, 8)
    argv = [*data_flags(own), "--width", "2", "--epochs", "1", "--validation", "20"]
    argv += ["--augmentation", "my_augmentations:brighter"]
    ways = {"one": (1, "2", "0"), "two": (2, "1", "1")}
    for name, (size, batch, workers) in ways.items():
        how = ["--exp-name", name, "--batch-size", batch, "--workers", workers]
        outcomes = ranks.run(size, call_train, [*argv, *how], str(own))
        assert [status for status, _, _ in outcomes] == [0] * size, outcomes
    one, two = (checkpoint.load(own / "checkpoints" / name / "last.pt") for name in ways)
    assert one["sources"].keys() == {"my_augmentations:brighter"}
    for name, weight in one["model"].items():
        np.testing.assert_allclose(two["model"][name], weight, atol=1e-4, err_msg=name)
    seen = "inc.double_conv.1.running_mean"  # of the images themselves
    np.testing.assert_allclose(two["model"][seen], one["model"][seen], rtol=1e-4, atol=1e-5)
    (own / "evil.yaml").write_text("augmentation: my_augmentations:brighter\n")
    with pytest.raises(UserError, match="type --augmentation my_augmentations:brighter, too"):
        parse_train([*argv[:-2], "--config", "evil.yaml"])
