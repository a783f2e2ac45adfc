"""Masks from annotations: the images that they are of, their classes and their pixels."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID, Flags, Mask, Size, unpack_colour
from unet_ddp.data.matching import Report, detect_suffix, files_by_name
from unet_ddp.data.readers.bands import MOST_PLANES
from unet_ddp.data.readers.read import Source as ImageSource
from unet_ddp.errors import UserError, shorten
from unet_ddp.extras.annotations.readers import AnnotatedImage, Source
from unet_ddp.extras.annotations.regions import Patch, paste
from unet_ddp.extras.objects.borders import CLASS_STEP, number_densely
from unet_ddp.extras.outputs.probabilities import name_parts
from unet_ddp.extras.palettes.rules import read_palette
from unet_ddp.plugins import find

CROWD = 65535
"""Number of the pixels of several objects that were not told apart, and of those to ignore."""

_ALIASES = {"_background_": "background", "__ignore__": "ignore"}  # Labelme's
_UPLOAD = re.compile(r"^[0-9a-f]{8}-(?=.)")  # that Label Studio puts before a name


def list_images(folder: Path) -> dict[str, Path]:
    """Return the images below `folder` by their relative paths without suffix."""
    found = sorted(files_by_name(folder, {}).items())
    several = [" and ".join(files[:3]) for _, files in found if len(files) > 1]
    Report().add_problems([f"images of one name: {files}; keep one of them" for files in several])
    return {name: Path(files[0]) for name, files in found}


def open_folders(path: Path, images: Mapping[str, Path]) -> Source:
    """Return the masks in the sub-folders of `path`, but the images', each of which is of a class."""
    image, classes = next(iter(images.values()), path).resolve(), dict[str, str]()
    masks: dict[str, list[tuple[str, Path]]] = {}  # of an image: class and file
    for folder in sorted(path.iterdir()):
        if folder.is_dir() and folder.name[0] != "." and not image.is_relative_to(folder.resolve()):
            found, classes[folder.name] = list_images(folder), ""
            suffix = detect_suffix(images, found, may_be_empty=True)
            for name, mask in found.items():
                masks.setdefault(name.removesuffix(suffix), []).append((folder.name, mask))
    if not masks:
        raise UserError(f"{path}: has neither .json files of Labelme nor a folder for each class")
    return Source(classes, partial(_read_folders, masks))


def _read_folders(masks: Mapping[str, list[tuple[str, Path]]]) -> Iterator[AnnotatedImage]:
    """Yield the images; each value but 0 of a mask is an object."""
    from scipy.ndimage import find_objects

    for name, files in masks.items():
        image = AnnotatedImage(f"{name}.png", None)
        for label, path in files:
            with ImageSource(path) as opened:
                if opened.header.is_lossy:
                    raise UserError(f"{path}: lossy compression changes values; save masks as PNG")
                numbers = number_densely(opened.mask())
            height, width = numbers.shape
            if image.size not in (None, (height, width)):
                raise UserError(
                    f"{path}: {width}x{height}, another class's mask is {image.size[1]}x{image.size[0]}; "
                    "masks of one image have one size"
                )
            image.size = height, width
            for number, window in enumerate(find_objects(numbers), start=1):
                if window is not None:
                    top, left = (side.start for side in window)
                    image.add(label, _draw_value, numbers[window], number, left, top)
        yield image


def _draw_value(values: NDArray[np.int32], value: int, left: int, top: int, size: Size) -> Patch:
    return paste(values == value, left, top, size)  # when it is used: there may be thousands


class NameFinder:
    """Finds the image that a file means among those that exist: its own paths open nothing."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: dict[str, list[str]] = {}
        for name in names:
            key = unicodedata.normalize("NFC", name)
            self._names.setdefault(key, []).append(name)
            if "/" in key:  # a file may leave out all folders
                self._names.setdefault("/" + key.rpartition("/")[2], []).append(name)

    def find(self, text: str) -> str | None:
        """Return the name of the image, None if there is none; leading folders need not exist.

        Raises:
            UserError: it may be several.
        """
        _, is_local, path = text.rpartition("?d=")  # of Label Studio's local files
        path = unicodedata.normalize("NFC", unquote(path) if is_local else path).replace("\\", "/")
        *folders, last = [part for part in path.split("/") if part not in (".", "..")] or [""]
        stem = last.rpartition(".")[0]
        for end in (stem, last, _UPLOAD.sub("", stem)):
            keys = ["/".join([*folders[start:], end]) for start in range(len(folders) + 1)]
            for key in (*keys, *([] if folders else [f"/{end}"])):
                names = self._names.get(key, ())
                if len(names) > 1:
                    raise UserError(f"image {shorten(text)} may be {names[0]} or {names[1]}")
                if names:
                    return names[0]
        return None


def clean_label(text: object) -> str:
    """Return the name of a class, in one line."""
    name = " ".join(str(text).split()) or "unnamed"
    return _ALIASES.get(name, "background" if name.lower() == "background" else name)


def derive_labels(source: Source, file: Path | None) -> Labels:
    """Return the classes: the background, then the palette's, or without one the file's in its order.

    If the file does not list its classes, they are in the order of their names.
    """
    colours = dict(source.classes)
    if file is not None:
        codes, is_colour = read_palette(file)
        if not is_colour:
            raise UserError(f"--palette {file}: has values; use lines of name,#rrggbb")
        colours = {name: f"#{code:06x}" for name, code in codes.items()}
    elif not colours:
        labels, skipped = set(), 0
        for image in source.read():
            labels |= {str(region.label) for region in image.regions}
            skipped += image.skipped
        if skipped and not labels:
            raise UserError(only_boxes(skipped))
        colours = dict.fromkeys(sorted(labels), "")
    known = {"background": "#000000"} | {clean_label(name): c for name, c in colours.items()}
    if not 1 < len(known) <= IGNORE_ID:
        raise UserError(f"{len(known) - 1} classes; a mask can hold 1 to {IGNORE_ID - 1}")
    values, palette = tuple(range(len(known))), None
    if all(re.fullmatch("#[0-9a-fA-F]{6}", colour) for colour in known.values()):
        palette = tuple(unpack_colour(int(colour[1:], 16)) for colour in known.values())
    drawn = Labels(values, palette=palette).colours  # PASCAL VOC's, if two of them are equal
    return Labels(values, names=tuple(known), palette=tuple(drawn))


def only_boxes(count: int) -> str:
    """Return the error of a file of `count` annotations without an outline, and of none with one."""
    return (
        f"only boxes, ellipses, lines or points ({count}): they have no outline to fill; annotate "
        "polygons or masks"
    )


class Painter:
    """Draws masks, and counts objects by what there is to say of them."""

    dtype: type[np.uint8] | type[np.int32] = np.uint8

    def __init__(self, labels: Labels, *, instances: bool, small_over_large: bool) -> None:
        self.values = {name: k for k, name in enumerate(labels.class_names)}
        self.bodies = [name for name in labels.class_names[1:] if name.lower() != "ignore"]
        self.instances = instances
        self.labels = find("labels", "objects").of(tuple(self.bodies)) if instances else labels
        self.small_over_large = small_over_large
        self.counts: Counter[str] = Counter()

    def put(self, place: Mask, pixels: Flags, value: int) -> None:
        """Draw an object's pixels (H, W) in a view (H, W) of the mask; it is above earlier ones."""
        place[pixels] = value

    def paint(self, image: AnnotatedImage, size: Size) -> Mask:
        """Return the class ids (H, W) of an image, or with instances its objects' values."""
        instances = self.instances
        step = CLASS_STEP if instances and len(self.bodies) > 1 else 0
        dtype, most = (np.int32, step) if step else (np.uint16, CROWD)
        mask, regions = np.zeros(size, dtype if instances else self.dtype), image.regions
        if image.size not in (None, size):
            found = "{1}x{0}, the image is {3}x{2}".format(*(image.size or size), *size)
            raise UserError(f"annotated as {found}; annotate this file, upright as EXIF says")
        if instances and len(regions) >= most:
            raise UserError(f"{len(regions)} objects; a mask can number {most - 1}")
        if self.small_over_large:
            regions = sorted(regions, key=lambda region: -int(region.draw(size).pixels.sum()))
        for number, region in enumerate(regions, start=1):
            name = clean_label(region.label)
            value, is_crowd = self.values.get(name), region.is_crowd or name.lower() == "ignore"
            if value is None:
                reason = (
                    f"class {shorten(region.label)} is not among {', '.join([*self.values][:9])}"
                )
                raise UserError(f"{reason}; add it, or use another --palette")
            if instances and value:
                value = CROWD if is_crowd else number + step * (1 + self.bodies.index(name))
            patch = region.draw(size)
            place = mask[patch.top :, patch.left :][: len(patch.pixels), : patch.pixels.shape[1]]
            self.put(place, patch.pixels, value)
            self.counts["crowds"] += is_crowd
            self.counts["clipped"] += patch.is_clipped
        self.counts.update(objects=len(regions), skipped=image.skipped)
        return mask


class PlanePainter(Painter):
    """Draws masks in which bit k is the k-th class but the background: all of what overlaps."""

    dtype = np.int32

    def __init__(self, labels: Labels) -> None:
        super().__init__(labels, instances=False, small_over_large=False)
        if not 2 <= len(self.bodies) <= MOST_PLANES:
            found = f"--overlap keep: classes: {len(self.bodies)}"
            raise UserError(f"{found}; 2 to {MOST_PLANES} can overlap: leave the flag out")
        self._bits = {self.values[name]: k for k, name in enumerate(self.bodies)}
        names = [name.strip("#. ") or "unnamed" for name in self.bodies]
        self.folders = name_parts(names)

    def put(self, place: Mask, pixels: Flags, value: int) -> None:
        """Draw an object's pixels (H, W) in a view (H, W) of the mask, in the bit of its class."""
        bit = self._bits.get(value)
        if bit is not None:
            place[pixels] |= 1 << bit
        elif value:
            self.counts["ignored"] += 1

    def split(self, mask: Mask) -> Iterator[tuple[str, Mask]]:
        """Yield the folder of each class, and 1 where a painted mask (H, W) has it, else 0."""
        for bit, folder in enumerate(self.folders):
            yield folder, (mask >> bit & 1).astype(np.uint8)
