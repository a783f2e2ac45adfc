"""Keep what a start replaces until it has done a step."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from unet_ddp.checkpoints.run_files import (
    REPLACED,
    find_checkpoints,
    find_files,
    set_aside,
    settle,
    withdraw,
)
from unet_ddp.config import TrainConfig
from unet_ddp.errors import UserError
from unet_ddp.files import is_address, replacing
from unet_ddp.runs.resume import StartPoint
from unet_ddp.training.state import TrainState


class Replaced:
    """The files that a start replaces: a run comes back, whole, if the start ends before a step is done.

    They are kept until such a step is saved. An address is left as it is.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config, self._folder = config, config.folder
        self._kept: set[Path] | None = None  # what a start leaves as it is that replaces others
        self._recipe: bytes | None = None  # of a run that is resumed
        self._state: TrainState | None = None
        self._first = 0  # steps that were done before this start
        self._is_stopped = False

    def move(self, start: StartPoint) -> str:
        """Move aside what a start replaces before its first step; return the name of its run.

        One that goes back replaces what is later than its checkpoint, and is another run.

        Raises:
            OSError: a file can't be moved; all are where they were.
        """
        config, folder = self._config, self._folder
        stays = {"config.yaml", "split.csv", "run.json", *start.files}
        if start.is_new:
            set_aside(folder, None if config.launch.overwrite else stays)
            stays = set()
        elif start.source.name == config.resume_file.name != "last.pt":
            stays |= {"metrics.csv", start.source.name}
            set_aside(folder, {*stays, *_find_later(folder, start)}, stays=stays)
        else:
            assert start.content is not None
            with suppress(OSError):
                self._recipe = (folder / "config.yaml").read_bytes()
            return str(start.content["run"])
        self._kept = {*find_files(folder)} - {folder / name for name in stays}
        return uuid4().hex

    @property
    def is_moved(self) -> bool:
        """True if the run of this start must be saved first, as it replaces all others."""
        return self._kept is not None

    def follow(self, state: TrainState) -> None:
        """Learn from now on which steps this start has done."""
        self._state, self._first = state, state.done

    @property
    def _has_no_step(self) -> bool:
        """True if this start may be taken back: it has done no step, and a save of it is at no address."""
        is_here = not is_address(self._config.address)
        return is_here and self._state is not None and self._state.done == self._first

    @property
    def _comes_back(self) -> bool:
        """True if a run is aside on this machine: no step was saved, so an early end brings it back."""
        is_here = self._kept is not None and not is_address(self._config.address)
        return is_here and bool(find_checkpoints(self._folder / REPLACED))

    def stop(self, *, is_error: bool) -> bool:
        """Learn that the run stops; return whether to save it: not if an error leaves it without a step."""
        self._is_stopped = True
        return not (is_error and self._has_no_step)

    def describe_stop(self, done: int) -> str:
        """Return what is left of a run that is stopped after `done` steps, in words."""
        if self._comes_back and self._has_no_step:
            return "before its first step, so the run that it was to replace stays as it was"
        return f"after step {done}; continue with --resume"

    def delete(self) -> None:
        """Delete what was moved aside once a step is done: a save of it comes."""
        self._recipe = None
        if self._kept is not None and self._state is not None and not self._has_no_step:
            settle(self._folder)
            self._kept = None

    def end(self, error: BaseException | None) -> None:
        """Delete what was moved aside, or bring it back after an end without a step.

        A mistake of the user's then leaves no run where there was none.
        """
        is_mistake = isinstance(error, UserError) and not self._is_stopped
        is_early = error is not None or self._is_stopped  # otherwise nothing was left to train
        with suppress(OSError):
            if self._recipe is not None and error is not None and self._has_no_step:
                with replacing(self._folder / "config.yaml", durable=True) as temporary:
                    temporary.write_bytes(self._recipe)
            if self._kept is None:
                return
            if (is_mistake and self._has_no_step) or (is_early and self._comes_back):
                own = {*find_files(self._folder)} - self._kept
                withdraw(self._folder, [str(path.relative_to(self._folder)) for path in own])
            else:
                settle(self._folder)


def _find_later(folder: Path, start: StartPoint) -> set[str]:
    """Return the names of what came after the checkpoint that --overwrite goes back to."""
    assert start.content is not None
    kept = start.content["position"]["epoch"]
    names = {path.name for path in find_checkpoints(folder)}
    numbers = {name: name.removeprefix("epoch_").removesuffix(".pt") for name in names}
    later = {name for name, text in numbers.items() if text.isdecimal() and int(text) > kept}
    return {"last.pt", "last.1.pt", *later} | (set() if start.has_best else names & {"best.pt"})
