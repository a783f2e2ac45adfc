"""A look at a whole data set: what there is, what is wrong with it, what looks wrong.

A run stops at the first kind of problem; with `everything`, as the doctor wants it, all are noted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from unet_ddp.config import DataConfig
from unet_ddp.data.checks.metadata import ImageMetadata, MaskMetadata
from unet_ddp.data.checks.rules import (
    check_channels,
    common_format,
    compare_kinds,
    compare_nodata,
    compare_palettes,
    compare_sizes,
)
from unet_ddp.data.checks.scan import Findings, Progress, scan
from unet_ddp.data.checks.summary import (
    copies_across,
    describe_classes,
    describe_images,
    describe_split,
    note_alpha,
    suspect_classes,
    suspect_images,
)
from unet_ddp.data.demo import write_demo
from unet_ddp.data.formats.header import SUFFIXES, ImageFormat, bits_of
from unet_ddp.data.formats.read import read_header
from unet_ddp.data.label_rules import MaskValues, choose_labels, soft_edges
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Matches, Pair, match, note_orphans, read_list, refuse
from unet_ddp.data.splits import Split, group_of, split_by_folders, split_pairs
from unet_ddp.errors import UserError

HOME = Path("data")
_ASKED = 100  # headers that are read in the place of a scan
Result = TypeVar("Result")


@dataclass
class Inspection:
    """What was found in a data set, good and bad; later parts are None where earlier ones failed."""

    everything: bool
    problems: list[str] = field(default_factory=list)
    """What makes it unfit to train on."""
    warnings: list[str] = field(default_factory=list)
    """What is likely to be a mistake."""
    notes: list[str] = field(default_factory=list)
    matches: Matches | None = None
    validation: Matches | None = None
    """Of the folders for validation, where there are such."""
    found: Findings | None = None
    format: ImageFormat | None = None
    labels: Labels | None = None
    split: Split | None = None
    groups: dict[str, str] = field(default_factory=dict)
    copies: list[tuple[Pair, Pair]] = field(default_factory=list)
    """Validation pairs whose images are copies of training images, with those."""

    def blame(self, problems: list[str]) -> None:
        """Note what is wrong; a run stops here.

        Raises:
            UserError: there is something, and not everything is wanted.
        """
        self.problems += problems
        if not self.everything:
            refuse(problems)

    def attempt(self, work: Callable[[], Result]) -> Result | None:
        """What `work` returns; None where it fails and everything is wanted."""
        try:
            return work()
        except UserError as error:
            self.blame([str(error)])
            return None


def check_dataset(
    config: DataConfig,
    *,
    seed: int,
    progress: Progress,
    workers: int = 1,
    labels: Labels | None = None,
    skip_bad: int = 0,
    everything: bool = False,
) -> Inspection:
    """Look at the data set that `config` names.

    Args:
        everything: note all problems and go on, as far as can be; else raise the first.

    Raises:
        UserError: a problem, unless `everything`.
    """
    data = Inspection(everything)
    _find(config, data)
    pairs = [
        *(data.matches.pairs if data.matches else []),
        *(data.validation.pairs if data.validation else []),
    ]
    if not pairs:
        data.blame([] if data.problems else ["no pairs of image and mask"])
        return data
    _split(config, data, seed)
    if config.skip_scan:
        data.found = data.attempt(lambda: _trust(pairs)) or Findings([], [], [])
    else:
        data.found = scan(
            pairs,
            progress=progress,
            workers=workers,
            nodata=config.nodata,
            channels=config.channels,
        )
    _bear(data, skip_bad)
    if data.found.pairs:
        _agree(config, data)
        data.labels = labels or data.attempt(lambda: _label(config, data))
        _remark(config, data)
    return data


def _find(config: DataConfig, data: Inspection) -> None:
    """Pairs, from a list or two folders, and those for validation alone."""

    def find() -> Matches:
        if config.pairs_file is not None:
            return read_list(Path(config.pairs_file))
        images, masks, notes = _folders(config)
        data.notes += notes
        return match(images, masks, suffix=config.mask_suffix)

    data.matches = data.attempt(find)
    if data.matches is not None:
        data.blame(data.matches.problems)
    if config.val_images is not None and config.val_masks is not None:
        images, masks = Path(config.val_images), Path(config.val_masks)
        data.validation = data.attempt(lambda: match(images, masks, suffix=config.mask_suffix))
        if data.validation is not None:
            data.blame(data.validation.problems)
            renamed = [replace(p, name=f"validation/{p.name}") for p in data.validation.pairs]
            data.validation = replace(data.validation, pairs=renamed)
    for found in (data.matches, data.validation):
        if found is not None and found.orphans:
            data.notes.append(note_orphans(found))


def _folders(config: DataConfig) -> tuple[Path, Path, list[str]]:
    """Where the data is; the demo set where none was given and none lies in its place."""
    if config.images is not None and config.masks is not None:
        return Path(config.images), Path(config.masks), []
    images, masks = HOME / "imgs", HOME / "masks"
    if _holds_images(images) or _holds_images(masks):
        return images, masks, []
    demo = write_demo(HOME / "demo")
    note = f"no data: {images} and {masks} are empty, so this is the built-in demo set in {demo}"
    return demo / "imgs", demo / "masks", [note]


def _holds_images(folder: Path) -> bool:
    return folder.is_dir() and any(
        path.suffix.lower() in SUFFIXES or path.is_dir() for path in folder.iterdir()
    )


def _split(config: DataConfig, data: Inspection, seed: int) -> None:
    """Which pairs are for validation."""
    pairs = data.matches.pairs if data.matches else []

    def divide() -> Split:
        if data.validation is not None:
            return split_by_folders(pairs, data.validation.pairs)
        return split_pairs(
            pairs,
            validation=config.validation,
            seed=seed,
            pattern=config.group_pattern,
            folds=(config.folds, config.fold) if config.folds and config.fold else None,
        )

    data.split = data.attempt(divide) if pairs else None
    if data.split is not None:
        data.groups = group_of(pairs, config.group_pattern)


def _trust(pairs: list[Pair]) -> Findings:
    """What the first pair's headers say, taken for all, with no file decoded.

    A few more are asked whether they agree; one that does not is found when it is read.
    """
    image, mask = read_header(pairs[0].image), read_header(pairs[0].mask)
    for pair in pairs[:: max(1, len(pairs) // _ASKED)]:
        other = read_header(pair.image)
        if (other.channels, other.dtype) != (image.channels, image.dtype):
            raise UserError(
                f"--skip-scan: {pair.image} has {other.channels} channel(s), {bits_of(other.dtype)}, "
                f"{pairs[0].image} has {image.channels}, {bits_of(image.dtype)}; leave the flag out"
            )
    return Findings(
        pairs[:1],
        [
            ImageMetadata(
                image.width,
                image.height,
                image.channels,
                image.dtype,
                image.has_alpha,
                image.nodata,
                "-",
            )
        ],
        [
            MaskMetadata(
                mask.width, mask.height, mask.is_colour, mask.is_lossy, mask.palette, (), ()
            )
        ],
    )


def _bear(data: Inspection, skip_bad: int) -> None:
    """Files that can't be read are a problem, unless so many are to be borne."""
    assert data.found is not None
    errors = list(data.found.errors.values())
    if len(errors) <= skip_bad and data.found.pairs:
        data.warnings += [f"{line}; borne (--skip-bad-files)" for line in errors]
    else:
        data.blame(errors)


def _agree(config: DataConfig, data: Inspection) -> None:
    """What files must have in common."""
    assert data.found is not None
    if not config.resize_masks:
        data.blame(compare_sizes(data.found))
    data.blame(compare_kinds(data.found))
    if config.palette is None or not data.found.masks[0].palette:
        data.blame(compare_palettes(data.found))
    if config.nodata is None:
        data.blame(compare_nodata(data.found))
    data.blame(check_channels(data.found, config.channels))
    data.format = common_format(data.found, channels=config.channels, nodata=config.nodata)
    if config.nodata is None and data.format.nodata is not None:
        value = f"{data.format.nodata:g}"
        data.notes.append(f"no-data value {value}, as the files say: such pixels count nowhere")
    data.notes += note_alpha(data.found, data.format)
    if config.skip_scan and data.format.dtype != "uint8":
        data.blame(
            [f"--skip-scan: {data.format.dtype} images need the scan, which measures their range"]
        )


def _label(config: DataConfig, data: Inspection) -> Labels:
    assert data.found is not None
    values = data.found.mask_values()
    if config.skip_scan:
        values = _declared(config, values)
    labels = choose_labels(values, config)
    edges = soft_edges(values, labels)
    data.warnings += [edges] if edges else []
    return labels


def _declared(config: DataConfig, values: MaskValues) -> MaskValues:
    """The values that flags name, for masks that nobody looked at."""
    if config.palette is not None:
        return replace(values, counts={})
    if config.binary or config.mask_threshold is not None:
        return replace(values, counts={0: 1, 0xFFFFFF if values.rgb else 65535: 1})
    if config.classes is None or values.rgb:
        raise UserError(
            "--skip-scan: nobody looks into the masks, so give --palette FILE, or --classes N for "
            "the values 0 to N-1, or --binary"
        )
    return replace(values, counts=dict.fromkeys(range(config.classes), 1), lossy=None)


def _remark(config: DataConfig, data: Inspection) -> None:
    """Say what there is, and warn of what looks wrong."""
    found, labels, split = data.found, data.labels, data.split
    assert found is not None and data.format is not None
    sides = (split.training, split.validation) if split is not None else ()
    count = sum(map(len, sides)) or len(found.pairs)
    data.notes.append(describe_images(found, data.format, count=count, scale=config.scale))
    data.notes += [describe_classes(labels)] if labels else []
    if split is not None:
        data.notes.append(describe_split(split))
        data.copies = copies_across(found, split)
    data.warnings += suspect_images(found, data.copies)
    if split is not None and labels is not None and not config.skip_scan:
        data.warnings += data.attempt(lambda: suspect_classes(found, labels, split)) or []
