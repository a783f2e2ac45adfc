"""Settings of a run's folder, and of a start."""

from dataclasses import dataclass
from typing import Annotated, Literal

from unet_ddp.config.data import DIR, NOT_NEGATIVE, POSITIVE, N
from unet_ddp.errors import Limit, UserError
from unet_ddp.settings import (
    OPTIONAL_FILE,
    Excludes,
    Kind,
    Names,
    flag,
    joined,
)


@dataclass(frozen=True)
@joined("run")
class RunConfig:
    """The run's folder, its files, and the weights it starts from."""

    checkpoints: Annotated[str, Kind.RUN_PLACE, Kind.FILES, DIR] = "checkpoints"
    """Folder of runs, or its address in object storage (s3://bucket/folder, gs://, az://): each file is then written to the user's cache folder (XDG_CACHE_HOME) and put from there."""
    exp_name: Annotated[str | None, Kind.RUN_PLACE, Kind.FILES, flag("NAME")] = None
    """Save the run in the sub-folder NAME of --checkpoints (default: in --checkpoints itself)."""
    save_every: Annotated[int, Kind.FILES, flag("EPOCHS"), NOT_NEGATIVE] = 0
    """Also keep the checkpoint of every so many epochs, as epoch_0005.pt; 0: last.pt and best.pt only."""
    save_every_steps: Annotated[int, Kind.FILES, N, NOT_NEGATIVE] = 0
    """Also write last.pt every N optimizer steps; 0: off."""
    save_every_minutes: Annotated[float, Kind.FILES, flag("M"), NOT_NEGATIVE] = 10.0
    """Also write last.pt when the previous one is M minutes old; 0: off."""
    load: Annotated[str | None, Kind.RUN_PLACE, flag("FILE", "-f")] = None
    """Start from the weights in this checkpoint or run folder (or s3:// address), of this program or another; classes and channels may differ."""


@dataclass(frozen=True)
@joined("launch")
class LaunchConfig:
    """Settings of one start; never saved with the run."""

    resume: Annotated[str | None, Kind.EXTENT, Excludes("load"), OPTIONAL_FILE, flag("[FILE]")] = (
        None
    )
    """Continue the run in its folder where it stopped, on any machine if that is an address, or continue from the checkpoint FILE."""
    overwrite: Annotated[bool, Kind.EXTENT] = False
    """Delete the run in the folder and start a new one."""
    config: Annotated[str | None, Kind.DATA, Kind.OF_HOST, flag("FILE")] = None
    """Recipe: a YAML file of settings, named as the flags are, or camvid, carvana or cells, which are in the package; flags take precedence."""
    max_steps: Annotated[int | None, Kind.EXTENT, N, POSITIVE] = None
    """Stop after N optimizer steps in all; continue with --resume."""
    max_epochs: Annotated[int | None, Kind.EXTENT, N, POSITIVE] = None
    """Stop after N of the --epochs in all; continue with --resume."""
    nproc: Annotated[int, Kind.OF_HOST, N, POSITIVE] = 1
    """Start N processes on this machine, as torchrun --nproc_per_node=N does."""
    workers: Annotated[int | None, Kind.OF_HOST, N, NOT_NEGATIVE] = None
    """Data loading processes per training process (default: by the number of cores, at most 16)."""
    device: Annotated[Literal["auto", "cpu", "cuda"], Kind.OF_HOST] = "auto"
    """auto: a GPU if there is one."""
    timeout: Annotated[float, Kind.OF_HOST, flag("SECONDS"), Limit(above=0, at_most=1e6)] = 600.0
    """Longest wait of a process for the others before it gives up."""
    max_bad_steps: Annotated[int, N, POSITIVE] = 20
    """Stop after N steps in a row with a non-finite loss or gradient; single ones are skipped."""
    skip_bad_files: Annotated[int, Kind.DATA, N, NOT_NEGATIVE] = 0
    """Leave out up to N pairs whose files the scan can't read; 0: stop at the first."""
    rescue_dir: Annotated[str | None, Kind.OF_HOST, DIR] = None
    """Fallback folder for the final checkpoint, if the run's folder can't be written to; made and tried at the start (default: the system's temporary folder)."""
    writer: Annotated[tuple[str, ...], Names("writers"), flag("MODULE:CLASS ...")] = ()
    """Writers of your own, which follow the run; docs/own_parts.md."""

    def check(self) -> None:
        """Raise a UserError if settings contradict each other."""
        if self.resume == "auto" and self.overwrite:
            raise UserError("--resume continues the run, --overwrite deletes it: use one of them")
