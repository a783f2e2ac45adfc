"""Settings of the factors of pixels in the pixel term."""

from typing import Annotated

from unet_ddp.errors import Limit
from unet_ddp.settings import Calls, flag


class FactorSettings:
    """Join those of the loss."""

    place = "optimization", "label_smoothing"
    hard_pixels: Annotated[
        float, Calls("pixel_factors"), flag("PERCENT"), Limit(above=0, at_most=100)
    ] = 100.0
    """Percentage of the pixels, the hardest of the global batch, that the pixel term is the mean of (OHEM), e.g. 25."""
    boundary_weight: Annotated[
        float | None, Calls("pixel_factors"), flag("WEIGHT"), Limit(at_least=0)
    ] = None
    """Further weight in the pixel term of a pixel among other classes' pixels, e.g. 5; 0: off (default: 5 with --instances, else 0)."""
