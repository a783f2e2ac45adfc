"""Settings of a run's folder, and of a start."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from unet_ddp.config.data import DIR, NOT_NEGATIVE, POSITIVE, N
from unet_ddp.errors import Limit, UserError, check_installed, shorten
from unet_ddp.settings import (
    OPTIONAL_FILE,
    Brief,
    Calls,
    Excludes,
    Kind,
    Names,
    Replaces,
    Typed,
    flag,
    joined,
)


@dataclass(frozen=True)
@joined("run")
class RunConfig:
    """The run's folder, its files, and the weights it starts from."""

    checkpoints: Annotated[str, Kind.RUN_PLACE, Kind.FILES, DIR] = "checkpoints"
    """Folder of runs, or its address in object storage (s3://bucket/folder, gs://, az://): files are then written to the user's cache folder first (XDG_CACHE_HOME), and uploaded from there."""
    exp_name: Annotated[
        str | None,
        Kind.RUN_PLACE,
        Kind.FILES,
        flag("NAME"),
        Brief("Save the run in checkpoints/NAME."),
    ] = None
    """Save the run in the sub-folder NAME of --checkpoints (default: in --checkpoints itself)."""
    save_every: Annotated[int, Kind.FILES, flag("EPOCHS"), NOT_NEGATIVE] = 0
    """Also keep the checkpoint of every so many epochs, as epoch_0005.pt; 0: last.pt and best.pt only."""
    save_every_steps: Annotated[int, Kind.FILES, N, NOT_NEGATIVE] = 0
    """Also write last.pt every N optimizer steps; 0: off."""
    save_every_minutes: Annotated[float, Kind.FILES, flag("M"), NOT_NEGATIVE] = 10.0
    """Also write last.pt when the previous one is M minutes old; 0: off."""
    load: Annotated[str | None, Kind.RUN_PLACE, flag("FILE", "-f")] = None
    """Start from the weights in this checkpoint or run folder (or s3:// address), of this program or another; classes and channels may differ."""
    wandb: Annotated[
        bool,
        Kind.RUN_PLACE,
        Kind.FILES,
        Kind.EXTRA,
        Calls("callbacks"),
        Typed("logged to Weights & Biases"),
    ] = False
    """Also log to Weights & Biases (extra wandb); a recipe or checkpoint can't turn it on."""
    mlflow: Annotated[
        bool,
        Kind.RUN_PLACE,
        Kind.FILES,
        Kind.EXTRA,
        Calls("callbacks"),
        Typed("logged to MLflow"),
    ] = False
    """Also log to MLflow, to the server or folder that MLFLOW_TRACKING_URI names (extra mlflow); a recipe or checkpoint can't turn it on."""

    def check(self) -> None:
        """Raise a UserError for an address as the run's name, or if the library of a setting is not installed."""
        if "://" in (self.exp_name or ""):
            raise UserError(
                f"--exp-name {self.exp_name}: is an address; give it with --checkpoints, and a name here"
            )
        if self.wandb:
            check_installed("wandb", "wandb", "--wandb")
        if self.mlflow:
            check_installed("mlflow", "mlflow", "--mlflow")


@dataclass(frozen=True)
@joined("launch")
class LaunchConfig:
    """Settings of one start; never saved with the run."""

    resume: Annotated[
        str | None,
        Kind.EXTENT,
        Excludes("load"),
        OPTIONAL_FILE,
        flag("[FILE]"),
        Brief("Continue the run where it stopped."),
    ] = None
    """Continue the run in its folder where it stopped, on any machine if that is an address, or continue from the checkpoint FILE."""
    overwrite: Annotated[bool, Kind.EXTENT] = False
    """Delete the run in the folder and start a new one."""
    config: Annotated[
        str | None,
        Kind.DATA,
        Kind.OF_HOST,
        flag("FILE"),
        Brief("Recipe: carvana, cells, camvid, NAME_imagenet or your own file."),
    ] = None
    """Recipe: a YAML file of settings, named as the flags are, or camvid, camvid_imagenet, carvana, carvana_imagenet, cells or cells_imagenet, which are in the package; flags take precedence."""
    budget: Annotated[
        str | None,
        Kind.EXTENT,
        Kind.EXTRA,
        Calls("planners"),
        Replaces("epochs"),
        flag("TIME"),
        Brief("Plan the epochs for a time, e.g. 30m or 2h."),
    ] = None
    """Time of a whole new run, e.g. 90s, 30m or 2h, instead of --epochs: some steps are timed, and as many epochs planned as end in it."""
    stop_after: Annotated[str | None, Kind.EXTENT, flag("N|Nepochs")] = None
    """Stop after N optimizer steps in all, or after N of the --epochs, e.g. 500 or 3epochs; continue with --resume."""
    nproc: Annotated[int, Kind.OF_HOST, N, POSITIVE, Brief("Processes on this machine.")] = 1
    """Start N processes on this machine, as torchrun --nproc_per_node=N does."""
    workers: Annotated[int | None, Kind.OF_HOST, N, NOT_NEGATIVE] = None
    """Data loading processes per training process (default: by the number of cores, at most 16)."""
    cache: Annotated[bool, Kind.OF_HOST, Kind.EXTRA] = False
    """Decode and scale each pair once, and keep it in the user's cache folder (XDG_CACHE_HOME) for this and later runs."""
    device: Annotated[
        Literal["auto", "cpu", "cuda"], Kind.OF_HOST, Brief("auto: a GPU if there is one")
    ] = "auto"
    """auto: a GPU if there is one."""
    timeout: Annotated[float, Kind.OF_HOST, flag("SECONDS"), Limit(above=0, at_most=1_000_000)] = (
        600.0
    )
    """Longest wait of a process for the others before it gives up."""
    max_bad_steps: Annotated[int, N, POSITIVE] = 20
    """Stop after N steps in a row with a non-finite loss or gradient; single ones are skipped."""
    skip_bad_files: Annotated[int, Kind.DATA, N, NOT_NEGATIVE] = 0
    """Leave out up to N pairs whose files the scan can't read; 0: stop at the first."""
    rescue_dir: Annotated[str | None, Kind.OF_HOST, DIR] = None
    """Fallback folder for the final checkpoint, if the run's folder can't be written to; made and tried at the start (default: the system's temporary folder)."""
    log: Annotated[
        Literal["text", "json"], Kind.OF_HOST, Kind.EXTRA, Typed("logged in JSON lines")
    ] = "text"
    """json: print a JSON object in each line, also for warnings and errors, all on standard output; docs/files.md."""
    profile: Annotated[bool, Kind.OF_HOST, Kind.EXTRA, Calls("callbacks")] = False
    """Print where the time of ten steps goes, and save their trace in the run's folder."""
    callback: Annotated[tuple[str, ...], Names("callbacks"), flag("MODULE:CLASS ...")] = ()
    """Callbacks of your own, which follow the run and may end it; docs/own_parts.md."""
    deterministic: Annotated[bool, Kind.EXTRA] = False
    """Use deterministic algorithms, slower on a GPU; warn where torch has none."""
    changed_code: Annotated[bool, Kind.EXTENT] = False
    """Continue a run although the source of a part of your own has changed since its last save."""

    def last_step(self, steps_per_epoch: int) -> int | None:
        """Return the steps of the run at which --stop-after stops it.

        Raises:
            UserError: it is no number of steps or epochs.
        """
        if self.stop_after is None:
            return None
        found = re.fullmatch(r"([1-9]\d{0,15})(epochs?)?", self.stop_after)
        if not found:
            raise UserError(
                f"--stop-after {self.stop_after}: use a number of steps, as 500, or of epochs, as 3epochs"
            )
        return int(found[1]) * (steps_per_epoch if found[2] else 1)

    def check(self) -> None:
        """Raise a UserError if settings contradict each other."""
        self.last_step(1)
        if self.resume == "auto" and self.overwrite:
            raise UserError("--resume continues the run, --overwrite deletes it: use one of them")
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
