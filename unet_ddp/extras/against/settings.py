"""The setting of the comparison of two networks."""

from typing import Annotated

from unet_ddp.settings import flag


class AgainstSettings:
    """Joins the settings of an evaluation."""

    place = "evaluate", "tolerance"
    against: Annotated[str | None, flag("OTHER")] = None
    """Compare with another network on the same images, with a 95 % interval: its checkpoint or run folder, or the folder or per_image.csv of its evaluation."""
