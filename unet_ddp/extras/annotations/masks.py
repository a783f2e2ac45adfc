"""The images and classes of annotations, and annotations in one mask for each class."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.labels import Labels
from unet_ddp.data.listing import files_by_name
from unet_ddp.data.masks import IGNORE_ID, Size, as_numbers, unpack_colour
from unet_ddp.data.matching import Report
from unet_ddp.data.names import file_key, is_hidden, without_compound
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source, can_read, read_mask
from unet_ddp.data.suffixes import detect_suffix, group_masks
from unet_ddp.errors import UserError, shorten
from unet_ddp.extras.annotations.annotated_image import AnnotatedImage, AnnotationSet
from unet_ddp.extras.annotations.object_files import ONLY_CLASS, Masks, find_objects
from unet_ddp.extras.annotations.regions import Patch, paste
from unet_ddp.extras.objects.borders import number_densely
from unet_ddp.extras.palettes.rules import read_palette

_ALIASES = {"_background_": "background", "__ignore__": "ignore"}  # Labelme's
_UPLOAD = re.compile(r"^[0-9a-f]{8}-(?=.)")  # that Label Studio puts before a name


def list_images(folder: Path) -> dict[str, Path]:
    """Return the images below `folder` by their relative paths without suffix."""
    found: dict[str, Path] = {}
    problems = []
    for name, files in sorted(files_by_name(folder, {}).items()):
        found[name] = Path(files[0])
        if len(files) > 1:
            several = " and ".join(files[:3])
            problems.append(f"images of one name: {several}; keep one of them")
    Report().add_problems(problems)
    return found


def open_folders(path: Path, images: dict[str, Path]) -> AnnotationSet:
    """Return the masks below `path`: a file for each object, or a sub-folder for each class, but the images'.

    Files of objects are no `images`: they are removed there.
    """
    folders = _list_folders(path, images)
    if found_objects := find_objects(path, folders, images):
        objects, note = found_objects
        read = partial(_read_masks, objects, is_object=True)
        return AnnotationSet({ONLY_CLASS: ""}, read, [note])
    masks: Masks = {}
    for folder in folders:
        found = list_images(folder)
        suffix = detect_suffix(images, found, may_be_empty=True)
        for group in group_masks(images, found).values() if suffix else ():
            if len(group) > 1:
                one, other, *_ = (found[name] for name in group.values())
                raise UserError(
                    f"{folder}: {one} and {other} are of one image; if each is of an object, import each class by itself: "
                    f"python -m unet_ddp import {shlex.quote(str(folder))}"
                )
        for name, mask in found.items():
            masks.setdefault(name.removesuffix(suffix), []).append((folder.name, mask))
    if not masks:
        raise UserError(
            f"{path}: has neither .json files of Labelme nor a folder for each class, nor several masks of one image; of "
            "another tool, give the file itself"
        )
    classes = dict.fromkeys((folder.name for folder in folders), "")
    return AnnotationSet(classes, partial(_read_masks, masks, is_object=False))


def _list_folders(path: Path, images: dict[str, Path]) -> list[Path]:
    """Return the folders in `path`, without that of the images."""
    image = next(iter(images.values()), path).resolve()
    return [
        folder
        for folder in sorted(path.iterdir())
        if not is_hidden(folder.name)
        and folder.is_dir()
        and not image.is_relative_to(folder.resolve())
    ]


def _read_masks(masks: Masks, *, is_object: bool) -> Iterator[AnnotatedImage]:
    """Yield the images; each value but 0 of a mask is an object, or the mask is that of one."""
    from scipy.ndimage import find_objects

    @cache
    def has_values(label: str) -> bool:  # so that a black mask of this class is an empty one
        paths = (path for files in masks.values() for name, path in files if name == label)
        return any(np.ptp(read_mask(path)) for path in paths)

    for name, files in masks.items():
        image = AnnotatedImage(f"{name}.png", None)
        for label, path in files:
            numbers, is_layer = _read_numbers(path, partial(has_values, label), is_object=is_object)
            image.layers += is_layer
            height, width = numbers.shape
            if image.size is None:
                image.size = height, width
            elif image.size != (height, width):
                raise UserError(
                    f"{path}: {width}x{height}, another mask is {image.size[1]}x{image.size[0]}; masks of one "
                    "image have one size"
                )
            for number, window in enumerate(find_objects(numbers), start=1):
                if window is not None:
                    top, left = (side.start for side in window)
                    pixels = numbers[window].copy() if is_object else numbers[window]
                    image.add(label, _draw_value, pixels, number, left, top)
        yield image


def _read_numbers(
    path: Path, has_values: Callable[[], bool], *, is_object: bool
) -> tuple[NDArray[np.int32], bool]:
    """Return the numbers of the objects in a mask, and whether its transparency has their shape.

    In one colour an object's shape may be what is opaque; not in black, if masks of its class have values.

    Raises:
        UserError: it is a photograph, or has several objects where it is that of one.
    """
    with Source(path) as opened:
        header = opened.header
        if header.is_lossy:
            raise UserError(f"{path}: lossy compression changes values; save masks as PNG")
        numbers = number_densely(as_numbers(opened.mask(), header.palette))
        is_layer = False
        if header.has_alpha and not np.ptp(numbers) and (numbers.any() or not has_values()):
            pixels, _ = opened.image(ImageFormat(header.channels + 1, header.dtype))
            alpha = pixels[..., -1]
            if is_layer := not alpha.all():
                numbers = (alpha > alpha.max() // 2).astype(np.int32)
    if is_object and (count := len(np.unique(numbers[numbers > 0]))) > 1:
        raise UserError(
            f"{path}: {count} values above 0; there are several masks of this image, so each must be of one object: "
            "one value"
        )
    before, after = numbers[:, :-1], numbers[:, 1:]
    differ = (before != after)[(before > 0) & (after > 0)]
    if 2 * differ.sum() > differ.size:
        raise UserError(
            f"{path}: is a picture, no mask: most pixels differ from the next one; leave only masks in the folder"
        )
    return numbers, is_layer


def _draw_value(values: NDArray[np.int32], value: int, left: int, top: int, size: Size) -> Patch:
    return paste(values == value, left, top, size)  # when it is used: there may be thousands


def list_names(file: str) -> list[str]:
    """Return the names that a file's may mean, the likeliest first: without suffix, or whole.

    Digits after a dot are no suffix (0.5); one that no reader has may be part of the name.
    """
    stem, _, suffix = file.rpartition(".")
    if can_read(f".{suffix.lower()}"):
        return [stem, file]
    return [file] if suffix[:1].isdigit() else [file, stem]


class NameFinder:
    """Finds the image that a file means among those that exist: its own paths open nothing."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: dict[str, list[str]] = {}
        for name in names:
            for key in {file_key(name), file_key(without_compound(name))}:
                self._names.setdefault(key, []).append(name)
                _, slash, last = key.rpartition("/")
                if slash:  # a file may leave out all folders
                    self._names.setdefault(slash + last, []).append(name)

    def find(self, text: str) -> str | None:
        """Return the name of the image, None if there is none; leading folders need not exist.

        Raises:
            UserError: it may be several.
        """
        path = text.rpartition("?d=")[2]  # of Label Studio's local files
        path = file_key(path).replace("\\", "/")
        parts = [part for part in path.split("/") if part not in (".", "..")]
        *folders, last = parts or [""]
        ends = list_names(last)
        for end in [*ends, *(_UPLOAD.sub("", each) for each in ends)]:
            keys = ["/".join([*folders[start:], end]) for start in range(len(folders) + 1)]
            if not folders:  # all of them may be left out
                keys.append(f"/{end}")
            for key in keys:
                names = self._names.get(key, ())
                if len(names) > 1:
                    raise UserError(f"image {shorten(text)} may be {names[0]} or {names[1]}")
                if names:
                    return names[0]
        # As in an address, Label Studio's too: a%20b is "a b".
        return self.find(unquote(text)) if unquote(text) != text else None


def clean_label(text: object) -> str:
    """Return the name of a class, in one line."""
    name = " ".join(str(text).split()) or "unnamed"
    if name.lower() == "background":
        return "background"
    return _ALIASES.get(name, name)


def derive_labels(annotations: AnnotationSet, file: Path | None) -> Labels:
    """Return the classes: the background, then the palette's, or without one the file's in its order.

    If the file does not list its classes, they are in the order of their names.
    """
    classes = annotations.classes
    if file is not None:
        codes, is_colour = read_palette(file)
        if not is_colour:
            raise UserError(f"--palette {file}: has values; use lines of name,#rrggbb")
        classes = {name: f"#{code:06x}" for name, code in codes.items()}
    elif not classes:
        classes = dict.fromkeys(_find_labels(annotations), "")
    if not classes:
        raise UserError(
            "no object is annotated (a prediction is none); annotate some, and export again"
        )
    colours = {"background": "#000000"}
    for name, colour in classes.items():
        colours[clean_label(name)] = colour
    if not 1 < len(colours) <= IGNORE_ID:
        raise UserError(f"{len(colours) - 1} classes; a mask can hold 1 to {IGNORE_ID - 1}")
    values = tuple(range(len(colours)))
    palette = None
    if all(re.fullmatch("#[0-9a-fA-F]{6}", colour) for colour in colours.values()):
        palette = tuple(unpack_colour(int(colour[1:], 16)) for colour in colours.values())
    drawn = Labels(values, palette=palette).colours  # PASCAL VOC's, if two of them are equal
    return Labels(values, names=tuple(colours), palette=tuple(drawn))


def _find_labels(annotations: AnnotationSet) -> list[str]:
    """Return the sorted labels of all objects."""
    labels: set[str] = set()
    skipped = 0
    for image in annotations.read():
        labels.update(str(region.label) for region in image.regions)
        skipped += image.skipped
    if skipped and not labels:
        raise UserError(only_boxes(skipped))
    return sorted(labels)


def only_boxes(count: int) -> str:
    """Return the error of a file of `count` annotations without an outline, and of none with one."""
    return (
        f"only boxes, ellipses, lines or points ({count}): they have no outline to fill; annotate "
        "polygons or masks"
    )
