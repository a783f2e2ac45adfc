"""Settings of the factors of pixels in the pixel term."""

from typing import Annotated

from unet_ddp.errors import Limit
from unet_ddp.settings import Calls, flag


class FactorSettings:
    """Join the settings of the loss."""

    place = "optimization", "label_smoothing"
    hard_pixels: Annotated[
        float, Calls("pixel_factors"), flag("PERCENT"), Limit(above=0, at_most=100)
    ] = 100.0
    """Average the pixel term over only this percentage of the global batch's pixels, the ones with the highest loss (online hard example mining), e.g. 25."""
    boundary_weight: Annotated[
        float | None, Calls("pixel_factors"), flag("WEIGHT"), Limit(at_least=0)
    ] = None
    """Extra weight in the pixel term for pixels near a class boundary, e.g. 5; 0: off (default: 5 with --instances, else 0)."""
