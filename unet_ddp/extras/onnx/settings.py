"""Settings of `export`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from unet_ddp.errors import Limit, UserError
from unet_ddp.settings import Excludes, flag

_OF_FILE = ("precision", "runtime", "images", "tolerance")


@dataclass(frozen=True)
class ExportConfig:
    """Write a checkpoint as an ONNX file for other programs, if its masks are as good.

    python -m unet_ddp export best.pt model.onnx
    """

    checkpoint: Annotated[str, tyro.conf.Positional, flag("CHECKPOINT")]
    """The checkpoint or its run's folder, or an address (s3://…)."""
    output: Annotated[str | None, tyro.conf.Positional, flag("[FILE]")] = None
    """The file to write, .onnx; .zip with --bioimageio."""
    card: Annotated[str | None, flag("DIR")] = None
    """Write a folder to give to others: weights (safetensors), config.json, and a model card with the scores."""
    license: Annotated[str, flag("ID")] = "unknown"
    """Licence in the model card or package, for example mit or cc-by-4.0."""
    whole: Annotated[bool, Excludes("qgis")] = False
    """From images of any size to mask values: resizing, and threshold or most probable class, are in the file."""
    qgis: bool = False
    """With the input, the output and the metadata of QGIS's plugin Deepness."""
    bioimageio: Annotated[bool, Excludes("whole", "qgis")] = False
    """A package for bioimage.io, FILE.zip: the network from images to probabilities, its description, its test."""
    authors: Annotated[tuple[str, ...], flag("NAME ...")] = ()
    """--bioimageio: the authors."""
    cite: Annotated[str | None, flag("DOI")] = None
    """--bioimageio: the paper to cite, as 10.1234/abc."""
    sample: Annotated[str | None, flag("IMAGE")] = None
    """--bioimageio: an image whose upper left corner is published as the test (default: random pixels)."""
    precision: Literal["float32", "float16", "int8"] = "float32"
    """float16: half the size; int8: a quarter of it, and faster on CPUs, calibrated on training images."""
    runtime: Literal["auto", "onnxruntime", "openvino"] = "auto"
    """Score the masks in this runtime (auto: in each that is installed; one has to pass)."""
    images: Annotated[str | None, flag("DIR")] = None
    """Folder of images to score the masks on (default: the validation images of the checkpoint's run)."""
    masks: Annotated[str | None, flag("DIR")] = None
    """Folder of their masks."""
    tolerance: Annotated[float, flag("DICE"), Limit(at_least=0, at_most=1)] = 0.002
    """Write no file if Dice is lower than the checkpoint's by more than this."""
    calibration: Annotated[str | None, flag("DIR")] = None
    """int8: folder of images to calibrate on (default: the training images of the checkpoint's run)."""
    network: Annotated[str | None, flag("MODULE:FUNCTION")] = None
    """The network of your own that the checkpoint was trained with: a checkpoint starts no code."""
    scale: Annotated[float | None, flag("FACTOR", "-s")] = None
    """Scale of the images for a checkpoint of another program, which does not contain it (default: 0.5)."""
    overwrite: bool = False
    """Replace an existing file."""

    def check(self) -> None:
        """Refuse images without masks, and settings of what is not written."""
        if (self.images is None) != (self.masks is None):
            raise UserError("--images and --masks: use both or neither")
        if self.calibration is not None and self.precision != "int8":
            raise UserError(f"--calibration: is for --precision int8, not {self.precision}")
        if not self.bioimageio and (self.authors or self.cite or self.sample):
            raise UserError("--authors, --cite, --sample: are for --bioimageio; leave them out")
        if self.license != ExportConfig.license and not (self.bioimageio or self.card is not None):
            raise UserError("--license: is for --card and --bioimageio; leave it out")
        if self.output is not None and self.output.encode(errors="ignore").decode() != self.output:
            raise UserError(f"{self.output}: a name that is no text, as ONNX needs; use another")
        flags = [self.form] if self.form else []
        flags += [
            f"--{name}" for name in _OF_FILE if getattr(self, name) != getattr(ExportConfig, name)
        ]
        if self.card is not None and self.output is None and flags:
            suffix = ".zip" if self.bioimageio else ".onnx"
            raise UserError(f"{flags[0]}: no file is named; name a FILE{suffix} beside --card")

    @property
    def form(self) -> str:
        """The flag that adds steps to the network, empty if there is none."""
        forms = {"--bioimageio": self.bioimageio, "--whole": self.whole, "--qgis": self.qgis}
        return next((name for name, is_set in forms.items() if is_set), "")
