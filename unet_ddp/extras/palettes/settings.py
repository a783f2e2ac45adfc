"""The setting of palette files."""

from typing import Annotated

from unet_ddp.settings import Calls, Excludes, Kind, flag


class PaletteSettings:
    """Joins the settings of the data."""

    place = "data", "class_names"
    palette: Annotated[
        str | None,
        Kind.DATA_PLACE,
        Kind.FIXED,
        Calls("label_rules"),
        Excludes("invert"),
        flag("FILE"),
    ] = None
    """CSV file of the classes: lines of name,value or name,#rrggbb; the one called ignore is excluded."""
