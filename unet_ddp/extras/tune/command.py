"""``python -m unet_ddp tune``: a search for settings by successive halving, with runs that resume.

One process draws, and starts the trainings one after another: all ranks of one are given the same.
A draw depends on the seed and the trials before it alone. tune.json has these: a killed search continues from them.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from unet_ddp.cli import parse_train
from unet_ddp.cli.recipes import naming_recipe, suggest
from unet_ddp.config import TrainConfig, all_but
from unet_ddp.errors import Limit, RunError, UserError, check_installed, print_lines, shorten
from unet_ddp.extras.report.compare import compare
from unet_ddp.extras.tune.trainings import (
    TRAIN,
    as_argv,
    check_settings,
    last_words,
    run_command,
    start_training,
    wait_for_training,
    was_stopped,
)
from unet_ddp.files import as_local_path, write_errors, write_text
from unet_ddp.files.contents import read_json
from unet_ddp.runs.epoch_scores import chosen_by
from unet_ddp.runs.lock import lock_folder
from unet_ddp.runs.writers import describe_time, read_rows
from unet_ddp.settings import Kind, as_flag, flag, names_of, settings_of

_FIXED = {
    "epochs",
    "validation",
    "fold",
    "seed",
    "group_pattern",
}  # scores of other validation images can't be compared
_FACTOR = 3  # of epochs from rung to rung, by which the trials become fewer


@dataclass(frozen=True)
class TuneConfig(TrainConfig):
    """Search for settings: trials are trained briefly, the best third of them is continued, and so on.

    python -m unet_ddp tune --vary learning_rate=1e-4..1e-2 loss=dice_ce,tversky_ce --epochs 9

    Takes train.py's flags of a whole run, for all trials. Killed, it is continued by the same command. Its
    folder is that of --checkpoints and --exp-name (default: checkpoints/tune).
    """

    unused = names_of(TrainConfig, Kind.EXTENT)
    vary: Annotated[tuple[str, ...], flag("NAME=VALUES ...")] = ()
    """Settings of train.py and what to draw for each: choices, as loss=dice_ce,ce, or a range, as learning_rate=1e-4..1e-2 (by its logarithm if its ends differ by a factor of ten)."""
    trials: Annotated[int, flag("N"), Limit(1, 1000)] = 9
    """Trials to draw."""


def main(argv: Sequence[str]) -> int:
    """Search, and return the exit status."""
    return run_command("tune", tune, argv)


def tune(argv: Sequence[str]) -> None:
    """Search; print the table of the trials, and the command that trains with the best settings."""
    config = parse_train(argv, prog="python -m unet_ddp tune", kind=TuneConfig)
    with naming_recipe(config.launch.config, config.recipe):
        for name in sorted(config.unused):
            if getattr(config.launch, name):
                raise UserError(f"{as_flag(name)}: a search has its own; leave it out")
    check_installed("optuna", "tune", "tune")
    name = config.run.exp_name or "tune"
    folder = as_local_path(config.run.checkpoints, "--checkpoints") / name
    space = parse_space(config)
    with lock_folder(folder, "--exp-name"):
        search = Search(config, space, folder)
        best = search.run()
        done = [search.place(k) for k, trial in enumerate(search.trials) if trial["dice"]]
        print_lines(*compare(done, folder / "compare.html"))
    own = {"checkpoints": "checkpoints", "exp_name": "best"}
    command = as_argv(config, search.trials[best]["drawn"], **own)
    print_lines(
        f"best: {search.place(best) / 'best.pt'}",
        f"the same in a folder of its own: {shlex.join(['python', *TRAIN[1:], *command])}",
    )


def parse_space(config: TuneConfig) -> dict[str, Any]:
    """Return Optuna's distributions of what to draw, by the settings' names.

    Raises:
        UserError: an unknown setting, or a value that train.py would refuse.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    data = config.data
    if data.validation == 0 and {data.val_images, data.pairs_file, data.fold} == {None}:
        raise UserError("--validation 0: there would be no scores to choose by; leave it out")
    space: dict[str, Any] = {}
    for word in config.vary:
        name, text = _split(word)
        if name in space:
            raise UserError(f"--vary {shorten(word)}: is given twice; name all its values in one")
        ends: list[Any] = text.split("..", 1)
        if len(ends) == 1:
            ends = text.split(",")
            if not all(map(str.strip, ends)):
                raise UserError(f"--vary {shorten(word)}: a value is empty; use NAME=VALUE,VALUE")
            space[name] = CategoricalDistribution(ends)
        else:
            kind: Any = FloatDistribution
            number: Any = float
            if all(end.lstrip("-").isdigit() for end in ends):
                kind, number = IntDistribution, int
            try:
                low, high = ends = [number(end) for end in ends]
                space[name] = kind(low, high, log=0 < 10 * low <= high)
            except ValueError:
                raise UserError(f"--vary {shorten(word)}: use a range like 1e-4..1e-2") from None
        for value in ends:
            parse_train(as_argv(config, {name: value}))
    if not space:
        raise UserError("--vary: name the settings to vary, e.g. --vary learning_rate=1e-4..1e-2")
    return space


def _split(word: str) -> tuple[str, str]:
    """Return the setting that NAME=VALUES means, and the values."""
    kinds = Kind.RUN_PLACE, Kind.DATA_PLACE
    known = sorted(all_but(*kinds) & TrainConfig().to_dict().keys() - _FIXED)
    typed, _, text = word.partition("=")
    typed = typed.replace("-", "_")
    for name, each in settings_of(TrainConfig).items():
        if name in known and typed in [alias.replace("-", "_") for alias in each.names]:
            return name, text
    raise UserError(f"--vary {shorten(word)}: not a setting to vary; {suggest(typed, known)}")


def plan_rungs(trials: int, epochs: int) -> list[tuple[int, int]]:
    """Return how many trials are trained to how many epochs: of 9 and 9, (9, 1), (3, 3), (1, 9)."""
    last = int(math.log(min(trials, epochs) + 0.5, _FACTOR))
    rungs = []
    for k in range(last + 1):
        share = _FACTOR**k
        rungs.append((trials // share, math.ceil(epochs * share / _FACTOR**last)))
    return rungs


class Search:
    """The trials of a search, and what each has reached; tune.json has them after each training."""

    def __init__(self, config: TuneConfig, space: Mapping[str, Any], folder: Path) -> None:
        self.config, self.space, self.folder = config, space, folder
        self.rungs = plan_rungs(config.trials, config.optimization.epochs)
        self.trials: list[dict[str, dict[str, Any]]] = []
        """Of each, "drawn": its settings; and "dice": its best validation Dice by epochs done."""
        self._about = config.to_dict() | {
            "nproc": config.launch.nproc,
            "trials": config.trials,
            "vary": [*config.vary],
        }
        self._file = folder / "tune.json"
        if self._file.exists():
            self._read()
        known = {self.place(k) for k in range(len(self.trials))}
        unknown = sorted(set(filter(Path.is_dir, folder.glob("trial_*"))) - known)
        if unknown:  # it would be continued, under other settings
            raise UserError(
                f"{unknown[0]}: not of the search in {self._file.name}; move such folders away, or use "
                "another --exp-name"
            )

    def _read(self) -> None:
        """Read the trials of an earlier start, which must be of the same search."""
        try:
            saved = read_json(self._file, "a search")
            before, self.trials = dict(saved["about"]), list(saved["trials"])
            drawn = [dict(trial["drawn"]) for trial in self.trials]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f"{self._file}: corrupt, or of no search; use another --exp-name"
            ) from None
        check_settings(self.folder, before, self._about, "search")
        for values in drawn:
            for name, value in values.items():
                choices = getattr(self.space.get(name), "choices", ())
                is_number = not choices and type(value) in (int, float)  # text may have other flags
                if name not in self.space or not (is_number or value in choices):
                    raise UserError(
                        f"{self._file}: corrupt ({name} {value}); use another --exp-name"
                    )

    def _save(self) -> None:
        with write_errors(self._file):
            content = {"about": self._about, "trials": self.trials}
            write_text(self._file, json.dumps(content, indent=1))

    def place(self, k: int) -> Path:
        """Return the run folder of a trial."""
        return self.folder / f"trial_{k:03d}"

    def run(self) -> int:
        """Train the trials, rung by rung, and return the number of the best.

        Raises:
            RunError: the first two trials fail, or all of them.
        """
        candidates = list(range(self.config.trials))
        for count, epochs in self.rungs:
            reached: dict[int, float] = {}
            for k in sorted(candidates[:count]):
                if k == len(self.trials) and not self._draw():
                    print_lines(f"all {k} combinations are drawn")
                    break
                dice = self._train(k, epochs)
                if dice is not None:
                    reached[k] = dice
                elif k == 1 and not reached:
                    break
            if not reached:
                raise RunError(f"all trials failed; {self.folder}/trial_*.log have what they said")
            candidates = sorted(reached, key=lambda k: -reached[k])
        return candidates[0]

    def _draw(self) -> bool:
        """Add a trial with settings that no other has; return False if there are none."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="maximize")
        space = dict(self.space)
        first = str(self.rungs[0][1])  # epochs
        for trial in self.trials:
            if first in trial["dice"]:
                done = optuna.create_trial(
                    params=trial["drawn"], value=trial["dice"][first], distributions=space
                )
                study.add_trial(done)
        begin = max(4, self.config.trials // 3)  # those that are drawn at random
        for attempt in range(100):
            seed = hash((self.config.optimization.seed, len(self.trials), attempt)) % 2**32
            study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=begin)
            drawn = study.ask(space).params
            if drawn not in [trial["drawn"] for trial in self.trials]:
                self.trials.append({"drawn": drawn, "dice": {}})
                self._save()
                return True
        return False

    def _train(self, k: int, epochs: int) -> float | None:
        """Train a trial until it has so many epochs; return its best Dice, None if it fails."""
        place, trial = self.place(k), self.trials[k]
        reached = trial["dice"]
        if str(epochs) in reached:
            return float(reached[str(epochs)])
        flags = " ".join(as_argv(TrainConfig(), trial["drawn"]))
        about = f"trial {k}: {flags}"
        began = time.monotonic()
        wait_for_training(place)
        status = self.start(k, epochs)
        if was_stopped(status):
            raise KeyboardInterrupt
        if status:
            print_lines(f"{about}: failed: {last_words(place, self.config)}")
            return None
        rows = read_rows(place / "metrics.csv")[:epochs]
        dice = max((each for each in chosen_by(rows) if not math.isnan(each)), default=None)
        if dice is None:
            raise UserError(f"{place}: no score of validation to choose by; use --validation")
        reached[str(epochs)] = dice
        self._save()
        took = describe_time(time.monotonic() - began)
        print_lines(f"{about}: validation score {dice:.4f} at epoch {epochs} ({took})")
        return dice

    def start(self, k: int, epochs: int) -> int:
        """Train a trial, from its checkpoint if there is one; return the exit status."""
        drawn = self.trials[k]["drawn"]
        return start_training(self.place(k), self.config, drawn, stop_after=f"{epochs}epochs")
