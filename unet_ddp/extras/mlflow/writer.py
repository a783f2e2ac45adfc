"""MLflow (--mlflow): settings, figures of each epoch, and how the run ended."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unet_ddp.errors import UserError, one_line, words_of
from unet_ddp.runs.ending import Ending
from unet_ddp.runs.service import ServiceWriter
from unet_ddp.runs.writers import Row, RunInfo

_EXPERIMENT = "unet_ddp"
_LONGEST = 6000  # characters of a parameter, as MLflow has it
_MANY = 100  # parameters in a request
_STATES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
# A server that is lost must not hold the run up for minutes, as MLflow's own limits do. A folder is what
# the user has named, or MLflow would have taken its data base.
_DEFAULTS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


@contextmanager
def explaining() -> Iterator[None]:
    """Turn an error of MLflow, or of the way to it, into a UserError of one line."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError, ImportError) as error:
        reason = one_line(words_of(error))[:500]
        raise UserError(
            f"--mlflow: {reason}; check MLFLOW_TRACKING_URI, or leave --mlflow out"
        ) from None


class MlflowWriter(ServiceWriter):
    """Logs each epoch to the server or folder that MLFLOW_TRACKING_URI names.

    MLflow makes up a run's name that is None. The experiment is that of MLFLOW_EXPERIMENT_NAME, or unet_ddp.

    Raises:
        UserError: MLflow refuses, or does not answer.
    """

    name = "mlflow"

    def __init__(self, run: RunInfo) -> None:
        super().__init__(run)
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        with explaining():
            from mlflow.tracking import MlflowClient

            self._client: Any = MlflowClient()
            self.run_id = self._resume() or self._begin(run)
        self._due: list[tuple[Row, int, int]] = []

    def _resume(self) -> str | None:
        """Return the id of the run to continue; None if there is none, or MLflow has it no more."""
        from mlflow.exceptions import MlflowException

        if self.previous is None:
            return None
        try:
            self._client.update_run(self.previous, status="RUNNING")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return self.previous

    def _begin(self, run: RunInfo) -> str:
        from mlflow.entities import Param, RunTag

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _EXPERIMENT)
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        begun = self._client.create_run(experiment, run_name=run.name).info.run_id
        params = [
            Param(name, str(value)[:_LONGEST])
            for name, value in run.settings.items()
            if value is not None
        ]
        for first in range(0, len(params), _MANY):
            self._client.log_batch(begun, params=params[first : first + _MANY])
        tags = {
            "unet_ddp": run.start.get("unet_ddp"),
            "mlflow.source.name": run.start.get("command"),
            "mlflow.source.git.commit": run.start.get("commit"),
        }
        known = [RunTag(name, value) for name, value in tags.items() if value]
        self._client.log_batch(begun, tags=known)
        return str(begun)

    def send(self, figures: Row, step: int) -> None:
        """Log the figures of an epoch, with those that MLflow has not taken yet."""
        from mlflow.entities import Metric

        self._due.append((figures, step, int(1000 * time.time())))
        metrics = []
        for row, at, now in self._due:
            for name, value in row.items():
                key = re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)  # what MLflow allows
                metrics.append(Metric(key, float(value), now, at))
        with explaining():
            self._client.log_batch(self.run_id, metrics=metrics)
        self._due = []

    def close(self, ending: Ending) -> None:
        """End the run there: FINISHED, KILLED or FAILED, with the error as the tag "error"."""
        if self._due:
            self.send(*self._due.pop()[:2])
        with explaining():
            self._client.set_tag(self.run_id, "exit_status", str(ending.exit_status))
            if ending.error:
                self._client.set_tag(self.run_id, "error", ending.error[:_LONGEST])
            self._client.set_terminated(self.run_id, _STATES[ending.state])
