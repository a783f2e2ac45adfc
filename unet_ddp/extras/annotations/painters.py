"""Masks of annotated objects: class ids, numbers of objects, or a plane for each class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Flags, Mask, Size
from unet_ddp.data.readers.bands import MOST_PLANES
from unet_ddp.errors import UserError, shorten
from unet_ddp.extras.annotations.annotated_image import AnnotatedImage, Region
from unet_ddp.extras.annotations.masks import clean_label
from unet_ddp.extras.annotations.regions import Patch
from unet_ddp.extras.objects.borders import CLASS_STEP
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.outputs.probabilities import name_parts

CROWD = 65535
"""Number of the pixels of several objects that were not told apart, and of those to ignore."""


class Painter:
    """Draws masks of class ids, and counts objects by what there is to say of them."""

    dtype: type[np.generic] = np.uint8

    def __init__(self, labels: Labels, *, small_over_large: bool = False) -> None:
        self.class_ids = {name: k for k, name in enumerate(labels.class_names)}
        self.bodies = [name for name in labels.class_names[1:] if name.lower() != "ignore"]
        self.labels = labels
        self.small_over_large = small_over_large
        self.counts: Counter[str] = Counter()
        self.empty_classes = dict.fromkeys(self.bodies)
        """Names of the classes that no object had so far."""

    def put(self, view: Mask, pixels: Flags, region: Region, number: int) -> None:
        """Draw the pixels (H, W) of an image's object in a view (H, W) of the mask."""
        view[pixels] = self.find_class(region)

    def find_class(self, region: Region) -> int:
        """Return the class id of an object."""
        class_id = self.class_ids.get(clean_label(region.label))
        if class_id is None:
            classes = ", ".join([*self.class_ids][:9])
            raise UserError(
                f"class {shorten(region.label)} is not among {classes}; add it, or use another "
                "--palette"
            )
        return class_id

    def paint(self, image: AnnotatedImage, size: Size) -> Mask:
        """Return the mask (H, W) of an image; an object is above earlier ones."""
        if image.size not in (None, size):
            found = "{1}x{0}, the image is {3}x{2}".format(*(image.size or size), *size)
            raise UserError(f"annotated as {found}; annotate this file, upright as EXIF says")
        regions = image.regions
        if self.small_over_large:
            regions = sorted(regions, key=lambda region: -int(_draw(region, size).pixels.sum()))
        mask: Mask = np.zeros(size, self.dtype)
        for number, region in enumerate(regions, start=1):
            pixels, top, left, is_clipped = _draw(region, size)
            self.empty_classes.pop(clean_label(region.label), None)
            height, width = pixels.shape
            self.put(mask[top : top + height, left : left + width], pixels, region, number)
            if is_clipped:
                self.counts["clipped"] += 1
            if not pixels.any():
                self.counts["unseen"] += 1
            elif (top, left, *pixels.shape) == (0, 0, 1, 1):
                self.counts["first pixel"] += 1
        self.counts.update(objects=len(regions), skipped=image.skipped, several=image.several)
        self.counts["layers"] += image.layers
        return mask


def _draw(region: Region, size: Size) -> Patch:
    """Return an object's pixels; an error says which object."""
    try:
        return region.draw(size)
    except UserError as error:
        if not region.where:
            raise
        raise UserError(f"{region.where}: {error}") from None


class InstancePainter(Painter):
    """Draws masks that number the objects of an image."""

    def __init__(self, labels: Labels, *, small_over_large: bool) -> None:
        super().__init__(labels, small_over_large=small_over_large)
        self.labels = ObjectLabels.of(tuple(self.bodies))
        self.dtype, self.step, self.most = np.uint16, 0, CROWD
        if len(self.bodies) > 1:
            self.dtype, self.step, self.most = np.int32, CLASS_STEP, CLASS_STEP

    def paint(self, image: AnnotatedImage, size: Size) -> Mask:
        """Return the mask (H, W) of an image's numbers."""
        count = len(image.regions)
        if count >= self.most:
            raise UserError(f"{count} objects; a mask can number {self.most - 1}")
        return super().paint(image, size)

    def put(self, view: Mask, pixels: Flags, region: Region, number: int) -> None:
        """Draw the number of an object: with several classes, class * 1000000 + number."""
        name = clean_label(region.label)
        value = self.find_class(region)
        is_crowd = region.is_crowd or name.lower() == "ignore"
        if is_crowd:
            self.counts["crowds"] += 1
        if value and is_crowd:
            value = CROWD
        elif value:
            value = number + self.step * (1 + self.bodies.index(name))
        view[pixels] = value


class PlanePainter(Painter):
    """Draws masks in which bit k is the k-th class but the background: all of what overlaps."""

    dtype = np.int32

    def __init__(self, labels: Labels) -> None:
        super().__init__(labels)
        if not 2 <= len(self.bodies) <= MOST_PLANES:
            raise UserError(
                f"--overlap keep: classes: {len(self.bodies)}; 2 to {MOST_PLANES} can overlap: leave the flag out"
            )
        self._bits = {self.class_ids[name]: k for k, name in enumerate(self.bodies)}
        names = [name.strip("#. ") or "unnamed" for name in self.bodies]
        self.folders = name_parts(names)

    def put(self, view: Mask, pixels: Flags, region: Region, number: int) -> None:
        """Set the bit of the object's class."""
        class_id = self.find_class(region)
        bit = self._bits.get(class_id)
        if bit is not None:
            view[pixels] |= 1 << bit
        elif class_id:
            self.counts["ignored"] += 1

    def split(self, mask: Mask) -> Iterator[tuple[str, Mask]]:
        """Yield the folder of each class, and 1 where a painted mask (H, W) has it, else 0."""
        for bit, folder in enumerate(self.folders):
            yield folder, (mask >> bit & 1).astype(np.uint8)
