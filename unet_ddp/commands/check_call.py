"""`unet_ddp.check`: what the doctor prints, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from unet_ddp.cli import parse_train
from unet_ddp.cli.python import to_words
from unet_ddp.cli.signature import Data
from unet_ddp.commands import doctor
from unet_ddp.commands.data_arguments import giving_data
from unet_ddp.commands.doctor import DataClass, DoctorConfig
from unet_ddp.distributed.defaults import usual_defaults
from unet_ddp.errors import UserError, one_line
from unet_ddp.settings import settings_of

_ELSEWHERE = {"amp", "no_amp"}.union(
    *(each.names for name, each in settings_of(DoctorConfig).items() if name in DoctorConfig.unused)
)
"""Settings of `train` that are not about data, by all of their names."""


@dataclass(frozen=True)
class DataCheck:
    """The findings in a data set, as `check` returns them; `print(result)` shows all of it.

    Example:
        found = unet_ddp.check("imgs", "masks")
        assert found.is_fit, found.problems
    """

    problems: list[str]
    """What makes it unfit to train on, a line each."""
    warnings: list[str]
    """Likely mistakes."""
    notes: list[str]
    """What the images and masks are, and how they are split."""
    training: int
    """Number of images to train on."""
    validation: int
    """Number of images to validate on."""
    sizes: dict[tuple[int, int], int]
    """Number of images by (height, width)."""
    classes: list[DataClass]
    """Of each class `name`, `value`, its shares of the `training` and `validation` pixels, `balancing_weight`."""
    text: str = field(repr=False)
    """The lines of the command."""

    @property
    def is_fit(self) -> bool:
        """True if there are no problems."""
        return not self.problems

    def __str__(self) -> str:
        return self.text


@usual_defaults()
def check(images: Data = None, masks: Data = None, **settings: object) -> DataCheck:
    """Return what is in a data set and what is wrong with it, as `python -m unet_ddp doctor` prints it.

    Args:
        images: as in `train`: a folder, arrays, or a data set.
        masks: the same, of their masks.
        **settings: settings of `train` that are about data, e.g. `validation=20` or `class_names=("soil", "leaf")`.

    Raises:
        UserError: a setting is wrong; problems of the data are in the result.
    """
    for name in _ELSEWHERE.intersection(settings):
        raise UserError(
            f"{name}: check() takes the settings of train() that are about data; leave it out"
        )
    with giving_data({"images": images, "masks": masks, **settings}) as places:
        argv = [word for name, value in places.items() for word in to_words(name, value)]
        config = parse_train(argv, prog="unet_ddp.check", kind=DoctorConfig)
        report, data = doctor.check_data(config)
        lines = doctor.format_findings(report, data)
        has_classes = data is not None and data.split is not None and data.labels is not None
        split = data.split if data else None
        return DataCheck(
            problems=report.problems, warnings=report.warnings, notes=report.notes,
            training=len(split.training) if split else 0,
            validation=len(split.validation) if split else 0,
            sizes=dict(data.table.sizes) if data else {},
            classes=doctor.measure_classes(data) if data and has_classes else [],
            text="\n".join(map(one_line, lines)),
        )  # fmt: skip
