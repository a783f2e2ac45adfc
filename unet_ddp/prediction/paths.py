"""The files of a job: the images that a user means, and the names of what is written.

Existing files are only replaced with --overwrite.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

from unet_ddp.data.labels import Labels
from unet_ddp.data.listing import has_in_head
from unet_ddp.data.names import SERVICE_FOLDERS, find_spelling, is_hidden, tell_apart
from unet_ddp.data.other_files import PACK_INDEX, describe_others, find_other_images
from unet_ddp.data.readers.base import Scene
from unet_ddp.data.readers.microscopes import advise_export
from unet_ddp.data.readers.read import Source, can_read, find_readers, list_suffixes
from unet_ddp.errors import UserError, print_lines
from unet_ddp.files import as_path, is_address
from unet_ddp.files.contents import read_text
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.output_checks import check_written, is_folder
from unet_ddp.prediction.outputs.base import ImageFiles, Output
from unet_ddp.prediction.outputs.image_files import PROGRAM
from unet_ddp.prediction.outputs.own import list_files
from unet_ddp.prediction.world_files import warn_of_world_files

_OUTPUT_ENDINGS = ("_mask", "_overlay", "_probabilities")
_MOST_FILES = 10_000  # of sub-folders that are looked at
_OF_MASKS = re.compile("mask|label|annot|truth", re.IGNORECASE)  # in the name of a folder
_MASK_SUFFIXES = (".png", ".tif", ".tiff")


class _Found(NamedTuple):
    """The images at an input, and of a folder or pattern all entries and what it is without images."""

    place: Path
    images: list[Path]
    entries: Sequence[Path] = ()
    fault: str = ""


def find_images(inputs: Sequence[str]) -> list[Path]:
    """Return the images among files, folders, patterns and lists, each once; print what may be images and is none of them.

    Skipped are masks and overlays that an earlier prediction left next to their images.

    Raises:
        UserError: a path that does not exist, or a folder, pattern or list without images.
    """
    if not inputs:
        raise UserError("no inputs: give images, or folders of images")
    found = []
    for path, name in zip(map(as_path, inputs), inputs, strict=True):
        try:
            found.append(_find_at(path, name))
        except OSError as error:
            raise UserError(f"{path}: can't be read: {error.strerror or error}") from None
    images = [*dict.fromkeys(image for each in found for image in each.images)]
    searched = [each for each in found if each.fault]
    named = [each.place for each in found] + images if searched else []
    taken = {os.path.realpath(str(path)) for path in named}  # its text: no address is fetched
    for each in searched:
        _report_left(each, taken)
    return images


def _find_at(path: Path, name: str) -> _Found:
    if path.is_dir():
        entries = sorted(path.iterdir())
        fault = f"contains no images ({', '.join(list_suffixes())})"
        return _Found(path, _without_outputs(entries), entries, fault)
    if path.exists():  # a file of any kind
        if path.name == PACK_INDEX:
            return _Found(path.parent, [], [path], "contains no images")
        return _Found(path, _in_list(path) if path.suffix.lower() == ".txt" else [path])
    if glob.has_magic(name):
        folder = next(filter(Path.is_dir, path.parents))
        pattern = f"{glob.escape(str(folder))}/{path.relative_to(folder)}"  # it may have brackets
        matches = [*map(Path, sorted(glob.glob(pattern, recursive=True)))]
        return _Found(path, _without_outputs(matches), matches, "matches no image")
    raise UserError(f"{path}: not found")


def _report_left(found: _Found, taken: Set[str]) -> None:
    """Print what may be images of a folder or pattern and is not `taken`; raise a UserError if there are none."""
    place, images, entries, fault = found
    readable = {path: can_read(path.suffix.lower()) for path in entries}
    others, known = (
        [str(path) for path in entries if readable[path] is is_known] for is_known in (False, True)
    )
    left = describe_others(find_other_images(others, known))
    if below := _find_below(place, {path.stem for path in images}, taken):
        pattern = shlex.quote(f"{place}/**/*")
        left.append(f"sub-folders, e.g. {below}: name them, or {pattern} for all")
    if not images:
        if pack := _find_pack(place, entries):
            raise UserError(
                f"{pack}: is a pack: score it with python -m unet_ddp evaluate --images {shlex.quote(str(pack))}, or predict the "
                "folder of its images"
            )
        advice = advise_export(entries, "; ".join(left) or "export others as TIFF or PNG")
        raise UserError(f"{place}: {fault}; {advice}")
    if left:
        print_lines(f"left out of {place}: {'; '.join(left)}")


def _find_pack(place: Path, entries: Sequence[Path]) -> Path | None:
    """Return a pack among entries, or that they or a pattern lie in; at an address, by the entries' names."""
    around = [path.parent for path in (entries if place.is_dir() else [*entries, place])]
    folders = dict.fromkeys([*around, *entries])
    listed = {*entries}
    for folder in folders:
        index = folder / PACK_INDEX
        if index in listed or (not is_address(folder) and os.path.isfile(index)):
            return folder
    return None


def _find_below(folder: Path, stems: Set[str], taken: Set[str]) -> Path | None:
    """Return a sub-folder with an image that is not `taken`, no output and no mask of those named `stems`; a run's has none."""
    rest = _MOST_FILES
    for parent, folders, names in () if is_address(folder) else os.walk(folder):
        here = Path(parent)
        if any(name.endswith(".pt") for name in names):
            folders.clear()
            continue
        seen = sorted(name for name in folders if os.path.realpath(here / name) not in taken)
        folders[:] = [each for each in seen if not (is_hidden(each) or _OF_MASKS.search(each))]
        for path in map(here.joinpath, names if here != folder else ()):
            if (
                can_read(path.suffix.lower())
                and not is_hidden(path.name)
                and path.stem not in stems
                and os.path.realpath(path) not in taken
                and not _is_output(path)
            ):
                return here
            rest -= 1
        if rest <= 0:
            break
    return None


def _is_output(path: Path) -> bool:
    """Return whether a file is named as an output, whose image may be gone, or names this program in its head."""
    named = _origins(path) or _origins_of_class(path, "_mask_")
    return bool(named) or has_in_head(str(path), PROGRAM.encode())


def _in_list(path: Path) -> list[Path]:
    """Return the paths in a list: addresses, or from the current folder, or else from the list's.

    Empty lines and comments (#) are skipped. A file that is no image is reported once it is read. Names need not be UTF-8.
    """
    try:
        text = read_text(path, "a list of images", errors="surrogateescape")
        if "\0" in text:
            raise OSError("it is not UTF-8 text")
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path}: can't be read as a list of images: {reason}") from None
    lines = map(str.strip, text.splitlines())
    names = [line for line in lines if line and not line.startswith("#")]
    if not names:
        raise UserError(f"{path}: contains no images; a list has one path per line")
    images = []
    for name in names:
        if "://" in name or is_address(path):
            is_whole = "://" in name or os.path.isabs(name)
            images.append(as_path(name) if is_whole else path.parent / name)
            continue
        here = find_spelling(Path(), name)
        if not os.path.exists(here):
            here = str(path.parent / find_spelling(path.parent, name))
        images.append(as_path(here))
    return images


def _without_outputs(paths: Iterable[Path]) -> list[Path]:
    """Return the images among `paths`, without those that are predicted from another of them."""
    images = [
        path
        for path in paths
        if can_read(path.suffix.lower())
        and not path.name.startswith(".")
        and SERVICE_FOLDERS.isdisjoint(path.parts)
        and not path.is_dir()
    ]
    # By their names alone: --output puts the outputs of a pattern's many folders into one.
    known = {path.stem for path in images}
    # Classes that overlap are two or more, and each has a mask; a single file of such a name is an image.
    masks = Counter(
        (path.parent, origin) for path in images for origin in _origins_of_class(path, "_mask_")
    )
    known_of_classes = {origin for (_, origin), count in masks.items() if count > 1} & known
    return [
        path
        for path in images
        if known.isdisjoint(_origins(path))
        and known_of_classes.isdisjoint(_origins_of_class(path, "_mask_"))
    ]


def _origins(path: Path) -> list[str]:
    """Return the names, without suffix, of what `path` would be the mask, overlay or probability of."""
    stem = path.stem
    origins = [stem.removesuffix(end) for end in _OUTPUT_ENDINGS if stem.endswith(end)]
    return [*filter(None, origins), *_origins_of_class(path, "_probability_")]


def _origins_of_class(path: Path, infix: str) -> list[str]:
    """Return the names of what `path` may be an output of a class of; a name may contain `infix`."""
    if path.suffix.lower() != ".png":
        return []
    ends = [found.start() for found in re.finditer(f"(?={infix})", path.stem)]
    return [path.stem[:end] for end in ends if end]


# -- what is written ------------------------------------------------------------------------


def name_outputs(
    images: Sequence[Path],
    config: PredictConfig,
    labels: Labels,
    outputs: Sequence[Output],
    *,
    models: Sequence[Path] = (),
    ground_resolution: float | None = None,
    mark: str = "",
) -> list[ImageFiles]:
    """Return the files of each image, once all outputs can be written; masks get the `mark` of their network.

    Raises:
        UserError: two outputs would be one file, or one is an input, exists, or can't be written; or images
            on maps differ in their ground resolution, and the network has none.
    """
    sources = [Source(image) for image in images]
    scenes = [reader for reader in find_readers(images) if issubclass(reader, Scene)]
    on_map = set().union(*(each.find_places(sources, ground_resolution) for each in scenes))
    warn_of_world_files(source.path for source in sources if source not in on_map)
    maps = {source: source in on_map for source in sources}
    for output in outputs:
        output.check(maps)
    files, names = [], tell_apart(images)
    for index, mask in enumerate(_name_masks(maps, config, labels)):
        image = ImageFiles(index, images[index], sources[index], mask, names[index], mark=mark)
        for output in outputs:
            image.written.extend(list_files(output, image))
        files.append(image)
    inputs = [("input", as_path(name)) for name in config.inputs]
    inputs += [("model", path) for path in models]
    inputs += [("image", path) for path in images]
    check_written(files, outputs, inputs, config)
    return files


def _name_masks(images: Mapping[Source, bool], config: PredictConfig, labels: Labels) -> list[Path]:
    output = as_path(config.output) if config.output else None
    masks = []
    for image, is_on_map in images.items():
        ending: str = config.mask_format
        if ending in ("auto", "none"):  # none: others are named after it
            ending = "tif" if is_on_map else labels.mask_suffix
        masks.append((output or image.path.parent) / f"{image.path.stem}_mask.{ending}")
    if output is not None and output.suffix and len(images) == 1 and not is_folder(output):
        if config.mask_format == "none":
            raise UserError(f"--output {output}: --mask-format none writes no mask; give a folder")
        if output.suffix.lower() not in _MASK_SUFFIXES:
            raise UserError(f"--output {output}: a mask keeps its values in .png or .tif only")
        masks = [output]
    elif (
        output is not None
        and len(images) > 1
        and can_read(output.suffix.lower())
        and not is_folder(output)
    ):
        raise UserError(
            f"--output {output}: is a file's name, for {len(images)} images; name a folder"
        )
    if labels.mask_suffix == "tif" and masks[0].suffix.lower() == ".png":
        raise UserError(
            f"{masks[0]}: values of several classes of objects need 32 bit; name a .tif with "
            "--output, or leave --mask-format png out"
        )
    return masks
