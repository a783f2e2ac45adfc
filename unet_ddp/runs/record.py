"""run.json: the record of a run, for whoever asks later where its numbers come from."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from unet_ddp.checkpoints.file import Content
from unet_ddp.checks.check import used_folders
from unet_ddp.config import TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.files import is_address, write_errors, write_text
from unet_ddp.files.contents import LaterFormatError, check_format, read_json
from unet_ddp.files.output import as_plain
from unet_ddp.runs.ending import Ending
from unet_ddp.runs.environment import describe_start, now
from unet_ddp.runs.writers import Row, read_rows, to_float
from unet_ddp.settings import Kind, names_of
from unet_ddp.training.state import TrainState

NAME = "run.json"
FORMAT = 1


class RunRecord:
    """Writes run.json on the main process: at the start, after each epoch and at the end.

    A kill leaves the state of the last epoch, which says "running". A record that can't be written is a warning,
    but at the start. `is_new`: the run has had no earlier start.
    """

    def __init__(
        self,
        config: TrainConfig,
        data: PreparedData,
        world: World,
        log: Callable[[str], None],
        *,
        is_new: bool,
    ) -> None:
        self._path, self._log = config.folder / NAME, log
        # Of a new run, the file is one of the run that it replaces.
        before = {} if is_new else read_record(self._path)
        self._earlier = before.get("starts", [])
        self.tracked = {
            name: str(each) for start in self._earlier for name, each in start["tracked"].items()
        }
        """The ids at tracking services that the run had in an earlier start, by their names."""
        self.start = {**describe_start(world.device), "processes": world.size, "tracked": {}}
        """The facts of this start; `tracked` has the ids of the run at tracking services, by their names."""
        self._made_with = {**self.start, "metrics": {}}
        training, validation = len(data.split.training), len(data.split.validation)
        self._content: Content = {
            "format": FORMAT,
            "settings": resolve_paths(config, data),
            "data": {"training": training, "validation": validation},
        }
        self._kept = before.get("settings", {})  # the run's, until a step is done with others
        self._is_open = False

    def describe(self, metadata: Content) -> Content:
        """Return what each checkpoint has of a run, this start and the figures of the best epoch included.

        `metadata` is the rest of it.
        """
        digest = hashlib.sha256(metadata["names"].encode() + metadata["files"].numpy().tobytes())
        self._content["data"]["fingerprint"] = digest.hexdigest()
        return {**metadata, "made_with": self._made_with}

    def open(self, state: TrainState) -> None:
        """Write that the run has started, or is resumed; metrics.csv has the rows of the epochs that it has done.

        Raises:
            UserError: it can't be written.
        """
        self._state = state
        self.start |= {"step": state.done, "end": {"state": "running"}}
        self._content["starts"] = [*self._earlier, self.start]
        rows = map(_to_figures, read_rows(self._path.with_name("metrics.csv")))
        self._rows = {row["epoch"]: row for row in rows if "epoch" in row}
        self._note_metrics(state)
        with write_errors(self._path, "free some space"):
            self._write()
        self._is_open = True

    def end_epoch(self, state: TrainState, row: Row) -> None:
        """Write the figures of an epoch and of the best one, which are then in the next checkpoint."""
        self._rows[row["epoch"]] = _to_figures(row)
        self._note_metrics(state)
        self._try_to_write()

    def close(self, ending: Ending) -> None:
        """Write how this start has ended."""
        if self._is_open:
            self.start["end"] = {"date": now(), **asdict(ending)}
            self._try_to_write()

    def _note_metrics(self, state: TrainState) -> None:
        best = self._rows.get(state.best_epoch + 1) if state.best > -math.inf else None
        last = self._rows[max(self._rows)] if self._rows else None
        self._content["metrics"] = {"best": best, "last": last}
        self._made_with["metrics"] = best or {}

    def _try_to_write(self) -> None:
        try:
            self._write()
        except OSError as error:
            self._log(f"warning: {self._path}: not written ({error.strerror or error})")

    def _write(self) -> None:
        content = self._content
        if self._state.done == self.start["step"]:
            content = {**content, "settings": {**content["settings"], **self._kept}}
        text = json.dumps(as_plain(content), indent=2, ensure_ascii=False) + "\n"
        text = text.encode("utf-8", "backslashreplace").decode()  # bytes of paths that are no text
        if (
            not self._path.parent.is_dir()
        ):  # removed during the run: not created again without its lock
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        write_text(self._path, text, durable=True)


def read_record(path: Path) -> Content:
    """Return a run's record; empty without one, and if it is damaged.

    Raises:
        UserError: it is of a later format.
    """
    try:
        content: Content = read_json(path, "the record of a run")
        check_format(path, content, FORMAT)
        starts = content["starts"]
        parts = [content["settings"], content["data"], *starts]
        parts += [start[name] for start in starts for name in ("packages", "tracked", "end")]
        is_whole = content["format"] == FORMAT and all(isinstance(part, dict) for part in parts)
    except LaterFormatError:
        raise
    except (UserError, OSError, KeyError, TypeError):
        return {}
    return content if is_whole else {}


def resolve_paths(config: TrainConfig, data: PreparedData) -> Content:
    """Return the settings of a run with absolute paths, also of folders that no setting names."""
    settings: Content = config.to_dict()
    settings |= used_folders(config.data, data.split.training)
    for name in {*names_of(type(config), Kind.DATA_PLACE), "load", "checkpoints"}:
        if isinstance(settings.get(name), str) and not is_address(settings[name]):
            settings[name] = str(Path(settings[name]).absolute())
    return settings


def _to_figures(row: Row) -> Row:
    """Return the numbers in a row of metrics.csv; a cell that is empty or damaged has none."""
    figures: Row = {}
    for name, value in row.items():
        number = to_float(str(value))
        if math.isfinite(number):
            figures[name] = int(number) if str(value).isdecimal() else number
    return figures
