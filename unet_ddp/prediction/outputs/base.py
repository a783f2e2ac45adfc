r"""An output: what a job writes of its predictions, by a class that `plugins.find("outputs", …)` finds.

One of your own is written with the others, by ``predict.py photos/ -o masks --write sizes:Sizes``:

    # sizes.py
    class Sizes(Output):
        path = Path("sizes.json")  # one file for all images
        header, separator, footer = "[", ",", "]\n"

        def files(self, image):  # and one for each
            return [image.named("_size.json")]

        def write(self, image, prediction):
            write_text(*self.files(image), self.record(image, prediction))

        def record(self, image, prediction):
            return json.dumps({"image": image.name, "size": prediction.size})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TextIO

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Band
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError
from unet_ddp.files import as_path
from unet_ddp.plugins import is_own, make
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.prediction import Prediction
from unet_ddp.settings import called

ADVICE = "make room, or use another --output"
"""For those who can't write an image's file."""
Receiver = Callable[[Band], None]


@dataclass(frozen=True)
class ImageFiles:
    """An image and the files of its prediction."""

    index: int  # position among the job's images
    image: Path
    source: Source  # the image's file
    mask: Path
    name: str  # in files of all images: the file's name, or its path where names repeat
    written: list[Path] = field(default_factory=list)  # the files of all outputs
    mark: str = ""  # in a mask's file, of the network that makes it
    marks: Mapping[Path, str] = field(default_factory=dict)  # in those of earlier jobs, their own

    def named(self, ending: str) -> Path:
        """Return the path of a file next to the mask, named as the image and with this ending."""
        return self.mask.with_name(self.mask.stem.removesuffix("_mask") + ending)


class Output:
    """An output of a job; what its methods do by default suits one without files.

    Threads write several images at once, each `watch`, `write`, `record`. A file that can't be written is a
    UserError. A file is replaced whole by `unet_ddp.files.replacing` or `write_text`.
    """

    flag = "--write"
    """The flag that asks for it, for messages."""
    path: Path | None = None
    """The file of all images, if it has one."""
    path_setting: ClassVar[str] = ""
    """The setting that names it, of an output that has one."""
    header, separator, footer = "", "", ""
    """Of that file, as `merge` writes it."""
    turn: ClassVar[int] = 0
    """0; 1 for the mask, whose presence says that an image is done; 2 for what people edit later: it is
    written after the mask, and --skip-existing finds none without one."""

    def __init__(self, config: PredictConfig, labels: Labels, image_format: ImageFormat) -> None:
        self.config = config
        self.labels = labels
        self.image_format = image_format  # that the network's images have
        if self.path_setting:
            self.path = as_path(getattr(config, self.path_setting))

    def check(self, images: Mapping[Source, bool]) -> None:
        """Raise a UserError if it can't be had, of these labels or images (is each on a map?), on rank 0."""

    def files(self, image: ImageFiles) -> Sequence[Path]:
        """Return the image's own files: none may exist, be another's, or have a too long name."""
        return ()

    def watch(
        self, image: ImageFiles, prediction: Prediction
    ) -> AbstractContextManager[Receiver | None]:
        """Return a context that yields a function: it gets each band of the prediction, from the top.

        The network runs once for all outputs. What you learn of an image, keep by `image.index`; it
        is for `write` or `record`.
        """
        return nullcontext()

    def write(self, image: ImageFiles, prediction: Prediction) -> None:
        """Write the image's own files."""

    def record(self, image: ImageFiles, prediction: Prediction) -> str:
        """Return what the file of all images says of this one; empty for nothing.

        Of an image that --skip-existing skips there is the mask, but no band and no probability.
        """
        return ""

    def merge(self, records: Iterable[str], file: TextIO) -> None:
        """Write the file of all images from their records, in the images' order, on rank 0.

        The records of all processes do not fit into memory, perhaps. They can be read again.
        """
        file.write(self.header)
        separator = "\n"
        for record in records:
            file.write(separator + record)
            separator = self.separator + "\n"
        file.write("\n" + self.footer)


def open_outputs(config: PredictConfig, labels: Labels, image_format: ImageFormat) -> list[Output]:
    """Return the outputs that a job's settings ask for, each once, in the order of their messages.

    Raises:
        UserError: one is not known, can't be imported, or is no `Output`.
    """
    mask = "class_masks" if labels.may_overlap else "mask"
    if config.mask_format == "none":
        mask = "no_mask"
    flags = {name: f"--{name}" for name in (mask, *called(config, "outputs"))}
    for name in config.write:
        if not is_own("outputs", name):
            raise UserError(f"--write {name}: is no output; name one of yours as MODULE:CLASS")
        flags.setdefault(name, f"--write {name}")
    outputs = []
    for name, flag in flags.items():
        output = make("outputs", name, flag, Output, config, labels, image_format)
        output.flag = flag
        outputs.append(output)
    return outputs
