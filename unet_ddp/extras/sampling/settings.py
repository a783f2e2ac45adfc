"""The setting of draws by class."""

from typing import Annotated

from unet_ddp.errors import Limit
from unet_ddp.settings import Calls, flag


class BalanceSettings:
    """Joins those of the data."""

    place = "data", "resize_masks"
    balance: Annotated[float, Calls("plan_draw"), flag("SHARE"), Limit(at_least=0, at_most=1)] = 0.0
    """Share of the training samples that are drawn by class, each class as often as any other, their crops around one of its pixels; e.g. 0.5 where classes are rare; 0: off."""
