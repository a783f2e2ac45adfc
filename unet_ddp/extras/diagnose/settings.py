"""Settings of the profiler and of deterministic algorithms."""

from typing import Annotated

from unet_ddp.settings import Calls, Kind


class ProfileSettings:
    """Joins the settings of a start."""

    place = "launch", "rescue_dir"
    profile: Annotated[bool, Kind.OF_HOST, Calls("callbacks")] = False
    """Print where the time of ten steps goes, and save their trace in the run's folder."""


class DeterministicSettings:
    """Joins the settings of a start."""

    place = "launch", "callback"
    deterministic: bool = False
    """Use deterministic algorithms, slower on a GPU; warn where torch has none."""
