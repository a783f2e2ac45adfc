"""The setting of the list of images to label next."""

from typing import Annotated

from unet_ddp.settings import Calls, Excludes, flag


class RankSettings:
    """Joins the settings of a prediction."""

    place = "predict", "annotations"
    rank: Annotated[str | None, Calls("outputs"), Excludes("skip_existing"), flag("FILE")] = None
    """Also write the images to a CSV file, those first that the network is least sure of: the next ones to label."""
