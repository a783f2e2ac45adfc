"""Settings of a training run: frozen dataclasses of plain values.

The docstring under a field is its line in ``--help``, and its limit stands beside it. Names are
unique over the groups of a configuration, so that flags, recipes and saved settings are flat. Settings
of installed packages join a group.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from unet_ddp.config.data import PRESETS, DataConfig
from unet_ddp.config.run import LaunchConfig, RunConfig
from unet_ddp.config.training import LOSS_NAMES, PIXEL_TERMS, NetworkConfig, OptimizationConfig
from unet_ddp.files import as_path, is_address
from unet_ddp.settings import NAMES, Kind, Plain, names_of, settings_of, values_of
from unet_ddp.storage import storage_of

__all__ = [
    "LOSS_NAMES", "PIXEL_TERMS", "PRESETS", "DataConfig", "LaunchConfig", "NetworkConfig", "OptimizationConfig",
    "RunConfig", "TrainConfig", "all_but",
]  # fmt: skip


@dataclass(frozen=True)
class TrainConfig:
    """Train a U-Net on a folder of images and a folder of masks.

    own images     python train.py --images imgs --masks masks --exp-name cells
    half an hour   python train.py --images imgs --masks masks --budget 30m

    four GPUs      torchrun --nproc_per_node=4 train.py --images imgs --masks masks
    after a stop   torchrun --nproc_per_node=4 train.py --exp-name cells --resume
    """

    unused: ClassVar[frozenset[str]] = frozenset()  # settings that are no flags of the command
    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimization: OptimizationConfig = field(default_factory=OptimizationConfig)
    run: RunConfig = field(default_factory=RunConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    given: NAMES = field(default=frozenset(), compare=False)
    """Names of the settings that the command line or the recipe gave."""
    recipe: NAMES = field(default=frozenset(), compare=False)
    """Those that the recipe gave, and not the command line."""

    @property
    def address(self) -> Path:
        """The run folder, or its address."""
        return as_path(self.run.checkpoints) / (self.run.exp_name or "")

    @property
    def folder(self) -> Path:
        """The run folder on this machine; of an address one in the user's cache."""
        if is_address(self.address):
            return storage_of(self.address).run_folder(self.address)
        return self.address

    @property
    def resume_file(self) -> Path:
        """The checkpoint that ``--resume`` means, or its address."""
        is_file = self.launch.resume not in (None, "auto")
        return as_path(str(self.launch.resume)) if is_file else self.address / "last.pt"

    def to_dict(self) -> dict[str, Plain]:
        """Return the settings that belong to the run, flat, as checkpoints and recipes have them."""
        saved: dict[str, Plain] = {}
        settings = settings_of(type(self))
        for name, value in values_of(self).items():
            if settings[name].group not in ("", "launch"):
                saved[name] = list(value) if isinstance(value, tuple) else value
        return saved


def all_but(*kinds: Kind) -> frozenset[str]:
    """Return the names of the settings of a run that are of none of these kinds."""
    return frozenset(settings_of(TrainConfig).keys() - names_of(TrainConfig, *kinds))
