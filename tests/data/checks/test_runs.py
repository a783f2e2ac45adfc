"""What pixels become: a property of the data set, the same in training and prediction."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from tests.conftest import data_flags, make_pair, make_set
from tests.data.checks.catalogue import cut
from tests.ranks import Ranks, call_main
from tests.test_resume import assert_same_state, last
from unet_ddp.config import DataConfig
from unet_ddp.data.checks.check import PreparedData, prepare_data
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.labels import IGNORE_ID
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.runs.folder import RunFolder

FLAGS = [
    "--width",
    "2",
    "--epochs",
    "2",
    "--batch-size",
    "1",
    "--workers",
    "0",
    "--augmentation",
    "none",
]


def prepared(folder: Path, **how: Any) -> PreparedData:
    config = DataConfig(images=str(folder / "imgs"), masks=str(folder / "masks"), **how)
    return prepare_data(config, seed=0, progress=lambda items, total: items)


def make_tiffs(folder: Path, dtype: str, bands: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Images of very different brightness; the last band is a hundred times the first."""
    (folder / "imgs").mkdir(parents=True)
    (folder / "masks").mkdir()
    images = []
    for number in range(6):
        pixels = rng.normal(300 * number, 40, (24, 32, bands)) * np.linspace(1, 10, bands)
        pixels = np.clip(pixels, 0, 60000).astype(dtype)
        tifffile.imwrite(
            folder / "imgs" / f"{chr(97 + number)}x.tif", pixels[..., 0] if bands == 1 else pixels,
            photometric="minisblack", **({"planarconfig": "contig"} if bands > 1 else {}),
        )  # fmt: skip
        mask = np.zeros((24, 32), np.uint8)
        mask[:12] = 1
        Image.fromarray(mask).save(folder / "masks" / f"{chr(97 + number)}x.png")
        images.append(pixels)
    return images


@pytest.mark.parametrize("dtype", ["uint16", "int16", "float32"])
@pytest.mark.parametrize("bands", [1, 4])
def test_the_training_set_has_mean_0_and_spread_1(
    tmp_path: Path, rng: np.random.Generator, dtype: str, bands: int
) -> None:
    """Each channel over the whole set, and so no image by itself: bright ones stay bright."""
    make_tiffs(tmp_path, dtype, bands, rng)
    data = prepared(tmp_path)
    pixels = Preprocessing.for_data(data.format, data.range, scale=1.0)
    read = [
        SegmentationDataset([pair], data.labels, pixels.format, scale=1.0)[0, 0]
        for pair in data.split.training
    ]
    seen = torch.cat([pixels(sample.image[None], torch.float64) for sample in read])  # type: ignore[union-attr]
    assert seen.mean((0, 2, 3)).abs().max() < 1e-6
    assert (seen.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-6
    assert seen.mean((1, 2, 3)).std() > 0.5
    assert Preprocessing.from_dict(pixels.to_dict()) == pixels


def test_prediction_sees_what_training_saw(
    ranks: Ranks, tmp_path: Path, rng: np.random.Generator
) -> None:
    """The checkpoint's numbers, not the image's: half as bright an image is another image."""
    make_tiffs(tmp_path, "uint16", 1, rng)
    status, _, err = ranks.run(
        1, call_main, "train", [*data_flags(tmp_path), *FLAGS], str(tmp_path)
    )[0]
    assert status == 0, err
    data = prepared(tmp_path)
    predictor = Predictor.from_checkpoint(tmp_path / "checkpoints" / "best.pt", device="cpu")
    assert predictor.preprocessing == Preprocessing.for_data(data.format, data.range, scale=1.0)
    bright, dark = tmp_path / "imgs" / "fx.tif", tmp_path / "dark.tif"
    tifffile.imwrite(dark, tifffile.imread(bright) // 2)
    seen = [
        predictor.preprocessing(torch.from_numpy(read[None]))
        for read in map(read_for(predictor), (bright, dark))
    ]
    assert seen[0].mean() > seen[1].mean() + 0.5


def read_for(predictor: Predictor) -> Any:
    from unet_ddp.data.formats.read import read_image

    return lambda path: read_image(path, predictor.format)


def test_pixels_that_hold_nothing_count_nowhere(tmp_path: Path, rng: np.random.Generator) -> None:
    """They are zero to the network, their mask is ignored, and they don't shift mean or range."""
    images = make_tiffs(tmp_path, "float32", 2, rng)
    before = prepared(tmp_path)
    for number in range(6):
        holed = images[number].copy()
        holed[3:7, 5:9, 1] = -9999
        tifffile.imwrite(
            tmp_path / "imgs" / f"{chr(97 + number)}x.tif", holed,
            photometric="minisblack", planarconfig="contig",
        )  # fmt: skip
    data = prepared(tmp_path, nodata=-9999)
    assert before.range is not None and data.range is not None
    assert data.range.low >= 0 and data.range.mean == pytest.approx(before.range.mean, rel=0.05)
    pixels = Preprocessing.for_data(data.format, data.range, scale=1.0)
    for scale in (1.0, 0.5):
        dataset = SegmentationDataset(data.split.training, data.labels, pixels.format, scale=scale)
        sample = dataset[0, 0]
        seen = pixels(sample.image[None])  # type: ignore[union-attr]
        ignored = sample.mask == IGNORE_ID  # type: ignore[union-attr]
        assert ignored.sum() == (16 if scale == 1 else 9)  # all that have a share of them
        if scale == 1:
            assert seen[0][:, ignored].abs().max() < 1e-5
        assert seen.isfinite().all() and seen.abs().max() < 20


def breaking_run(
    folder: str, words: list[str], after: int, names: list[str]
) -> tuple[int, str, str]:
    """A run whose files `names` break after step `after`."""
    import train

    is_due, steps = train.is_due, [0]

    def then(run: Any, seconds: float) -> bool:
        steps[0] += 1
        if steps[0] == after and run.world.is_main:
            for name in names:
                cut(Path(folder) / "imgs" / name)
        return is_due(run, seconds)

    train.is_due = then
    try:
        return call_main("train", words, folder)
    finally:
        train.is_due = is_due


@pytest.mark.parametrize("size", [1, 2])
def test_a_file_that_breaks_in_mid_run_costs_nothing(
    ranks: Ranks, tmp_path: Path, size: int
) -> None:
    """The run stops with its name, before the step that needs it, saved; mended, it goes on as ever."""
    for name in ("whole", "broken"):
        make_set(tmp_path / name, 14)
    flags = [*FLAGS, "--save-every-minutes", "0"]
    whole = [*data_flags(tmp_path / "whole"), *flags]
    outcomes = ranks.run(size, call_main, "train", whole, str(tmp_path / "whole"))
    assert [status for status, _, _ in outcomes] == [0] * size, outcomes
    names = [path.name for path in (tmp_path / "broken" / "imgs").iterdir()]
    shutil.copytree(tmp_path / "broken" / "imgs", tmp_path / "kept")
    words = [*data_flags(tmp_path / "broken"), *flags]
    outcomes = ranks.run(size, breaking_run, str(tmp_path / "broken"), words, 2, names)
    assert [status for status, _, _ in outcomes] == [2] * size
    err = "".join(err for _, _, err in outcomes)
    assert (
        err.startswith("error: ") and err.count("\n") == 1 and "x.png: corrupt or truncated" in err
    )
    stopped = last(tmp_path / "broken")["position"]
    assert stopped["epoch"] == 0 and stopped["step"] in (3, 4)  # two steps were read ahead
    for path in (tmp_path / "kept").iterdir():
        shutil.copy2(path, tmp_path / "broken" / "imgs")
    outcomes = ranks.run(
        size, call_main, "train", ["--resume", "--workers", "0"], str(tmp_path / "broken")
    )
    assert [status for status, _, _ in outcomes] == [0] * size, outcomes
    assert_same_state(last(tmp_path / "broken"), last(tmp_path / "whole"), ema=False)


def breaking_run_on_a_slow_disk(
    folder: str, words: list[str], after: int, names: list[str]
) -> tuple[int, int]:
    """Its status, and the step that is on the disk when this rank has left."""
    write = RunFolder.write

    def slowly(self: RunFolder, *args: Any) -> str:
        time.sleep(1)
        return write(self, *args)

    with mock.patch.object(RunFolder, "write", slowly):
        status, _, _ = breaking_run(folder, words, after, names)
    return status, last(Path(folder))["position"]["step"]


def test_no_rank_leaves_before_a_stopped_run_is_saved(ranks: Ranks, tmp_path: Path) -> None:
    """A launcher ends the others as soon as one has left, the one that writes among them."""
    make_set(tmp_path, 14)
    words = [*data_flags(tmp_path), *FLAGS, "--save-every-minutes", "0"]
    names = [path.name for path in (tmp_path / "imgs").iterdir()]
    outcomes = ranks.run(2, breaking_run_on_a_slow_disk, str(tmp_path), words, 2, names)
    assert all(status == 2 and step in (3, 4) for status, step in outcomes), outcomes


def test_unscanned_images_of_several_sizes_are_scored(ranks: Ranks, tmp_path: Path) -> None:
    for number in range(8):
        make_pair(tmp_path, f"{chr(97 + number)}x", size=(32 + 8 * (number % 3), 40))
    words = [
        *data_flags(tmp_path), "--width", "2", "--epochs", "1", "--batch-size", "1", "--workers", "0",
        "--skip-scan", "--binary", "--crop-size", "32", "32", "--validation", "50",
    ]  # fmt: skip
    ((status, out, err),) = ranks.run(1, call_main, "train", words, str(tmp_path))
    assert status == 0 and "validation Dice" in out, err
