"""Check that a resumed run continues with the data that it began with."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from shlex import quote

import numpy as np
import torch
from torch import Tensor

from unet_ddp.checkpoints.file import Content
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.pairs import Pair, Pairs, Stamp, find_stamp
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.data.readers.read import read_mask
from unet_ddp.data.splits import Split
from unet_ddp.errors import UserError, count_of
from unet_ddp.settings import as_flag
from unet_ddp.storage import real_file

_SPLITS = ("validation", "fold", "group_pattern", "seed")
_SAMPLED = 16  # pairs whose contents are read


def check_same_data(
    saved: Content, data: PreparedData, source: Path, typed: Set[str] = frozenset()
) -> list[str]:
    """Check that `data` is what the run of the checkpoint `source` was trained on.

    A file may have been repaired, and a mask corrected: that is a note. The settings that the command line has
    `typed` are the likely causes of another split.

    Returns:
        Lines for the user.

    Raises:
        UserError: other names, another format or split, or other images under the same names.
    """
    then, now = Preprocessing.from_dict(saved["preprocessing"]), data.format
    new = advise_new_run(source)
    use = "use its --images, --masks, --validation, --fold and --seed"
    own = f"{use}, or {new}"
    causes = ", ".join(f"leave {as_flag(name)} out" for name in _SPLITS if name in typed)
    split = f"{causes or use}, or {new}"
    # Of other images the order, and so the position in the epoch, would mean nothing.
    if saved["names"] != data.split.fingerprint:
        where = _name_difference(data.split, source.parent / "split.csv")
        raise UserError(
            f"--resume: the images or the split differ from those that the run started with{where}; {split}"
        )
    if (then.channels, then.dtype) != (now.channels, now.dtype):
        raise UserError(
            f"--resume: the images have {count_of(now.channels, 'channel')} of {now.dtype}, those that the run "
            f"started with {then.channels} of {then.dtype}; {own}"
        )
    crop = list(data.crop_size) if data.crop_size else None
    if saved["crop_size"] != crop:
        raise UserError(
            f"{_name_cause(typed)}: it would train on {_show_crop(crop)}, not on {_show_crop(saved['crop_size'])}; {own}"
        )
    return _compare_files(saved["files"], data.split, own)


def _name_cause(typed: Set[str]) -> str:
    """Return what may have changed the size of the crops, for a message."""
    if "crop_size" in typed:
        return "--crop-size: is not the run's, leave it out"
    return "--resume: the sizes of the images differ from those that the run started with"


def _show_crop(crop: list[int] | None) -> str:
    return "whole images" if crop is None else f"crops of {crop[1]}x{crop[0]}"


def _compare_files(then: Tensor, split: Split, advice: str) -> list[str]:
    now = measure_files(split)
    if then.shape != now.shape:
        return []
    differs = (then != now).any(1)  # (N,)
    if not differs.any():
        return []
    pairs = [*split.training, *split.validation]
    row, column = (then != now).nonzero()[0].tolist()
    first = real_file((pairs[row].image, pairs[row].mask)[column])
    what = f"{int(differs.sum())} of {len(pairs)} pairs, first {first}"
    if differs[_sample(len(pairs))].float().mean() > 0.5:
        raise UserError(
            f"--resume: other images or masks under the names that the run started with ({what}); {advice}"
        )
    return [f"warning: files have changed since the run started: {what}"]


def measure_files(split: Split) -> Tensor:
    """Return (N, 2) int64: the size in bytes of each pair's image and mask, -1 without a file.

    Some pairs have checksums instead, as uncompressed files are of one size, and a file of polygons is the mask of
    many images: its pixels on an image tell whether that mask has changed. For packs and objects in
    storage, which do not change, N is 0.
    """
    if any(side.storage or side.scanned is not None for side in (split.training, split.validation)):
        return torch.zeros(0, 2, dtype=torch.int64)
    sampled = _sample(len(split.training) + len(split.validation))
    rows: list[list[int]] = []
    for side in (split.training, split.validation):
        for pair in side:
            reads = len(rows) in sampled
            image, mask = pair.stamps
            rows.append(
                [
                    _measure(side, pair.image, image, reads=reads),
                    _measure(side, pair.mask, mask, reads=reads, is_mask=True),
                ]
            )
    return torch.tensor(rows)


def _sample(count: int) -> list[int]:
    rows = np.linspace(0, count - 1, _SAMPLED).astype(int)
    return sorted(set(rows.tolist()))


def _measure(
    pairs: Pairs, path: Path, stamp: Stamp | None, *, reads: bool, is_mask: bool = False
) -> int:
    """Return the checksum of a path's files if it `reads` them, else their size; without a file its stamp's, or -1."""
    try:
        if reads and is_mask and real_file(path) != path:  # a part of a file
            with suppress(UserError):  # of several bands: its size, then
                return zlib.crc32(read_mask(path).tobytes())
            return (stamp or find_stamp(path))[0]
        files = pairs.files_of(path) if reads else ()
        if not files:
            return (stamp or find_stamp(path))[0]
        checksum = 0
        for file in files:
            checksum = zlib.crc32(file.read_bytes(), checksum)
        return checksum
    except (OSError, UserError):
        return stamp[0] if stamp else -1  # an item of a data set has a checksum there


def advise_new_run(source: Path) -> str:
    """Return what to type for a new run from the weights of the checkpoint `source`."""
    return f"start a new run with --load {quote(str(source))} and --exp-name NAME"


def _name_difference(split: Split, listing: Path) -> str:
    """Return the first image that only the set or only the run's split.csv has, in brackets."""
    try:
        with listing.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            then = {row["image"] for row in csv.DictReader(file)}
    except (OSError, KeyError, csv.Error):  # a pack's run has none
        return ""
    pairs: list[Pair] = [*split.training, *split.validation]
    now = {str(pair.image.absolute()) for pair in pairs}
    if now.isdisjoint(then):
        return ""
    for names, what in ((now - then, "new"), (then - now, "missing")):
        if names:
            return f" ({min(names)} is {what})"
    return ""
