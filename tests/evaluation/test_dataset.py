"""Pairs to score, at the images' own size and at the network's scale."""

from __future__ import annotations

import gc
import multiprocessing.synchronize
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import _utils

from tests.evaluation.examples import grey_predictor, write_pairs
from tests.ranks import Ranks
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.evaluation.dataset import EvaluationDataset, fetch
from unet_ddp.extras.formats.npy import NpyFile

TWO = Labels((0, 255))
MASK = np.array([[0, 0, 255, 255], [0, 0, 255, 0]])
IMAGE = np.arange(8).reshape(2, 4) * 30


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_truth_has_the_images_size_or_the_networks_scale(tmp_path: Path, scale: float) -> None:
    pairs = write_pairs(tmp_path, a=(IMAGE, MASK), b=(255 - IMAGE, MASK))
    predictor = grey_predictor(TWO, scale=scale)
    as_trained = SegmentationDataset(pairs, TWO, predictor.format, scale=scale)[(0, 1)]
    dataset = EvaluationDataset(pairs, predictor, full_size=True)
    sample = dataset[(0, 1)]
    assert not isinstance(sample, UserError) and not isinstance(as_trained, UserError)
    assert len(dataset) == 2 and sample.pair == 1
    assert sample.truth.tolist() == [(MASK // 255).tolist()]
    assert torch.equal(sample.image[0], as_trained.image)
    assert torch.equal(sample.scaled_truth[0], as_trained.mask)
    scaled = EvaluationDataset(pairs, predictor, full_size=False).read(1)
    assert torch.equal(scaled.truth, sample.scaled_truth)


def test_pixels_without_data_are_ignored_at_both_sizes(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).random((20, 30), np.float32)
    pixels[:4] = -9999
    np.save(tmp_path / "a.npy", pixels)
    Image.fromarray(np.full((10, 15), 255, np.uint8)).save(tmp_path / "a.png")
    pairs = Pairs([Pair("a", tmp_path / "a.npy", tmp_path / "a.png")])
    predictor = grey_predictor(TWO, scale=0.5, nodata=-9999.0)
    sample = EvaluationDataset(pairs, predictor, full_size=True, resize_masks=True).read(0)
    assert sample.truth.shape == (1, 20, 30) and sample.scaled_truth.shape == (1, 10, 15)
    expected = np.where(pixels == -9999, IGNORE_ID, 1)
    assert sample.truth[0].tolist() == expected.tolist()
    assert sample.scaled_truth[0].tolist() == expected[::2, ::2].tolist()


@pytest.mark.parametrize(("nodata", "decoded"), [(None, 1), (0.0, 2)])
def test_an_image_is_decoded_at_its_own_size_only_for_pixels_without_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodata: float | None, decoded: int
) -> None:
    """The truth at full size needs no more of an image than its size, which the header has."""
    np.save(tmp_path / "a.npy", IMAGE.astype(np.float32))
    Image.fromarray(MASK.astype(np.uint8)).save(tmp_path / "a.png")
    predictor = grey_predictor(TWO, scale=0.5, nodata=nodata)
    predictor.format = ImageFormat(1, "float32", nodata)
    pairs = Pairs([Pair("a", tmp_path / "a.npy", tmp_path / "a.png")])
    reads: list[Path] = []
    real = NpyFile.read_bands
    monkeypatch.setattr(
        NpyFile, "read_bands", lambda reader: reads.append(reader.path) or real(reader)
    )
    sample = EvaluationDataset(pairs, predictor, full_size=True).read(0)
    assert sample.truth.shape == (1, 2, 4) and sample.image.shape == (1, 1, 2, 1)
    assert (sample.truth[0, 0, 0] == IGNORE_ID).item() is (nodata is not None)
    assert reads == [pairs[0].image] * decoded


def test_a_mask_of_another_size_is_named(tmp_path: Path) -> None:
    """A mask of 5 columns fits the image of 4 at scale 0.5, at full size it does not."""
    wide = np.zeros((2, 5))
    pairs = write_pairs(tmp_path, a=(IMAGE, wide))
    predictor = grey_predictor(TWO, scale=0.5)
    error = EvaluationDataset(pairs, predictor, full_size=True)[(0, 0)]
    assert isinstance(error, UserError)
    assert f"{pairs[0].mask} is 5x2, its image 4x2; resize one" in str(error)
    assert EvaluationDataset(pairs, predictor, full_size=False).read(0).truth.shape == (1, 1, 2)
    resized = EvaluationDataset(pairs, predictor, full_size=True, resize_masks=True)
    assert resized.read(0).truth.shape == (1, 2, 4)


@pytest.mark.parametrize("workers", [0, 1])
def test_ranks_fetch_all_samples_once_and_leave_the_random_state(
    tmp_path: Path, workers: int
) -> None:
    pairs = write_pairs(tmp_path, **dict.fromkeys("abcde", (IMAGE, MASK)))
    dataset = EvaluationDataset(pairs, grey_predictor(TWO), full_size=True)
    before = torch.get_rng_state()
    for rank, expected in ((0, [0, 2, 4]), (1, [1, 3])):
        world = World(rank=rank, size=2)
        assert [sample.pair for sample in fetch(dataset, world, workers=workers)] == expected
    assert torch.equal(torch.get_rng_state(), before)
    pairs[2].image.write_bytes(b"")
    samples = fetch(dataset, World(), workers=workers)
    with pytest.raises(UserError, match="c_image"):
        list(samples)


@pytest.mark.parametrize(("rank", "is_shown"), [(0, True), (1, False)])
def test_the_main_process_shows_progress_on_a_terminal(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
    is_shown: bool,
) -> None:
    dataset = EvaluationDataset(
        write_pairs(tmp_path, a=(IMAGE, MASK), b=(IMAGE, MASK)), grey_predictor(TWO), full_size=True
    )
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    list(fetch(dataset, World(rank=rank, size=2), workers=0))
    err = capsys.readouterr().err
    assert ("image" in err) == is_shown and err.endswith("\r" if is_shown else "")  # then removed


def test_reading_processes_have_their_imports(ranks: Ranks) -> None:
    """Spawned ones would begin with seconds of them, for each report of a run by --nproc."""
    assert ranks.run(1, read_where_processes_are_spawned) == [3]


def read_where_processes_are_spawned() -> int:
    """Return the samples that a reading process gives where others would be spawned.

    A spawned one would be sent the data set, which can't be: its class is known here alone.
    """

    class Indices:
        pairs = Pairs()

        def __len__(self) -> int:
            return 3

        def __getitem__(self, key: tuple[int, int]) -> int:
            return key[1]

    multiprocessing.set_start_method("spawn", force=True)
    try:
        return len(list(fetch(Indices(), World(), workers=1)))  # type: ignore[arg-type]
    finally:
        multiprocessing.set_start_method(None, force=True)


@pytest.mark.processes
def test_a_sample_that_shared_memory_has_no_room_for_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was lost in the thread of a queue, and the evaluation waited for ever."""

    def fail(tensor: torch.Tensor) -> None:
        raise RuntimeError("unable to allocate shared memory(shm)")

    pairs = write_pairs(tmp_path, a=(IMAGE, MASK))
    dataset = EvaluationDataset(pairs, grey_predictor(TWO), full_size=True)
    monkeypatch.setattr(torch.Tensor, "share_memory_", fail)
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.5)  # until it ends the reader
    with pytest.raises(RuntimeError, match="unable to allocate shared memory"):
        list(fetch(dataset, World(), workers=1))
    gc.collect()  # ends the reader, within that interval
    assert len(list(fetch(dataset, World(), workers=0))) == 1  # nothing is shared
