"""`unet_ddp.export`: what the command writes and prints, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Literal, NamedTuple

from unet_ddp.cli import parse
from unet_ddp.cli.python import to_words
from unet_ddp.cli.signature import Data
from unet_ddp.commands.data_arguments import giving_data
from unet_ddp.commands.trained_run import network_of
from unet_ddp.distributed.defaults import usual_defaults
from unet_ddp.errors import one_line
from unet_ddp.extras.onnx.settings import ExportConfig


class RuntimeScores(NamedTuple):
    """The masks of an exported network in a runtime, beside the checkpoint's."""

    dice: float
    checkpoint_dice: float
    equal_pixels: float
    """Share of the pixels in which both masks are equal, 0 to 1."""
    images_per_second: float
    is_used: bool
    """False if Dice fell by more than the tolerance: predictions with the file do not use it."""


@dataclass(frozen=True)
class ExportResult:
    """A network that was exported, as `export` returns it; `print(result)` shows what the command prints.

    Example:
        result = unet_ddp.export("checkpoints/first", "model.onnx", whole=True)
        print(result.runtimes["onnxruntime"].dice)
    """

    path: Path
    """The file."""
    runtimes: dict[str, RuntimeScores]
    """Of each runtime `dice`, `checkpoint_dice`, `equal_pixels`, `images_per_second`, `is_used`; empty if not scored."""
    text: str = field(repr=False)
    """The lines of the command."""

    def __str__(self) -> str:
        return self.text


@usual_defaults()
def export(
    model: str | PathLike[str],
    path: str | PathLike[str],
    *,
    images: Data = None,
    masks: Data = None,
    whole: bool = False,
    precision: Literal["float32", "float16", "int8"] = "float32",
    runtime: Literal["auto", "onnxruntime", "openvino"] = "auto",
    tolerance: float = 0.002,
    network: str | None = None,
    overwrite: bool = False,
) -> ExportResult:
    """Write a trained network as an ONNX file if its masks are as good, as `python -m unet_ddp export` does.

    Args:
        model: a checkpoint, a run's folder, or the run that `train` has returned.
        path: the file to write, .onnx.
        images: to score the masks on, as in `train`; None for the validation images of the model's run.
        masks: their masks.
        whole: from images of any size to mask values, with all steps in the file.
        precision: float16 is half the size; int8 a quarter, and faster on CPUs.
        runtime: in which the masks are scored; auto: each that is installed, of which one has to pass.
        tolerance: write no file if Dice is lower than the checkpoint's by more than this.
        network: "module:function" of your own network; that of a run is known.
        overwrite: replace an existing file.

    Raises:
        UserError: a mistake in the arguments, or an extra is not installed.
        RunError: the masks, or the probabilities, are not the checkpoint's: no file is written.
    """
    network = network or network_of(model)
    with giving_data({"images": images, "masks": masks}) as places:
        given = {
            "whole": whole, "precision": precision, "runtime": runtime, "tolerance": tolerance,
            "overwrite": overwrite, **places,
        }  # fmt: skip
        return _export(given, {"checkpoint": model, "output": path}, network)


def _export(
    given: Mapping[str, object], files: Mapping[str, object], network: str | None
) -> ExportResult:
    from unet_ddp.extras.onnx.export import find_job, write_export

    flags, places = (
        [word for name, value in each.items() for word in to_words(name, value, ExportConfig)]
        for each in (given, files)
    )
    argv = [*flags, "--", *(place.partition("=")[2] for place in places)]
    config = parse(ExportConfig, argv, prog="unet_ddp.export")
    config = replace(config, network=network)  # it may be a class
    written = write_export(find_job(config))
    scores = {}
    for name, verdict in written.verdicts.items():
        before, dice = verdict.dice
        is_used = name in written.passing
        scores[name] = RuntimeScores(dice, before, verdict.shares, verdict.rate, is_used)
    return ExportResult(Path(config.output or ""), scores, "\n".join(map(one_line, written.lines)))
