"""The names of the files that a job writes; existing ones are only replaced with --overwrite."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unet_ddp.data.labels import Labels
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError
from unet_ddp.files import check_no_input, check_writable, identify_path, remove_stale
from unet_ddp.prediction.config import LABELME, PredictConfig
from unet_ddp.prediction.outputs.lists import remove_stale_shards
from unet_ddp.prediction.outputs.masks import probability_paths
from unet_ddp.storage import Url, as_path, exists, list_objects

_LONGEST_NAME = 255 - len("." + f".{2**22}.RANDOM78.tmp")  # bytes
_FEW = 20  # objects; to ask for each is then faster than to list a folder
_MASK_SUFFIXES = (".png", ".tif", ".tiff")


@dataclass(frozen=True)
class ImageFiles:
    """An image and the files of its prediction."""

    index: int  # position among the job's images
    source: Source
    mask: Path
    overlay: Path | None
    probabilities: list[Path]
    labelme: Path | None = None

    @property
    def image(self) -> Path:
        """The image's path."""
        return self.source.path

    def outputs(self) -> Iterator[Path]:
        """Yield the files to write."""
        yield self.mask
        yield from filter(None, (self.overlay, self.labelme))
        yield from self.probabilities


def name_outputs(
    images: Mapping[Source, bool], config: PredictConfig, labels: Labels, *, models: Sequence[Path]
) -> list[ImageFiles]:
    """Return the files of each image (is it on a map?), once they and the lists can be written.

    Raises:
        UserError: two outputs would be one file or one is an input, exists, or can't be written.
    """
    masks, files = _name_masks(images, config, labels), []
    for index, (image, mask) in enumerate(zip(images, masks, strict=True)):
        base = mask.with_name(mask.stem.removesuffix("_mask"))
        overlay = base.with_name(f"{base.name}_overlay.png") if config.overlay else None
        probabilities = probability_paths(base, config.probabilities, labels)
        labelme = base.with_name(f"{base.name}.json") if config.annotations == LABELME else None
        files.append(ImageFiles(index, image, mask, overlay, probabilities, labelme))
    lists = list(config.lists.items())
    written = [path for each in files for path in each.outputs()]
    _check_distinct(files, lists)
    inputs = [("input", as_path(name)) for name in config.inputs]
    inputs += [("model", path) for path in models] + [("image", image.path) for image in images]
    check_no_input([*(("--output", path) for path in written), *lists], inputs)
    for folder in {mask.parent for mask in masks}:
        check_writable(folder, "--output")
    _check_new(_list_annotations(files) if config.skip_existing else written, "--output", config)
    for flag, path in lists:
        if os.path.isdir(path):
            raise UserError(f"{flag} {path}: is a folder; give a file")
        check_writable(path.parent, flag)
        _check_new([path], flag, config)
    for _, path in lists:
        remove_stale_shards(path)
    remove_stale(path for path in (*written, *(p for _, p in lists)) if not isinstance(path, Url))
    return files


def find_done(files: Sequence[ImageFiles]) -> list[ImageFiles]:
    """Return those of which all files exist."""
    existing = find_existing(path for each in files for path in each.outputs())
    return [each for each in files if existing.issuperset(each.outputs())]


def find_existing(paths: Iterable[Path]) -> set[Path]:
    """Return those that exist; objects are asked for if they are few, else their folders listed."""
    existing: set[Path] = set()
    folders: dict[Url, list[Path]] = {}
    for path in paths:
        if isinstance(path, Url):
            folders.setdefault(path.parent, []).append(path)
        elif os.path.exists(path):  # pathlib's raises for names that are too long
            existing.add(path)
    for folder, wanted in folders.items():
        if len(wanted) < _FEW:
            existing.update(path for path in wanted if isinstance(path, Url) and exists(path))
        else:
            found = {key for key, _, _ in list_objects(folder, is_deep=False)}
            existing.update(path for path in wanted if path.name in found)
    return existing


def check_length(files: ImageFiles) -> UserError | None:
    """Return an error if a file of an image, or its temporary file, has too long a name."""
    for path in files.outputs():
        if len(os.fsencode(path.name)) > _LONGEST_NAME:
            return UserError(f"{files.image}: the name of {path} is too long; rename the image")
    return None


def _name_masks(images: Mapping[Source, bool], config: PredictConfig, labels: Labels) -> list[Path]:
    output = as_path(config.output) if config.output else None
    if output is not None and len(images) == 1 and output.suffix and not os.path.isdir(output):
        if output.suffix.lower() not in _MASK_SUFFIXES:
            raise UserError(f"--output {output}: a mask keeps its values in .png or .tif only")
        masks = [output]
    else:
        masks = []
        for image, is_on_map in images.items():
            default = "tif" if is_on_map else labels.mask_suffix
            ending = default if config.mask_format == "auto" else config.mask_format
            masks.append((output or image.path.parent) / f"{image.path.stem}_mask.{ending}")
    if labels.mask_suffix == "tif" and masks[0].suffix.lower() == ".png":
        raise UserError(
            f"{masks[0]}: values of several classes of objects need 32 bit; name a .tif with "
            "--output, or leave --mask-format png out"
        )
    return masks


def _check_new(paths: Iterable[Path], flag: str, config: PredictConfig) -> None:
    paths = list(paths)
    existing = set() if config.overwrite else find_existing(paths)
    for path in paths:
        if path in existing:
            raise UserError(f"{path}: already exists; use --overwrite, or another {flag}")


def _list_annotations(files: Sequence[ImageFiles]) -> Iterator[Path]:
    """Yield Labelme's files, written last: one that exists without the image's others is a person's."""
    done = {each.index for each in find_done(files)}
    yield from (each.labelme for each in files if each.labelme and each.index not in done)


def _check_distinct(files: Iterable[ImageFiles], lists: Sequence[tuple[str, Path]]) -> None:
    """Check that no two outputs are one file."""
    owners: dict[tuple[object, ...], str] = {}
    of_images = ((str(each.image), path) for each in files for path in each.outputs())
    for owner, path in (*of_images, *lists):
        other = owners.get(key := identify_path(path))
        owners[key] = owner
        if other is not None:
            advice = "predict them separately and use --output"
            if owner.startswith("--"):
                advice = "name another file"
            raise UserError(f"{other} and {owner} would both write {path}; {advice}")
