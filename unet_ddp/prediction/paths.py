"""The files of a job: the images that a user means, and the names of what is written.

Existing files are only replaced with --overwrite.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from unet_ddp.data.labels import Labels
from unet_ddp.data.names import SERVICE_FOLDERS, find_spelling, tell_apart
from unet_ddp.data.readers.base import Scene
from unet_ddp.data.readers.microscopes import advise_export
from unet_ddp.data.readers.read import Source, can_read, find_readers, list_suffixes
from unet_ddp.errors import UserError, shorten
from unet_ddp.files import (
    as_path,
    check_no_input,
    check_writable,
    identify_path,
    is_address,
    remove_stale,
    write_errors,
)
from unet_ddp.files.contents import read_text
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.existing import find_existing, look_at, name_ways
from unet_ddp.prediction.outputs.base import ImageFiles, Output
from unet_ddp.prediction.outputs.mask import MaskFile
from unet_ddp.prediction.outputs.own import list_files
from unet_ddp.prediction.world_files import warn_of_world_files

_OUTPUT_ENDINGS = ("_mask", "_overlay", "_probabilities")
_MASK_SUFFIXES = (".png", ".tif", ".tiff")
_LONGEST_NAME = 255 - len("." + f".{2**22}.RANDOM78.tmp")  # bytes


def find_images(inputs: Sequence[str]) -> list[Path]:
    """Return the images among files, folders, patterns and lists, each once.

    Skipped are masks and overlays that an earlier prediction left next to their images.

    Raises:
        UserError: a path that does not exist, or a folder, pattern or list without images.
    """
    if not inputs:
        raise UserError("no inputs: give images, or folders of images")
    images: dict[Path, None] = {}
    for name in inputs:
        path = as_path(name)
        try:
            found = _find_at(path, name)
        except OSError as error:
            raise UserError(f"{path}: can't be read: {error.strerror or error}") from None
        if not found:
            reason = "matches no image"
            others: Iterable[Path] = ()
            if path.is_dir():
                reason = f"contains no images ({', '.join(list_suffixes())})"
                others = path.iterdir()
            advice = advise_export(others, "export others as TIFF or PNG")
            raise UserError(f"{path}: {reason}; {advice}")
        images.update(dict.fromkeys(found))
    return list(images)


def _find_at(path: Path, name: str) -> list[Path]:
    if path.is_dir():
        return _without_outputs(sorted(path.iterdir()))
    if path.exists():  # a file of any kind
        return _in_list(path) if path.suffix.lower() == ".txt" else [path]
    if glob.has_magic(name):
        folder = next(filter(Path.is_dir, path.parents))
        pattern = f"{glob.escape(str(folder))}/{path.relative_to(folder)}"  # it may have brackets
        return _without_outputs(map(Path, sorted(glob.glob(pattern, recursive=True))))
    raise UserError(f"{path}: not found")


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
    _check_written(files, outputs, inputs, config)
    return files


def _check_written(
    files: Sequence[ImageFiles],
    outputs: Sequence[Output],
    inputs: Iterable[tuple[str, Path]],
    config: PredictConfig,
) -> None:
    """Refuse outputs that can't be written; remove the temporary files that a killed job left of them."""
    lists = [(each.flag, each.path) for each in outputs if each.path is not None]
    for flag, path in lists:
        if not isinstance(path, Path):  # of a user's own output
            raise UserError(f"{flag}: its path is {shorten(path)}; make it a pathlib.Path")
        if _is_folder(path):
            raise UserError(f"{flag} {path}: is a folder; give a file")
        if len(os.fsencode(path.name)) > _LONGEST_NAME:
            raise UserError(f"{flag} {path}: the name is too long; name another file")
    _check_distinct([(str(each.image), path) for each in files for path in each.written] + lists)
    new = [("--output", path) for each in files for path in each.written] + lists
    check_no_input(new, inputs)
    for flag, folder in dict.fromkeys((flag, path.parent) for flag, path in new):
        check_writable(folder, flag)
    remove_stale(path for _, path in new if not is_address(path))
    if config.overwrite:
        return
    refused = new
    if config.skip_existing:  # a file of all images is made again, see `Records`
        refused = [("--output", path) for path in _list_edited(files, outputs)]
        paths = [(each.flag, each.path, each.header) for each in outputs if each.path is not None]
        refused += [(flag, path) for flag, path, header in paths if _is_other(path, header)]
    existing = find_existing(path for _, path in refused)
    if not config.skip_existing and len(existing) < len(new):
        refused = lists  # the job writes what is missing, if what exists is the same
    for flag, path in refused:
        if path in existing:
            ways = name_ways(flag, skips=config.skip_existing)
            raise UserError(f"{path}: already exists; {ways}")


def _is_other(path: Path, header: str) -> bool:
    """Return whether a file exists, and begins in another way than one of all images with this header."""
    if not find_existing([path]):
        return False
    with write_errors(path), path.open("rb") as file:
        start = file.read(len(header.encode()))
    return start not in (b"", header.encode())


def _check_distinct(written: Iterable[tuple[str, Path]]) -> None:
    """Refuse two images or flags that would write one file."""
    owners: dict[tuple[object, ...], str] = {}
    for owner, path in written:
        key = identify_path(path)
        if key in owners:
            advice = "predict them separately and use --output"
            one, other = Path(owners[key]), Path(owner)
            if one.parent == other.parent and one.suffix != other.suffix:  # an image and its mask
                advice = f"predict one type alone, as {one.parent}/*{one.suffix}"
            if owner.startswith("--"):
                advice = "name another file"
            raise UserError(f"{owners[key]} and {owner} would both write {path}; {advice}")
        owners[key] = owner


def check_length(image: ImageFiles) -> None:
    """Raise a UserError if a file of an image, or its temporary file, has too long a name."""
    for path in image.written:
        if len(os.fsencode(path.name)) > _LONGEST_NAME:
            raise UserError(f"{image.image}: the name of {path} is too long; rename the image")


def _name_masks(images: Mapping[Source, bool], config: PredictConfig, labels: Labels) -> list[Path]:
    output = as_path(config.output) if config.output else None
    masks = []
    for image, is_on_map in images.items():
        ending: str = config.mask_format
        if ending in ("auto", "none"):  # none: others are named after it
            ending = "tif" if is_on_map else labels.mask_suffix
        masks.append((output or image.path.parent) / f"{image.path.stem}_mask.{ending}")
    if output is not None and output.suffix and len(images) == 1 and not _is_folder(output):
        if config.mask_format == "none":
            raise UserError(f"--output {output}: --mask-format none writes no mask; give a folder")
        if output.suffix.lower() not in _MASK_SUFFIXES:
            raise UserError(f"--output {output}: a mask keeps its values in .png or .tif only")
        masks = [output]
    elif output is not None and len(images) > 1 and can_read(output.suffix.lower()):
        found = f"--output {output}: is a file's name, for {len(images)} images"
        if not _is_folder(output):
            raise UserError(f"{found}; name a folder")
    if labels.mask_suffix == "tif" and masks[0].suffix.lower() == ".png":
        raise UserError(
            f"{masks[0]}: values of several classes of objects need 32 bit; name a .tif with "
            "--output, or leave --mask-format png out"
        )
    return masks


def _is_folder(path: Path) -> bool:
    return not is_address(path) and os.path.isdir(path)


def _list_edited(files: Sequence[ImageFiles], outputs: Iterable[Output]) -> list[Path]:
    """Return the files of later outputs, of images that are not done: a person may have edited them."""
    edited = [each for each in outputs if each.turn > 1]
    if not edited:
        return []
    masks = next(each for each in outputs if isinstance(each, MaskFile))
    done = {found.index for found in look_at(files, masks) if found.is_done}
    rest = [image for image in files if image.index not in done]
    return [path for image in rest for output in edited for path in output.files(image)]
