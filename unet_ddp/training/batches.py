"""The loaders of a run: what reads a rank's share of the training and validation images."""

from __future__ import annotations

import secrets
from typing import Any

from unet_ddp.config import TrainConfig
from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.cache import Contents, SampleCache, open_cache
from unet_ddp.data.checks.prepare import PreparedData
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.formats.header import ImageFormat
from unet_ddp.data.loaders import (
    SampleLoader,
    ScoringSampler,
    Tolerance,
    TrainingSampler,
    count_workers,
    make_loader,
)
from unet_ddp.data.pairs import Pair
from unet_ddp.distributed.world import World
from unet_ddp.training.batch_size import available_memory

_MOST, _MESSAGE = 8, 2**21  # images, and bytes, of what validation fetches at once
_READING = 0.8  # of --timeout for a batch to be read: before the other ranks give up on this one


class Reader:
    """Makes the loaders of one rank.

    Args:
        form: what the network takes.
    """

    def __init__(
        self, config: TrainConfig, world: World, data: PreparedData, form: ImageFormat
    ) -> None:
        self.config = config
        self.world = world
        self.data = data
        self.format = form
        self.bad = Tolerance(world, config.launch.skip_bad_files)
        self.cache, self.notes = self._open_cache()

    def training(self) -> tuple[SampleLoader, TrainingSampler]:
        """This rank's training batches, and the sampler that says from which step on.

        Raises:
            UserError: there are fewer images than a step takes.
        """
        options, data = self.config.optimization, self.data
        assert isinstance(options.batch_size, int)
        sampler = TrainingSampler(
            len(data.split.training),
            options.batch_size * options.accumulate,
            rank=self.world.rank,
            size=self.world.size,
            seed=options.seed,
        )
        augmentation = Augmentation.for_images(
            data.format, self.config.data.augmentation, data.crop_size, seed=options.seed
        )
        dataset = self._dataset(
            data.split.training,
            augmentation=augmentation,
            size=None if data.crop_size else data.smallest,
            bad="replaced" if self.bad.most else "told",
        )
        return self._loader(dataset, sampler, options.batch_size), sampler

    def validation(self) -> SampleLoader | None:
        """This rank's share of the validation images, one at a time.

        So every image is computed the same way on any number of ranks, at any size. Small ones of
        one size are fetched several at once: a message from a reading process takes 2 ms.
        """
        pairs = self.data.split.validation
        if not pairs:
            return None
        count, size = 1, self.data.one_size
        if size is not None:
            count = max(1, min(_MOST, _MESSAGE // self.format.bytes_with_mask(*size)))
        dataset = self._dataset(pairs, size=size, bad="left out" if self.bad.most else "told")
        sampler = ScoringSampler(len(pairs), rank=self.world.rank, size=self.world.size)
        return self._loader(dataset, sampler, count, singly=True)

    def _dataset(self, pairs: list[Pair], **more: Any) -> SegmentationDataset:
        options = self.config.data
        return SegmentationDataset(
            pairs,
            self.data.labels,
            self.format,
            scale=options.scale,
            resize_masks=options.resize_masks,
            cache=self.cache,
            **more,
        )

    def _loader(
        self,
        dataset: SegmentationDataset,
        sampler: TrainingSampler | ScoringSampler,
        batch_size: int,
        *,
        singly: bool = False,
    ) -> SampleLoader:
        return make_loader(
            dataset,
            sampler,
            batch_size=batch_size,
            workers=count_workers(self.world, self.config.launch.workers),
            pin=self.world.device.type == "cuda",
            note=self.bad.note,
            singly=singly,
            timeout=_READING * self.config.launch.timeout,
        )

    def _open_cache(self) -> tuple[SampleCache | None, list[str]]:
        """The cache that --cache asks for, and what is to be said of it; none where it can't be."""
        launch, world = self.config.launch, self.world
        if not launch.cache:
            return None, []
        token = world.on_main(lambda: secrets.token_hex(8))
        cache: SampleCache | None = None
        try:
            cache, note = open_cache(
                "disk",
                self._contents(),
                limit=None,
                memory=available_memory(),
                token=token,
            )
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            note = f"warning: --cache: {where}{error.strerror or error}; the run goes on without it"
        notes = world.gather(note)
        warnings = {line for line in notes if line.startswith("warning")}
        # The process that came first has made it, and knows why: its line is the longest.
        return cache, sorted(warnings) or [max(notes, key=len)]

    def _contents(self) -> Contents:
        data = self.data
        pairs = sorted([*data.split.training, *data.split.validation], key=lambda pair: pair.name)
        return Contents(
            pairs,
            [data.sizes.get(pair.name, data.smallest) for pair in pairs],
            data.labels,
            self.format,
            self.config.data.scale,
            self.config.data.resize_masks,
        )
