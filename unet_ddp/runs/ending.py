"""The end of a run, for its record, its callbacks and trackers."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from unet_ddp.distributed.launch import exit_status_of
from unet_ddp.distributed.stop_signal import StopReason
from unet_ddp.errors import one_line


@dataclass(frozen=True)
class Ending:
    """The end of a start of a run."""

    state: str
    """finished, stopped (by a signal or as asked: --resume continues) or failed."""
    exit_status: int
    signal: str | None = None
    """Its name, as SIGTERM."""
    error: str | None = None
    """What went wrong, in one line."""

    @classmethod
    def of(cls, error: BaseException | None, reason: StopReason | None) -> Ending:
        """Return the end by what a run raises, or by the reason on which all ranks have stopped."""
        if error is not None:
            status = exit_status_of(error)
            if isinstance(error, KeyboardInterrupt):
                return cls("stopped", status, signal.SIGINT.name)
            return cls("failed", status, error=one_line(str(error) or type(error).__name__))
        if reason is None:
            return cls("finished", 0)
        return cls("stopped", reason.exit_status, reason.signal.name if reason.signal else None)
