"""Settings of objects."""

from typing import Annotated

from unet_ddp.settings import Brief, Calls, Excludes, Kind, flag


class ObjectSettings:
    """Joins the settings of the data."""

    place = "data", "invert"
    instances: Annotated[
        bool,
        Kind.FIXED,
        Calls("label_rules"),
        Excludes("mask_threshold", "palette", "classes", "invert"),
        Brief("Masks number their objects; keep these apart."),
    ] = False
    """Each object has a different number, or colour, in its mask: learn background, objects and the borders between touching ones, and predict numbered objects (needs the extra objects; docs/objects.md)."""


class ObjectTableSettings:
    """Joins the settings of a prediction."""

    place = "predict", "polygons"
    objects: Annotated[str | None, Calls("outputs"), flag("FILE")] = None
    """Network trained with --instances: also write area, centre, box, class and mean probability of all objects to a CSV file."""
    counts: Annotated[str | None, Calls("outputs"), flag("FILE")] = None
    """Network trained with --instances: also write the number of objects and their area in each image, 0 included, to a CSV file."""
