"""An image with its annotations, and the annotations of a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from unet_ddp.data.masks import Size
from unet_ddp.extras.annotations.regions import Patch


class Region(NamedTuple):
    """An annotated object."""

    label: str
    draw: Callable[[Size], Patch]
    is_crowd: bool = False  # several objects, not told apart
    where: str = ""  # what it is in the file, for messages


@dataclass
class AnnotatedImage:
    """The annotations of one image."""

    name: str  # its path in another place, perhaps of another system
    size: Size | None  # at which it was annotated
    regions: list[Region] = field(default_factory=list)
    skipped: int = 0  # boxes, ellipses, lines and points
    layers: int = 0  # masks that were read by their transparency
    several: int = 0  # objects of several classes: a region for each, of the first one last

    def add(
        self, label: str, draw: Any, *shape: Any, is_crowd: bool = False, where: str = ""
    ) -> None:
        """Add an object, which `draw` makes of its shape and the image's size."""
        self.regions.append(Region(label, partial(draw, *shape), is_crowd, where))


class AnnotationSet(NamedTuple):
    """The annotations of a data set."""

    classes: Mapping[str, str]  # their names in the file, if it lists them, with #rrggbb or nothing
    read: Callable[[], Iterator[AnnotatedImage]]
    notes: Sequence[str] = ()  # lines for the user
    split: Mapping[
        str, str
    ] = {}  # training, validation or test, by an image's name; of all or none
