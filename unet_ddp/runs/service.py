"""The interface of tracking services, as Weights & Biases and MLflow: what they are sent of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from unet_ddp.runs.ending import Ending
from unet_ddp.runs.writers import Row, RunInfo


class ServiceWriter(ABC):
    """A callback that sends the settings, the figures of each epoch and the end of a run to a service.

    A resumed run continues the same run of the service, by the id that run.json has.
    """

    name: ClassVar[str]
    """Of its setting, and in run.json."""
    run_id: str
    """The id of the run at the service."""

    def __init__(self, run: RunInfo) -> None:
        self.previous = run.tracked.get(self.name)
        """The id that an earlier start had; None for a new run."""

    def epoch(self, row: Row) -> None:
        """Send the cells of a row that are not empty."""
        self.send({name: value for name, value in row.items() if value != ""}, row["step"])

    @abstractmethod
    def send(self, figures: Row, step: int) -> None:
        """Send the figures of an epoch, which ends with a step of the run.

        Raises:
            UserError: the service does not take them.
        """

    @abstractmethod
    def close(self, ending: Ending) -> None:
        """End the run at the service as it ends here."""
