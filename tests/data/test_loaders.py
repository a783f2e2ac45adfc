"""The loaders of a run: the same samples with and without reading processes."""

from __future__ import annotations

import errno
import gc
import mmap
import multiprocessing.synchronize
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.queues import Queue
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import cv2
import numpy as np
import pytest
import torch

from tests.conftest import make_pair, make_set
from tests.object_store import MemoryBucket, ObjectStore, put_folder
from tests.ranks import Ranks
from unet_ddp.config import DataConfig, TrainConfig
from unet_ddp.data import loaders as module
from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.dataset import Sample, SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.loaders import (
    FORK,
    Loaders,
    SampleLoader,
    TrainingBatches,
    build_loaders,
    count_workers,
    start_worker,
)
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.memory import SampleMemory
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.remote_pairs import RemotePairs
from unet_ddp.data.samplers import ScoringSampler, TrainingSampler, shuffle
from unet_ddp.data.splits import Split
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError
from unet_ddp.extras.cache.samples import SampleCache, open_cache
from unet_ddp.extras.cloud import Url, delete
from unet_ddp.extras.sampling.balance import ClassDraw
from unet_ddp.extras.sampling.cuts import plan_cuts

COLOUR, LABELS = ImageFormat(3), Labels((0, 255))
many_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_set(tmp_path, 8, size=(20, 26))


def make_dataset(folder: Path, **options: Any) -> SegmentationDataset:
    pairs = find_pairs(folder / "imgs", folder / "masks")
    return SegmentationDataset(pairs, LABELS, COLOUR, scale=1.0, **options)


def is_same(one: Sample, other: Sample) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@many_workers
def test_batches_do_not_depend_on_reading_processes(folder: Path) -> None:
    dataset = make_dataset(folder, augmentation=Augmentation(ImageFormat(3), "photo", None, seed=3))
    found = []
    for workers in (0, 1, 3):
        sampler = TrainingSampler(8, 4, rank=0, size=1, seed=1)
        loader = SampleLoader(dataset, sampler, batch_size=2, workers=workers)
        found.append([])
        for epoch in (0, 1):
            sampler.start_at(epoch, epoch)  # the second epoch from its second step on
            found[-1] += list(loader)
        loader.close()
    assert [len(batches) for batches in found] == [6, 6, 6]
    for batches in found:
        assert all(map(is_same, batches, found[0]))
    first = found[0][0]
    keys = list(TrainingSampler(8, 4, rank=0, size=1, seed=1))[:2]
    assert first.image.shape == (2, 20, 26, 3) and first.mask.shape == (2, 20, 26)
    assert first.pair.tolist() == [index for _, index in keys]
    for place, key in enumerate(keys):
        assert is_same(Sample(*(part[place] for part in first)), dataset[key])  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_follow_each_other_in_one_pass(folder: Path, workers: int) -> None:
    """From where a run resumes to its last epoch; a dry run may take more than that."""
    dataset = make_dataset(folder, augmentation=Augmentation(COLOUR, "photo", None, seed=3))
    places = [(1, 1), (2, 0), (3, 0), (4, 0)]
    wanted = []
    sampler = TrainingSampler(8, 4, rank=0, size=1, seed=1)
    apart = SampleLoader(dataset, sampler, batch_size=2, workers=0)
    for place in places:
        sampler.start_at(*place)
        wanted.append(list(apart))
    sampler = TrainingSampler(8, 4, rank=0, size=1, seed=1)
    loader = SampleLoader(dataset, sampler, batch_size=2, workers=workers)
    with mock.patch.object(sampler, "start_at", wraps=sampler.start_at) as begun:
        batches = TrainingBatches(loader, sampler, epochs=4)
        found = [list(batches.of_epoch(*place)) for place in places]
    loader.close()
    assert [len(epoch) for epoch in found] == [2, 4, 4, 4]
    for epoch, expected in zip(found, wanted, strict=True):
        assert all(map(is_same, epoch, expected))
    assert begun.call_args_list == [mock.call(1, 1, last=3), mock.call(4, 0, last=4)]


def test_fetched_together_and_yielded_one_by_one(folder: Path) -> None:
    dataset = make_dataset(folder)
    one, several = (
        list(
            SampleLoader(
                dataset,
                ScoringSampler(8, rank=0, size=1),
                batch_size=count,
                workers=0,
                unbatch=True,
            )
        )
        for count in (1, 3)
    )
    assert [sample.image.shape for sample in several] == [(1, 20, 26, 3)] * 8
    assert all(map(is_same, one, several)) and len(one) == 8


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_file_is_its_own_error(folder: Path, workers: int) -> None:
    bad = folder / "imgs" / "cx.png"
    bad.write_bytes(b"")
    sampler = ScoringSampler(8, rank=0, size=1)
    loader = SampleLoader(make_dataset(folder), sampler, batch_size=2, workers=workers)
    batches = iter(loader)
    assert next(batches).pair.tolist() == [0, 1]
    with pytest.raises(UserError) as caught:
        next(batches)
    assert str(caught.value) == f"{bad}: is empty (0 bytes); replace or remove it"
    loader.close()


def test_loading_leaves_torch_s_random_numbers_alone(folder: Path) -> None:
    before = torch.get_rng_state()
    list(
        SampleLoader(
            make_dataset(folder), ScoringSampler(8, rank=0, size=1), batch_size=1, workers=0
        )
    )
    assert torch.equal(torch.get_rng_state(), before)


class Probe(torch.utils.data.Dataset):
    """Samples that tell about the process that reads them."""

    pairs = Pairs()

    def __getitem__(self, key: object) -> Sample:
        signals = [
            signal.getsignal(each) is signal.SIG_IGN for each in (signal.SIGINT, signal.SIGHUP)
        ]
        found = [cv2.getNumThreads(), gc.get_freeze_count() > 0, *signals]
        return Sample(torch.tensor(found), torch.zeros(1), torch.zeros(1))


def test_a_reading_process_has_one_core_and_leaves_signals_to_its_rank() -> None:
    loader = SampleLoader(Probe(), ScoringSampler(1, rank=0, size=1), batch_size=1, workers=1)
    threads, *rest = next(iter(loader)).image[0].tolist()
    loader.close()
    assert threads <= 1 and rest == [1, 1, 1]


def test_reading_in_the_rank_itself_takes_one_core_too(folder: Path) -> None:
    cv2.setNumThreads(2)
    SampleLoader(make_dataset(folder), ScoringSampler(8, rank=0, size=1), batch_size=1, workers=0)
    assert cv2.getNumThreads() <= 1


@pytest.mark.parametrize(
    ("cores", "device", "requested", "expected"),
    [(4, "cpu", None, 3), (1, "cpu", None, 0), (16, "cpu", None, 15), (4, "cuda", None, 4),
     (12, "cuda", None, 12), (17, "cpu", None, 16), (64, "cuda", None, 16), (4, "cpu", 0, 0), (4, "cpu", 12, 12)],
)  # fmt: skip
def test_reading_processes_are_the_rank_s_share_of_the_cores(
    cores: int, device: str, requested: int | None, expected: int
) -> None:
    is_gpu = device == "cuda"  # which leaves both threads of a core to the readers
    counts = {
        "cores": cores // 2 if is_gpu else cores,
        "processors": cores if is_gpu else 2 * cores,
    }
    world: Any = SimpleNamespace(**counts, device=torch.device(device))
    assert count_workers(world, requested) == expected


# -- the loaders of a run -------------------------------------------------------------------


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The arguments of each SampleLoader."""
    made: list[dict[str, Any]] = []

    class Noted(SampleLoader):
        def __init__(self, *args: Any, **how: Any) -> None:
            made.append(how)
            super().__init__(*args, **how)

    monkeypatch.setattr(module, "SampleLoader", Noted)
    return iter([made]).__next__()


def prepared(folder: Path, **changes: Any) -> Any:
    pairs = find_pairs(folder / "imgs", folder / "masks")
    data = {
        "split": Split(pairs[:6], pairs[6:], ""), "labels": LABELS, "crop_size": None,
        "smallest": (20, 26), "one_size": (20, 26), "draw": None, "cut": None,
        "most_pixels": 520, "order": shuffle,
    }  # fmt: skip
    return SimpleNamespace(**data | changes)


def configured(**groups: dict[str, Any]) -> TrainConfig:
    config = TrainConfig()
    given = {"launch": {"workers": 0}, "optimization": {"batch_size": 2}} | groups
    return replace(
        config, **{name: replace(getattr(config, name), **g) for name, g in given.items()}
    )


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EROFS])
def test_shared_memory_without_room_for_reading_processes_is_one_line(
    monkeypatch: pytest.MonkeyPatch, folder: Path, reason: int
) -> None:
    """As soon as the loaders are built: half of a DataLoader ends in a traceback."""
    full = mock.Mock(side_effect=OSError(reason, os.strerror(reason)))
    monkeypatch.setattr(multiprocessing.synchronize, "Lock", full)
    world, data = World(), prepared(folder)
    build_loaders(
        configured(), data, image_format=COLOUR, world=world, open_cache=None
    )  # needs none
    with pytest.raises(RunError, match=r"^no shared memory .* for 2 reading processes") as caught:
        build_loaders(
            configured(launch={"workers": 2}),
            data,
            image_format=COLOUR,
            world=world,
            open_cache=None,
        )
    assert os.strerror(reason) in str(caught.value) and "--workers 0" in str(caught.value)


def test_the_loaders_of_a_run(folder: Path, options: list[dict[str, Any]]) -> None:
    config = configured(
        data={"augmentation": "none"}, optimization={"batch_size": 1, "accumulate": 2, "seed": 7}
    )
    world = World(rank=1, size=2)
    loaders = build_loaders(
        config, prepared(folder), image_format=COLOUR, world=world, open_cache=None
    )
    expected = TrainingSampler(6, 2, rank=1, size=2, seed=7)
    assert (loaders.training.sampler.steps, loaders.training.sampler.per_step) == (1, 2)
    assert [sample.pair.tolist() for sample in loaders.training.loader] == [
        [k] for _, k in expected
    ]
    assert loaders.validation is not None and loaders.notes == []
    assert [sample.pair.tolist() for sample in loaders.validation] == [[1]]
    common = {"workers": 0, "pin": False, "timeout": 480.0}
    assert options == [{**common, "batch_size": 8, "unbatch": True}, {**common, "batch_size": 1}]


def test_training_images_are_augmented_by_the_seed_and_validation_s_are_not(folder: Path) -> None:
    data, world = prepared(folder, crop_size=(16, 16)), World()
    batches = [
        next(
            iter(
                build_loaders(
                    config, data, image_format=COLOUR, world=world, open_cache=None
                ).training.loader
            )
        )
        for config in (
            configured(optimization={"batch_size": 2, "seed": seed}) for seed in (3, 3, 4)
        )
    ]
    assert batches[0].image.shape == (2, 16, 16, 3)
    assert is_same(batches[0], batches[1])
    loaders = build_loaders(configured(), data, image_format=COLOUR, world=world, open_cache=None)
    plain = make_dataset(folder)
    assert loaders.validation is not None
    for sample, index in zip(loaders.validation, (6, 7), strict=True):
        assert torch.equal(sample.image[0], plain[0, index].image)  # type: ignore[union-attr]


@pytest.mark.parametrize("crop_size", [None, (12, 16)])
def test_every_world_draws_the_same_samples_from_any_step(folder: Path, crop_size: Any) -> None:
    """By class and at random scales; of batches that are accumulated, too."""
    has = np.array([[1, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0]], bool)  # of the six to train on
    draw = ClassDraw(np.packbits(has, axis=1), share=0.7, seed=0)
    cut = plan_cuts(DataConfig(scale_jitter=(0.5, 2) if crop_size else None))
    data = prepared(folder, crop_size=crop_size, draw=draw, cut=cut)

    def read(rank: int, size: int, accumulate: int = 1, *, step: int = 0) -> list[Sample]:
        config = configured(
            optimization={"batch_size": 4 // size // accumulate, "accumulate": accumulate},
        )
        world = World(rank=rank, size=size)
        data.split = Split(Pairs([*data.split.training[:6]] * 2), Pairs(), "")
        loaders = build_loaders(config, data, image_format=COLOUR, world=world, open_cache=None)
        loaders.training.sampler.start_at(3, step)
        batches = [Sample(*(part.clone() for part in batch)) for batch in loaders.training.loader]
        return [Sample(*parts) for batch in batches for parts in zip(*batch, strict=True)]

    whole = read(0, 1)
    assert len(whole) == 12 and sum(int(sample.pair) == 2 for sample in whole) > 2
    for size, accumulate in ((1, 2), (2, 1), (2, 2), (4, 1)):
        for rank in range(size):
            mine = read(rank, size, accumulate)
            assert len(mine) == 12 // size and all(map(is_same, mine, whole[rank::size]))
            assert all(map(is_same, read(rank, size, accumulate, step=1), mine[4 // size :]))


def test_whole_images_must_have_one_size_and_crops_need_not(folder: Path) -> None:
    make_pair(folder, "ax", size=(24, 26))
    for crop_size, is_fine in ((None, False), ((16, 16), True)):
        data = prepared(folder, crop_size=crop_size, one_size=None)
        training = build_loaders(
            configured(), data, image_format=COLOUR, world=World(), open_cache=None
        ).training.loader
        try:
            assert (len(list(training)) == 3) == is_fine
        except UserError as error:
            assert not is_fine and "ax.png: 26x24 pixels after scaling, the others 26x20" in str(
                error
            )


@pytest.mark.parametrize(
    ("one_size", "image_format", "count"),
    [(None, COLOUR, 1), ((20, 26), COLOUR, 8), ((512, 512), COLOUR, 2), ((512, 512), ImageFormat(1), 4),
     ((2048, 2048), COLOUR, 1)],
)  # fmt: skip
def test_small_validation_images_of_one_size_are_fetched_together(
    folder: Path,
    options: list[dict[str, Any]],
    one_size: Any,
    image_format: ImageFormat,
    count: int,
) -> None:
    data = prepared(folder, one_size=one_size)
    build_loaders(configured(), data, image_format=image_format, world=World(), open_cache=None)
    assert options[0]["batch_size"] == count and options[0]["unbatch"]


def test_nothing_to_validate_on(folder: Path) -> None:
    data = prepared(folder)
    data.split = Split(data.split.training, Pairs(), "")
    loaders = build_loaders(configured(), data, image_format=COLOUR, world=World(), open_cache=None)
    assert loaders.validation is None
    with loaders as entered:
        assert entered is loaders


def test_scale_resized_masks_and_the_cache_reach_the_samples(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    wide = folder / "masks" / "gx.png"
    wide.write_bytes((make_pair(tmp_path / "wide", "gx", size=(40, 52))[1]).read_bytes())
    config = configured(data={"scale": 0.5, "resize_masks": True}, launch={"workers": 0})
    data = prepared(folder, smallest=(10, 13), one_size=(10, 13))
    cached = {"world": World(), "open_cache": open_cache}
    loaders = build_loaders(config, data, image_format=COLOUR, **cached)
    samples = tmp_path / "caches" / "unet_ddp" / "samples"
    assert loaders.notes == [f"cache: {samples}"]
    assert loaders.validation is not None
    for part in (loaders.training.loader, loaders.validation):
        assert all(batch.image.shape[1:] == (10, 13, 3) for batch in part)
    assert len(list(samples.iterdir())) == 8


def test_one_rank_of_a_machine_removes_what_the_cache_has_not_used_for_a_month(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    old = tmp_path / "caches" / "unet_ddp" / "samples" / "old"
    old.parent.mkdir(parents=True, mode=0o700)
    old.touch()
    os.utime(old, (0, 0))
    config = configured(launch={"workers": 0})
    for local_rank in (1, 0):
        world = World(rank=local_rank, local_rank=local_rank, size=2, local_size=2)
        cached = {"world": world, "open_cache": open_cache}
        build_loaders(config, prepared(folder), image_format=COLOUR, **cached)
        assert old.exists() == (local_rank == 1)


@pytest.mark.parametrize(("less", "is_kept"), [(0, True), (1, False)])
def test_samples_stay_in_memory_if_they_take_a_tenth_of_what_is_free(
    folder: Path, monkeypatch: pytest.MonkeyPatch, less: int, is_kept: bool
) -> None:
    needed = SampleMemory.needed(8, COLOUR, pixels=520, num_ids=2)
    monkeypatch.setattr(module, "free_memory", lambda device: 10 * needed - less)
    world = World(local_size=2)  # which share it
    loaders = build_loaders(
        configured(), prepared(folder), image_format=COLOUR, world=world, open_cache=None
    )
    for part in (loaders.training.loader, loaders.validation):
        assert part is not None and (part.dataset.store is not None) == is_kept  # type: ignore[attr-defined]


def test_a_process_that_may_not_have_the_memory_does_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `ulimit -v`, which batch systems set."""
    monkeypatch.setattr(mmap, "mmap", mock.Mock(side_effect=OSError(12, "no memory")))
    loaders = build_loaders(
        configured(), prepared(folder), image_format=COLOUR, world=World(), open_cache=None
    )
    assert loaders.training.loader.dataset.store is None  # type: ignore[attr-defined]


def test_what_is_cached_in_storage_or_drawn_is_not_kept_in_memory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = configured(launch={"workers": 0})
    cached = {"world": World(), "open_cache": open_cache}
    loaders = build_loaders(config, prepared(folder), image_format=COLOUR, **cached)
    assert isinstance(loaders.training.loader.dataset.store, SampleCache)  # type: ignore[attr-defined]
    remote = make_dataset(folder)
    remote.pairs = RemotePairs(replace(pair, image=Url("s3://bucket/a")) for pair in remote.pairs)
    drawn = make_dataset(folder)
    drawn.draw = lambda epoch, index: (index, None)  # type: ignore[assignment]
    for dataset in (remote, drawn):
        module.keep_in_memory([dataset], 1, World())
        assert dataset.store is None


def test_a_cache_that_others_can_write_to_is_not_used(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "unet_ddp").mkdir()
    (tmp_path / "unet_ddp").chmod(0o777)
    config = configured(launch={"workers": 0})
    data = prepared(folder)  # scanned: the notice is said there, and only once
    cached = {"world": World(), "open_cache": open_cache}
    loaders = build_loaders(config, data, image_format=COLOUR, **cached)
    assert loaders.notes == [] and len(list(loaders.training.loader)) > 0
    assert list((tmp_path / "unet_ddp").iterdir()) == []
    assert capsys.readouterr().err.count("not used as cache") == 1


class Closing:
    """A loader that notes its end."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("error", "closed"), [(None, 1), (UserError("a file"), 1), (RuntimeError("a fault"), 0)]
)
def test_reading_processes_are_ended_but_for_a_fault(error: Exception | None, closed: int) -> None:
    parts: list[Any] = [Closing(), Closing()]
    sampler = TrainingSampler(1, 1, rank=0, size=1, seed=0)
    try:
        with Loaders(TrainingBatches(parts[0], sampler, 1), parts[1], []):
            if error is not None:
                raise error
    except (UserError, RuntimeError) as raised:
        assert raised is error
    assert [part.closed for part in parts] == [closed, closed]


def test_closing_ends_the_processes(folder: Path) -> None:
    loader = SampleLoader(
        make_dataset(folder), ScoringSampler(8, rank=0, size=1), batch_size=1, workers=1
    )
    loader.close()  # none were started
    before = {*multiprocessing.active_children()}
    next(iter(loader))
    (process,) = {*multiprocessing.active_children()} - before
    loader.close()
    assert not process.is_alive()
    assert FORK == "fork" and callable(start_worker)


# -- object storage ------------------------------------------------------------------------


def read_epochs(folder: Path, cache: Path | None, workers: int) -> list[list[Sample]]:
    """Return the batches of two epochs, the second from its middle on."""
    kept = cache and SampleCache(cache, LABELS, COLOUR, scale=1.0, resize_masks=False)
    photo = Augmentation(COLOUR, "photo", None, seed=0)
    sampler = TrainingSampler(8, 2, rank=0, size=1, seed=0)
    dataset = make_dataset(folder, store=kept, augmentation=photo)
    loader = SampleLoader(dataset, sampler, batch_size=2, workers=workers)
    epochs = [list(loader)]
    sampler.start_at(1, 2)
    epochs.append(list(loader))
    loader.close()
    return epochs


def read_elsewhere(environment: dict[str, str], *args: Any) -> list[list[Sample]]:
    """Run `read_epochs` where nothing was forked before the client's keys were known."""
    os.environ.update(environment)
    return [[Sample(*(part.clone() for part in batch)) for batch in e] for e in read_epochs(*args)]


def assert_same(epochs: list[list[Sample]], wanted: list[list[Sample]]) -> None:
    for found, expected in zip(epochs, wanted, strict=True):
        assert len(found) == len(expected) and all(map(is_same, found, expected))


def check_requests(
    folder: Path, cache: Path, store: MemoryBucket | ObjectStore, read: Callable[..., Any]
) -> None:
    """Compare samples of `read` with those of a folder, with and without a cache."""
    wanted = read_epochs(folder, None, 0)

    def count(cache: Path | None) -> int:
        before = store.count_requests()
        assert_same(read(cache), wanted)
        return store.count_requests() - before - 2  # listings

    # Images and masks of an epoch and a half; the second may begin with what is still held.
    assert 2 * (8 + 4) - 8 <= count(None) <= 2 * (8 + 4)
    assert count(cache) == 2 * 8
    assert count(cache) == 0


def test_samples_from_storage_are_those_from_disk(
    folder: Path, tmp_path: Path, memory_store: MemoryBucket
) -> None:
    """Each object is fetched once for a sample."""
    url = put_folder(folder, Url("s3://bucket/loaders"))
    check_requests(
        folder, tmp_path / "cache", memory_store, lambda cache: read_epochs(url, cache, 0)
    )


@pytest.mark.thorough
def test_reading_processes_read_from_storage_through_faults(
    folder: Path, tmp_path: Path, object_store: ObjectStore, ranks: Ranks
) -> None:
    url = put_folder(folder, Url("s3://bucket/loaders"))

    def read(cache: Path | None) -> Any:
        (epochs,) = ranks.run(1, read_elsewhere, object_store.environment, url, cache, 2)
        return epochs

    object_store.set_fault("half", every=5)
    assert_same(read(None), read_epochs(folder, None, 0))
    object_store.set_fault("none")
    check_requests(folder, tmp_path / "cache", object_store, read)


def test_an_object_that_is_gone_is_the_error_of_a_file(
    folder: Path, memory_store: MemoryBucket
) -> None:
    url = put_folder(folder, Url("s3://bucket/gone"))
    dataset = make_dataset(url)
    delete(url / "masks" / "cx.png")
    loader = SampleLoader(dataset, ScoringSampler(8, rank=0, size=1), batch_size=2, workers=0)
    with pytest.raises(UserError, match=r"^s3://bucket/gone/masks/cx.png: not found$"):
        list(loader)
    loader.close()


def test_a_batch_that_a_process_cannot_send_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Queue, "_on_queue_feeder_error", None)  # as it was, in the end
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(gc, "freeze", mock.Mock())
    monkeypatch.setattr(module, "ignore_signals_in_worker", mock.Mock())
    module.start_worker(0)
    for error, shown in (
        (OSError(errno.EMFILE, ""), ""),
        (OSError(errno.EIO, ""), "OSError: [Errno 5]"),
    ):
        sys.excepthook(OSError, error, None)  # of the thread that hands over shared memory
        said = capsys.readouterr().err
        assert shown in said and bool(said) == bool(shown)
    queue: Any = SimpleNamespace(put=mock.Mock(), report=Queue._on_queue_feeder_error)  # type: ignore[attr-defined]
    queue.report(queue, OSError(errno.EMFILE, "Too many open files"), (7, ["a batch"]))
    queue.report(queue, OSError(errno.EMFILE, "Too many open files"), None)  # an end of its work
    (((number, error),),) = [call.args for call in queue.put.call_args_list]
    assert number == 7 and isinstance(error, RunError)
    assert "can't send what it has read ([Errno 24] Too many open files)" in str(error)
