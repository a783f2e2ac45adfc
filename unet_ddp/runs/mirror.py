"""A mirror: the place elsewhere that follows the folder of a run, as storage does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unet_ddp.runs.resume import StartPoint


class Mirror:
    """The moments of a run at which its folder calls the mirror, on the main process alone.

    This one does nothing: it is that of a run in a folder of this machine. extras/cloud/mirror.py has the other.
    """

    # Held while the folder writes checkpoints that belong together.
    saving: AbstractContextManager[object] = nullcontext()

    def open(self, launchers: Sequence[str]) -> None:
        """Bring the folder, which is locked, to the state of the mirror unless it has a newer one.

        `launchers` are the names of the torchruns of this start.

        Raises:
            UserError: another run is there, or there is none to resume.
        """

    def claim(self, start: StartPoint) -> None:
        """Make this start the one that may write there; the folder still has what it had.

        Raises:
            UserError: another start has claimed the run meanwhile.
        """

    def saved(self) -> None:
        """Begin to copy what has changed in the folder; any thread may call it, and does not wait."""

    def log_failures(self, *, waits: bool) -> None:
        """Log why copies have failed; `waits`: of the one that runs, too, once it has ended.

        Raises:
            RunError: another start has taken the run over.
        """

    def finish(self) -> None:
        """Copy again what could not be copied: the run has ended.

        Raises:
            RunError: it can't be copied; where it is instead.
        """

    def close(self) -> None:
        """End the threads; also called where `open` or `claim` has failed."""
