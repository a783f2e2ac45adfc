"""Labels of masks in which each object has a number: they are learnt as background, bodies and border."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, ClassVar

import numpy as np

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import (
    IGNORE_ID,
    Band,
    Flags,
    Ids,
    Mask,
    Regions,
    Shares,
    Size,
    allocate,
)
from unet_ddp.data.readers.base import Codes
from unet_ddp.errors import Limit, UserError, shorten
from unet_ddp.extras.objects.borders import (
    BACKGROUND,
    BORDER,
    CLASS_NAMES,
    CLASS_STEP,
    mark_borders,
    number_densely,
)
from unet_ddp.extras.objects.scores import ObjectCounts, count_objects
from unet_ddp.extras.objects.separation import Numbers, separate, to_shares

SEEDS, EXTENTS = (0.5, 0.4, 0.6, 0.7, 0.8, 0.9), (0.5, 0.4, 0.6, 0.7)
"""Values that are tried for the two of `separation`; of equally good ones, the first."""
SMOOTHINGS = (0.0, 1.5)
"""Values that are tried for `smoothing`."""

_ENDS = CLASS_NAMES[BACKGROUND], CLASS_NAMES[BORDER]
_FEW = 8  # values in all masks: objects have more
_Share = Annotated[float, Limit(above=0, below=1)]


@dataclass(frozen=True)
class ObjectLabels(Labels):
    """Background, one or more classes of objects, and border, of masks that number the objects.

    With several classes a mask's value is class * CLASS_STEP + number, classes from 1 on.
    """

    kind: ClassVar[str] = "numbered objects"
    layer_opacity: ClassVar[int] = 100

    # Not in `repr`, by which samples in the cache are found: it says nothing of them.
    separation: tuple[_Share, _Share] = field(default=(0.5, 0.5), repr=False)
    """Least probability of an object's body where it is seeded, and of body or border as far as it
    extends."""
    smoothing: Annotated[float, Limit(at_least=0, at_most=100)] = field(default=0.0, repr=False)
    """Deviation, in pixels, of the Gaussian by which probabilities are smoothed first; 0: as they are."""

    def __post_init__(self) -> None:
        """Refuse classes without background, objects and border."""
        super().__post_init__()
        names = self.names or ()
        if len(names) < 3 or (names[0], names[-1]) != _ENDS:
            found = shorten([*names])
            raise UserError(f"names {found}: expected background, classes of objects, border")

    @classmethod
    def of(cls, names: tuple[str, ...], ignore: int | None = None) -> ObjectLabels:
        """Return the labels of classes of objects.

        Raises:
            UserError: too many names, or one that is taken.
        """
        background, border = _ENDS
        every = background, *names, border
        if len(every) > IGNORE_ID or len(set(every)) < len(every):
            raise UserError(
                f"classes {', '.join(names)[:99]}: objects can have at most {IGNORE_ID - 2}, all "
                "different and none called background or border; rename them"
            )
        return cls(tuple(range(len(every))), False, ignore, names=every)

    @property
    def bodies(self) -> range:
        """Class ids of objects."""
        return range(1, self.num_classes - 1)

    @property
    def has_classes(self) -> bool:
        """True if objects have several classes, which values in masks contain."""
        return len(self.bodies) > 1

    @property
    def objects(self) -> ObjectLabels:
        """These labels."""
        return self

    @property
    def named_values(self) -> dict[int, str]:
        """Empty: a value is a number."""
        return {}

    foreground = bodies

    @property
    def mask_suffix(self) -> str:
        """Smallest kind of file that can hold a mask: values of classes need 32 bit."""
        return "tif" if self.has_classes else "png"

    @property
    def nodata_tag(self) -> None:
        """Return None: pixels without data are background."""
        return

    def to_ids(self, codes: Codes, path: Path) -> Ids:
        """Return the class ids of the numbers in a mask (H, W), with borders; of numbers (N,), without."""
        self.check_numbers(codes, lambda _: path)
        values = self.find_numbers(codes)
        ids = self.ids_of(values)
        if codes.ndim > 1:
            ids[mark_borders(values) == BORDER] = self.bodies.stop
        ids[self._is_ignored(codes)] = IGNORE_ID
        return ids

    def from_file(self, codes: Codes, path: Path) -> Mask:
        """Return the numbers in a mask's file."""
        self.check_numbers(codes, lambda _: path)
        return codes

    def split_values(self, values: Mask) -> tuple[Mask, Mask]:
        """Return the class ids and the numbers of objects in a mask's values, both 0 for none."""
        if self.has_classes:
            return np.divmod(values.astype(np.int32, copy=False), CLASS_STEP)
        return (values > 0).view(np.uint8), values

    def join_values(self, classes: Mask, numbers: Numbers) -> Mask:
        """Return a mask of what `split_values` returned: of 16 bit if these suffice, but with classes of 32."""
        most = numbers.max(initial=0)
        if not self.has_classes:
            return numbers if most >= 1 << 16 else numbers.astype(np.uint16)
        if most >= CLASS_STEP:
            raise UserError(f"{most} objects; at most {CLASS_STEP - 1} can have classes")
        return classes * np.int32(CLASS_STEP) + numbers

    def check_numbers(self, codes: Codes, find_path: Callable[[int], object]) -> None:
        """Raise a UserError for a value that no object can have, in the mask that `find_path` returns."""
        classes, numbers = self.split_values(codes)
        is_object = (classes > 0) & (classes <= len(self.bodies)) & (numbers > 0)
        wrong = codes[~(is_object | (codes == 0) | self._is_ignored(codes))]
        if not wrong.size:
            return
        expected = "numbers of objects, 1 or more"
        if self.has_classes:
            names = ", ".join(self.foreground_names)[:99]
            expected = f"class * {CLASS_STEP} + number, both from 1 on, of {names}"
        raise UserError(f"{find_path(int(wrong[0]))}: value {wrong[0]}; expected {expected}")

    def find_numbers(self, codes: Codes) -> Numbers:
        """Return the objects' numbers, or values, (H, W) in a mask, 0 where it is to be ignored."""
        kept = np.where(self._is_ignored(codes), 0, codes).astype(np.int32, copy=False)
        return kept if self.has_classes else number_densely(kept)

    def _is_ignored(self, codes: Codes) -> Flags:
        if self.ignore is None:  # with which NumPy would compare in Python, a pixel at a time
            return np.zeros(codes.shape, bool)
        return np.asarray(codes == self.ignore)

    def to_values(self, ids: Mask) -> Mask:
        """Return numbers as they are: of 16 or 32 bit."""
        return ids

    def decode(
        self, bands: Iterable[Band], size: Size, *, enlarged: float = 1.0
    ) -> tuple[Mask, Shares]:
        """Return the numbers, of the class of highest mean probability, and that of body or border."""
        count = 2 + len(self.bodies) if self.has_classes else 2
        shares = allocate((count, *size), np.uint8)
        for band in bands:
            shares[:, band.rows] = to_shares(band.probabilities)
        shares.flags.writeable = False  # the prediction keeps one
        body, extent, *bodies = shares
        numbers = separate(body, extent, self.separation, smoothing=self.smoothing * enlarged)
        if not bodies:
            return self.join_values(numbers, numbers), extent
        sums = [np.bincount(numbers.ravel(), each.ravel()) for each in bodies]
        classes = np.argmax(sums, axis=0).astype(np.uint8) + self.bodies.start
        classes[0] = BACKGROUND
        return self.join_values(classes[numbers], numbers), extent

    def ids_of(self, mask: Mask) -> Ids:
        """Return the class of each object, on its border too."""
        return self.split_values(mask)[0].astype(np.uint8, copy=False)

    def renumber(self, mask: Mask) -> Mask:
        """Return a mask in which an object that pixels without data have cut is several."""
        from skimage.measure import label

        return self.join_values(self.ids_of(mask), label(mask, connectivity=1).astype(np.int32))

    def layer(self, mask: Mask) -> Ids:
        """Return the class ids (H, W) where a neighbour has another number, 0 elsewhere."""
        from skimage.segmentation import find_boundaries

        ids = self.ids_of(mask)
        return np.where(find_boundaries(mask, mode="inner"), ids, np.uint8(0))

    def regions(self, mask: Mask) -> list[Regions]:
        """Return the objects' numbers."""
        _, numbers = self.split_values(mask)
        return [Regions(numbers, numbers > 0, self.ids_of(mask), are_numbers=True)]

    def score(self, mask: Mask, truth: Mask) -> list[ObjectCounts]:
        """Count the objects of each class in masks of their values (H, W); a match has one class."""
        classes, numbers = self.split_values(mask)
        true_classes, true_numbers = self.split_values(truth)
        counts = []
        for k in self.bodies:
            found = np.where(classes == k, numbers, 0)
            true = np.where(true_classes == k, true_numbers, 0)
            counts.append(count_objects(found, number_densely(true)))
        return counts

    def count(self, mask: Mask) -> int:
        """Return the number of objects."""
        _, numbers = self.split_values(mask)
        return int(numbers.max(initial=0))

    def candidates(self) -> list[ObjectLabels]:
        """Return labels with each separation that is tried."""
        return [
            replace(self, separation=separation, smoothing=smoothing)
            for smoothing in SMOOTHINGS
            for separation in product(SEEDS, EXTENTS)
        ]

    def average(self, others: Sequence[Labels]) -> ObjectLabels:
        """Return labels with the mean separation of networks."""
        labels = [each for each in others if isinstance(each, ObjectLabels)]
        seed = fmean(each.separation[0] for each in labels)
        extent = fmean(each.separation[1] for each in labels)
        smoothing = fmean(each.smoothing for each in labels)
        return replace(self, separation=(seed, extent), smoothing=smoothing)

    def describe(self) -> str:
        """Return a line with the classes."""
        names = ", ".join(self.class_names)
        return f"classes: {names}, from the numbers of the objects in the masks"

    def describe_tuning(self) -> list[str]:
        """Return a line about the separation."""
        seed, extent = self.separation
        line = f"objects: seeded from probability {seed:g}, extended to {extent:g}"
        if self.smoothing:
            line += f", after smoothing by {self.smoothing:g} pixels"
        return [line]

    def doubt(self, values: Sequence[int], shown: str) -> list[str]:
        """Return a warning if so few values are more likely classes."""
        if self.has_classes or len(values) > _FEW:
            return []
        return [
            f"--instances: the masks contain only the values {shown}: if they are classes, leave it out"
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return super().to_dict() | {"separation": list(self.separation)}
