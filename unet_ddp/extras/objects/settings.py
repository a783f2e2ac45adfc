"""Settings of objects."""

from typing import Annotated

from unet_ddp.settings import Calls, Excludes, Kind, flag


class ObjectSettings:
    """Joins those of the data."""

    place = "data", "invert"
    instances: Annotated[
        bool,
        Kind.FIXED,
        Calls("label_rules"),
        Excludes("binary", "mask_threshold", "palette", "classes", "invert"),
    ] = False
    """Each object has a number, or colour, of its own in its mask: learn background, objects and the borders between touching ones, and predict numbered objects (needs the extra objects; docs/objects.md)."""


class ObjectTableSettings:
    """Joins those of a prediction."""

    place = "predict", "polygons"
    objects: Annotated[str | None, Calls("outputs"), flag("FILE")] = None
    """Network trained with --instances: also write area, centre, box, class and mean probability of all objects to a CSV file."""
