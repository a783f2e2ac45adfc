"""The data set of the run that wrote a checkpoint."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from unet_ddp.checkpoints.file import Content
from unet_ddp.checks.check import prepare_data
from unet_ddp.checks.data_parts import SCORING
from unet_ddp.cli import with_saved
from unet_ddp.config import TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.labels import Labels
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.pairs import CLASSES_MARK, Pairs
from unet_ddp.data.readers.read import own_readers
from unet_ddp.data.splits import Split
from unet_ddp.errors import UserError
from unet_ddp.files import as_path, is_address

_WINDOWED = ("class_field", "window", "scale", "nodata")
"""Settings of a run by which its masks are read, and those by which a scene is divided."""

_ADVICE = "use --images and --masks"
_FLAG = re.compile(r"(?<!\S)--[a-z][\w-]*")
_COMMAND = re.compile(r"-m unet_ddp |\btrain with ")


def rebuild(
    content: Content, source: Path, labels: Labels, *, advice: str = _ADVICE
) -> PreparedData:
    """Find and split the pairs as the run did; some are for validation.

    `content` (see `SavedModel.run`) and `labels` come from the checkpoint `source`. Errors end in the `advice`.

    Raises:
        UserError: the checkpoint does not say which they were, or they are gone or others now.
    """
    saved = content.get("config")
    if not isinstance(saved, dict) or "images" not in saved:  # a shared file does not name its data
        raise UserError(f"{source} does not say which images it was validated on; {advice}")
    config = with_saved(TrainConfig(), saved)
    seed = config.optimization.seed
    names, moved = content.get("names"), content.get("moved") or ()
    # The run may have left out bad files; if it did not, they are said below.
    skipped = sys.maxsize if names else 0
    try:
        prepare = partial(
            prepare_data, config.data, seed=seed, parts=SCORING, labels=labels, moved=moved
        )
        data = prepare(skip_bad=skipped)
        if names and names != data.split.fingerprint:
            data = prepare()
    except UserError as error:
        places = config.data.images, config.data.masks, config.data.pairs_file
        reason = _with_readers(error, config.data.reader, places)
        if any(not path.is_absolute() for path in _list_lost(places)):
            advice = f"start in the folder where it was trained, or {advice}"
        raise UserError(
            f"{source}: the data of its run can't be read ({reason}); {advice}"
        ) from None
    if names and names != data.split.fingerprint:
        raise UserError(f"{source}: the images of its run or their split have changed; {advice}")
    if not data.split.validation:
        raise UserError(f"{source}: its run had no validation images; {advice}")
    return data


def advise_given(content: Content) -> str:
    """Return the advice to name other data: by --images alone, if the run's were a pack."""
    config = content.get("config")  # another program's may be anything
    saved = config if isinstance(config, dict) else {}
    is_pack = saved.get("images") is not None and saved.get("masks") is None
    return "use --images" if is_pack else _ADVICE


def find_given(
    images: str,
    masks: str | None,
    content: Content,
    labels: Labels,
    resolution: float | None = None,
) -> Pairs:
    """Return the pairs of two folders, or of a pack, whose masks become classes as in the run of a checkpoint.

    Args:
        images: folder of the images, or the pack.
        masks: folder of the masks; None for a pack.
        content: of the run, as the checkpoint has it.
        labels: of the checkpoint.
        resolution: metres of the network's pixels on the ground, where known.
    """
    config = content.get("config")  # another program's may be anything
    saved = config if isinstance(config, dict) else {}
    names = *(_WINDOWED if saved.get("window") else _WINDOWED[:1]), "reader"
    how = with_saved(TrainConfig(), {name: saved.get(name) for name in names}).data
    ignore = labels.ignore if labels.void is None else labels.void
    how = replace(how, overlap=labels.may_overlap, ignore_index=ignore, validation=0)
    how = replace(how, ground_resolution=resolution)  # also of a run without the flag
    places = as_path(images), None if masks is None else as_path(masks)
    find = partial(find_pairs, *places, planes=how.overlap, names=labels.names or ())
    try:
        pairs = find(config=replace(how, window=None))
    except UserError as error:
        known = ("--images", "--masks")
        raise UserError(_with_readers(error, how.reader, (images, masks), known)) from None
    is_whole = pairs.scanned is not None or any(CLASSES_MARK in pair.mask.parts for pair in pairs)
    if is_whole or how.window is None:
        return pairs
    pairs = find(config=how)  # a scene may be too large to read whole
    with advising():
        return pairs.settle(Split(pairs[:0], pairs, ""), how).validation


@contextmanager
def advising(*known: str) -> Iterator[None]:
    """Return a context whose UserErrors have no advice of train.py or predict.py, but for the flags that are `known`."""
    try:
        yield
    except UserError as error:
        raise type(error)(_without_flags(str(error), known)) from None


def _with_readers(
    error: UserError,
    names: Sequence[str],
    places: Iterable[str | None],
    known: Collection[str] = (),
) -> str:
    """Return why data at places that exist can't be read: by whom the run did, if nobody has named them since.

    Advice of train.py is left out, but for the flags that are `known`.
    """
    reason = _without_flags(str(error), known)
    if set(names) <= {*own_readers()} or _list_lost(places):
        return reason
    flag = f"--reader {shlex.join(names)}"
    return f"{reason}; its run used {flag}, and a checkpoint starts no code: if you trust it, type {flag}, too"


def _list_lost(places: Iterable[str | None]) -> list[Path]:
    """Return the folders and files among the places of a run's data that do not exist here."""
    local = [as_path(place) for place in places if place and not is_address(place)]
    return [path for path in local if not path.exists()]


def _without_flags(text: str, known: Collection[str]) -> str:
    """Return a message without advice whose flags are not `known`; a whole command to type may have others.

    Advice stands after the first comma or semicolon: "a.png: is small; enlarge it, or use --crop-size".
    """
    clauses = []
    for k, clause in enumerate(text.split("; ")):
        parts = clause.split(", ")
        kept = [
            part
            for j, part in enumerate(parts)
            if {*_FLAG.findall(part)} <= {*known} or _COMMAND.search(part) or not (k or j)
        ]
        if len(kept) < len(parts) and clause.startswith("if "):
            continue
        if kept:
            clauses.append(", ".join(kept).removeprefix("or "))
    return "; ".join(clauses)


def resizes_masks(content: Content) -> bool:
    """Return whether the run of a checkpoint resized masks to their images."""
    config = content.get("config")  # another program's may be anything
    return isinstance(config, dict) and config.get("resize_masks") is True
