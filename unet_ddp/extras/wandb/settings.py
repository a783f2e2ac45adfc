"""The setting of Weights & Biases."""

from typing import Annotated

from unet_ddp.errors import check_installed
from unet_ddp.settings import Calls, Kind, Typed


class WandbSettings:
    """Joins the settings of the run's folder and files."""

    place = "run", "load"
    wandb: Annotated[
        bool, Kind.RUN_PLACE, Kind.FILES, Calls("callbacks"), Typed("logged to Weights & Biases")
    ] = False
    """Also log to Weights & Biases (pip install 'unet-ddp[wandb]'); a recipe or checkpoint can't turn it on."""

    def check(self) -> None:
        """Raise a UserError if the library is not installed."""
        if self.wandb:
            check_installed("wandb", "wandb", "--wandb")
