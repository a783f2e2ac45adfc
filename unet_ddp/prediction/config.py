"""Settings of a prediction, and the command line of predict.py."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Literal

import tyro

from unet_ddp.cli import parse
from unet_ddp.errors import Limit, UserError
from unet_ddp.plugins import is_built_in
from unet_ddp.settings import Calls, Excludes, Heading, Percent, called, flag, joined, pairs_of

_MODULE_CLASS = re.compile(r"[\w.]+:\w+")


@dataclass(frozen=True)
@joined("predict")
class PredictConfig:
    """Predict the masks of images with a trained network.

    python predict.py image.jpg [more.jpg folder/ ...]
    """

    inputs: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        flag("IMAGE ..."),
        Heading("What to predict, and with which network"),
    ]
    """Images, folders of images, patterns such as 'a/**/*.jpg', and .txt files with a path on each line; also at s3://, gs:// or az:// addresses, single files at http:// ones."""
    output: Annotated[str | None, flag("PATH", "-o"), Heading("What to write")] = None
    """The mask's file, or the folder for the masks of several images, or its address (default: next to each image)."""
    model: Annotated[
        tuple[str, ...], flag("FILE ...", "-m"), Heading("What to predict, and with which network")
    ] = ()
    """Checkpoint or exported network, or its address (s3://bucket/run/best.pt); several are averaged (default: that of the newest run in checkpoints)."""
    network: Annotated[str | None, flag("MODULE:FUNCTION")] = None
    """The network of your own that the checkpoint was trained with: a checkpoint starts no code."""
    reader: Annotated[tuple[str, ...], flag("MODULE:CLASS ...")] = ()
    """Reader of your own for other kinds of files; docs/own_parts.md."""
    scale: Annotated[float | None, flag("FACTOR", "-s"), Heading("How")] = None
    """Scale of the images for a checkpoint of another program, which does not contain it (default: 0.5)."""
    threshold: Annotated[float | None, flag("P", "-t")] = None
    """Two classes: predict foreground where its probability is at least P (default: the checkpoint's, the mean of several; else the class with the highest probability)."""
    tta: Literal["none", "mirror", "flips", "d4"] = "none"
    """Average over transformed copies of the image: mirror: left-right (2 times the work); flips: also upside down (4); d4: also quarter turns (8)."""
    tile: Annotated[int | None, flag("PIXELS")] = None
    """Predict in overlapping square tiles with this side, after scaling (default: 1024 if an image does not fit into memory)."""
    overlap: Annotated[float, flag("PERCENT"), Percent(at_least=1, below=100)] = 25.0
    """Percentage of a tile's side that neighbouring tiles have in common."""
    mask_format: Annotated[Literal["auto", "png", "tif", "none"], Heading("What to write")] = "auto"
    """Format of masks whose names --output does not give. auto: tif for images with map coordinates, or for several classes of objects, else png. none: no masks, only what other flags ask for."""
    ground_resolution: Annotated[
        float | None, flag("METRES"), Limit(above=0, at_most=1_000_000), Heading("How")
    ] = None
    """Bring images with map coordinates to pixels of this size, before scaling (default: the training images' size)."""
    overlay: Annotated[bool, Calls("outputs"), Heading("What to write")] = False
    """Also write each image with its mask drawn over it, as image_overlay.png."""
    probabilities: Annotated[Literal["none", "png", "npy"], Calls("outputs")] = "none"
    """Also write the probabilities. png: a 16-bit image_probability_CLASS.png per class; npy: one image_probabilities.npy."""
    rle: Annotated[str | None, Calls("outputs"), flag("FILE")] = None
    """Also write the run-length encoded masks of all images to a CSV file, as for the Carvana challenge."""
    rle_order: Literal["rows", "columns"] = "rows"
    """Pixel order of --rle. rows: as in the Carvana challenge; columns: as in the Data Science Bowl and most others."""
    polygons: Annotated[str | None, Calls("outputs"), flag("FILE")] = None
    """Also write the outlines of all objects to a GeoJSON file (needs the extra geo)."""
    objects: Annotated[str | None, Calls("outputs"), flag("FILE")] = None
    """Network trained with --instances: also write area, centre, box, class and mean probability of all objects to a CSV file."""
    annotations: Annotated[str | None, Calls("outputs"), flag("FILE|labelme")] = None
    """Also write the objects for an annotation tool to correct: FILE.json in COCO's format, or with labelme a file next to each mask (needs the extra geo)."""
    rank: Annotated[str | None, Calls("outputs"), Excludes("skip_existing"), flag("FILE")] = None
    """Also write the images to a CSV file, those first that the network is least sure of: the next ones to label."""
    label_studio: Annotated[str | None, Calls("outputs"), flag("FILE")] = None
    """Also write tasks for Label Studio, whose brush corrects the predictions: FILE.json."""
    counts: Annotated[str | None, Calls("outputs"), flag("FILE")] = None
    """Network trained with --instances: also write the number of objects and their area in each image, 0 included, to a CSV file."""
    write: Annotated[tuple[str, ...], flag("MODULE:CLASS"), tyro.conf.UseAppendAction] = ()
    """Also write an output of your own, or one that a package brings under a name; may be repeated."""
    overwrite: Annotated[bool, Excludes("skip_existing")] = False
    """Replace existing files."""
    skip_existing: bool = False
    """Skip images whose files already exist, to continue an interrupted job."""
    batch_size: Annotated[int | None, flag("N", "-b"), Limit(at_least=1), Heading("How")] = None
    """Images of equal size per batch (default: 8 on a GPU; one per core on a CPU)."""
    nproc: Annotated[int, flag("N"), Limit(at_least=1)] = 1
    """Start N processes on this machine, as torchrun --nproc_per_node=N does; they share the images, and a large scene."""
    workers: Annotated[int | None, flag("N"), Limit(at_least=1)] = None
    """Threads that read, write and, on a CPU, predict (default: one per core)."""
    precision: Literal["auto", "float32"] = "auto"
    """auto: bfloat16 if the network was trained in it and this CPU is faster in it."""
    runtime: Annotated[str | None, flag("NAME")] = None
    """Library that runs an exported network (default: the fastest in which its masks were scored)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if there is one."""
    log: Literal["text", "json"] = "text"
    """json: print a JSON object in each line, also for warnings and errors, all on standard output; docs/files.md."""

    @property
    def advice_if_stopped(self) -> str:
        """Advice after a signal: --skip-existing is refused beside some flags."""
        excluded = pairs_of(PredictConfig, Excludes)
        refuses = any(getattr(self, name) for name, other in excluded if other == "skip_existing")
        return "start again with --overwrite" if refuses else "continue with --skip-existing"


def parse_predict(argv: Sequence[str], *, prog: str = "predict.py") -> PredictConfig:
    """Return the configuration of a prediction.

    ``--model a.pt b.pt photo.jpg`` names two models: what can't be a model is an image. So is what
    can't be a --reader.

    Raises:
        UserError: an unknown flag, a value out of its limits, or nothing to write.
    """
    config = parse(PredictConfig, argv, prog=prog)
    if config.mask_format == "none" and not (config.write or called(config, "outputs")):
        raise UserError(
            "--mask-format none: nothing would be written; add an output, such as --rle FILE.csv"
        )
    models = (*config.model[:1], *takewhile(_is_model, config.model[1:]))
    inputs = [*config.inputs, *config.model[len(models) :]]
    readers = []
    for name in config.reader:
        if _MODULE_CLASS.fullmatch(name):
            readers.append(name)
        else:
            inputs.append(name)
    return replace(config, model=models, reader=tuple(readers), inputs=tuple(inputs))


def _is_model(name: str) -> bool:
    path = Path(name.removeprefix("file://"))  # nothing is asked at an address yet
    suffix = path.suffix.lower().removeprefix(".")
    return is_built_in("backends", suffix) or (path / "best.pt").exists()
