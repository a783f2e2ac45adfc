"""The setting of the cache."""

from typing import Annotated

from unet_ddp.settings import Kind


class CacheSettings:
    """Joins the settings of a start."""

    place = "launch", "workers"
    cache: Annotated[bool, Kind.OF_HOST] = False
    """Decode and scale each pair once, and keep it in the user's cache folder (XDG_CACHE_HOME) for this and later runs."""
