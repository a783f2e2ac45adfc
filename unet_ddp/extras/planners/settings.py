"""The setting of the planner of epochs."""

import re
from typing import Annotated

from unet_ddp.errors import UserError, shorten
from unet_ddp.settings import Brief, Calls, Kind, Replaces, flag


class BudgetSettings:
    """Joins the settings of a start."""

    place = "launch", "config"
    budget: Annotated[
        str | None,
        Kind.EXTENT,
        Calls("planners"),
        Replaces("epochs"),
        flag("TIME"),
        Brief("Plan the epochs for a time, e.g. 30m or 2h."),
    ] = None
    """Time of a whole new run, e.g. 90s, 30m or 2h, instead of --epochs: some steps are timed, and as many epochs planned as end in it."""

    def check(self) -> None:
        """Raise a UserError if it is no time."""
        if self.budget is not None:
            parse_time(self.budget)


def parse_time(text: str) -> float:
    """Return the seconds in the value of --budget: 90s, 30m, 1.5h.

    Raises:
        UserError: it is no such time.
    """
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([smh])", text)
    if found is None:
        raise UserError(f"--budget {shorten(text)}: not a time; use one like 90s, 30m or 2h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]
