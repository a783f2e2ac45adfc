"""How polygons become the values of masks; extras/polygons does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unet_ddp.data.labels import Labels


@dataclass(frozen=True)
class Burning:
    """What the pixels of a mask depend on, besides the polygons and the image."""

    class_field: str | None = None  # the attribute with their classes; None: all are of one
    overlap: bool = False  # bit k of a value is class k
    ignore: int | None = None  # value of pixels under polygons without a class
    names: tuple[
        str, ...
    ] = ()  # of the classes, without the background, where they are known already


ONE_CLASS = Burning()
"""All polygons are of class 1."""


def burn_for(
    labels: Labels | None, class_field: str | None, ignore: int | None = None, *, overlap: bool
) -> Burning:
    """Return how polygons become masks of these labels; None: the polygons choose the classes."""
    names = tuple(labels.names or ()) if labels else ()
    return Burning(class_field, overlap, ignore, names if overlap else names[1:])
