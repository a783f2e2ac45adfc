"""Start trainings as other processes, for commands that need several: each continues from its checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any

from unet_ddp.cli.recipes import name_recipe
from unet_ddp.config import TrainConfig
from unet_ddp.distributed.join import exit_with_error
from unet_ddp.distributed.stop_signal import dying_with_parent
from unet_ddp.errors import UserError, print_lines
from unet_ddp.runs.lock import lock_folder
from unet_ddp.settings import as_flag, values_of

TRAIN = [sys.executable, "-m", "unet_ddp", "train"]


def run_command(name: str, work: Callable[[Sequence[str]], None], argv: Sequence[str]) -> int:
    """Run `work`, which starts trainings for the command `name`; return the exit status."""
    if "LOCAL_RANK" in os.environ:
        exit_with_error(UserError(f"{name} under torchrun: it starts the processes; use --nproc N"))
    try:
        work(argv)
    except KeyboardInterrupt:
        print_lines("stopped; continue with the same command")
        return 128 + SIGINT
    return 0


def as_argv(config: TrainConfig, drawn: Mapping[str, Any], **other: Any) -> list[str]:
    """Return the flags of train.py for `config`, but for what is drawn and other settings.

    Defaults that nobody has typed are left out.
    """
    values = values_of(config) | {"config": None} | other
    for name, value in drawn.items():
        text = f"{value:.3g}" if isinstance(value, float) else str(value)
        values[name] = text == "true" if text in ("true", "false") else text.split()
    words: list[str] = []
    for name, default in values_of(TrainConfig()).items():
        value = values[name]
        if value in (None, ()) or (value == default and name not in config.given):
            continue
        if isinstance(value, bool):
            words.append(as_flag(name if value else f"no_{name}"))
            continue
        first, *more = map(str, value if isinstance(value, (list, tuple)) else [value])
        flag = as_flag(name)
        if first.startswith("-"):
            words.append(f"{flag}={first}")
        else:
            words += [flag, first]
        words += more
    return words


def start_training(
    place: Path, config: TrainConfig, changed: Mapping[str, Any], **other: Any
) -> int:
    """Train the run in the folder `place`, from its checkpoint if it has one; return the exit status.

    See `as_argv` for the settings. What the training prints is added to NAME.log, next to its folder.
    """
    own = {"checkpoints": str(place.parent), "exp_name": place.name, **other}
    begin = "--overwrite"
    if (place / "last.pt").is_file():
        own["load"], begin = None, "--resume"
    with Path(f"{place}.log").open("ab") as log:
        process = subprocess.Popen(
            [*TRAIN, *as_argv(config, changed, **own), begin],
            stdout=log,
            stderr=log,
            preexec_fn=dying_with_parent(SIGTERM),
        )
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()  # it saves; a terminal has interrupted it already
            process.wait()
            raise


def wait_for_training(place: Path) -> None:
    """Wait until a training that a killed command has left in the folder `place` has saved and ended."""
    try:
        lock_folder(place, "--exp-name").close()
    except UserError as error:
        print_lines(f"waiting: {error}")
        lock_folder(place, "--exp-name", waits=True).close()


def was_stopped(status: int) -> bool:
    """Return whether a signal to a training was its end."""
    return status in (128 + SIGINT, 128 + SIGTERM, -SIGINT, -SIGTERM)  # negative: at its start


def last_words(place: Path, config: TrainConfig) -> str:
    """Return the last line that the training in the folder `place` has printed."""
    said = Path(f"{place}.log").read_text(encoding="utf-8", errors="replace")
    return name_recipe(said.strip().rpartition("\n")[2], config.launch.config, config.recipe)


def check_settings(
    folder: Path, before: Mapping[str, Any], now: Mapping[str, Any], what: str
) -> None:
    """Refuse settings that differ from those `before`, with which `what` is in `folder` was begun.

    Raises:
        UserError: one differs.
    """
    for name, value in now.items():
        begun = before.get(name)
        if json.dumps(begun) != json.dumps(value):  # nan is not nan
            raise UserError(
                f"{folder}: its {what} has {as_flag(name)} {begun}, not {value}; continue it by its "
                "own command, or use another --exp-name"
            )
