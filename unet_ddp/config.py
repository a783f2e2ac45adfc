"""What a user can set: frozen dataclasses of plain values, and how they are filled.

The docstring under an attribute is its line in ``--help``. Every name is unique over the
groups, so that flags, recipes and saved configurations are flat. A value comes, the later
winning, from: the default, the checkpoint that is resumed, ``--config recipe.yaml``, the
command line.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import io
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro
import yaml

from unet_ddp.errors import UserError

USUAL_STEP = 16  # images in a step, where --batch-size auto is not told

Plain = bool | int | float | str | list[Any] | None
Settings = TypeVar("Settings")


def _flag(*aliases: str, metavar: str | None = None) -> Any:
    return tyro.conf.arg(aliases=aliases or None, metavar=metavar)


# `--resume` alone and `--resume FILE`: a flag with an optional value.
_OPTIONAL_FILE = tyro.constructors.PrimitiveConstructorSpec(
    nargs="*",
    metavar="[FILE]",
    instance_from_str=lambda words: words[0] if words else "auto",
    is_instance=lambda value: value is None or isinstance(value, str),
    str_from_instance=lambda value: [] if value is None else [value],
)


def mask_value(word: str) -> int:
    """A mask value from a number, or from a colour as #rrggbb."""
    return int(word[1:], 16) if re.fullmatch(r"#[0-9a-fA-F]{6}", word) else int(word)


_MASK_VALUE = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="VALUE",
    instance_from_str=lambda words: mask_value(words[0]),
    is_instance=lambda value: value is None or isinstance(value, int),
    str_from_instance=lambda value: [str(value)],
)


@dataclass(frozen=True)
class DataConfig:
    """The pairs of images and masks, and how they are read."""

    images: Annotated[str | None, _flag(metavar="DIR")] = None
    """Folder of images (data/imgs; the built-in demo set where that is empty)."""
    masks: Annotated[str | None, _flag(metavar="DIR")] = None
    """Folder of masks, one for each image: image.jpg with image.png or image_mask.gif (data/masks)."""
    list: Annotated[str | None, _flag(metavar="FILE")] = None
    """The pairs as a CSV file instead, with the columns image,mask and perhaps group,split (training, validation, test)."""
    mask_suffix: Annotated[str | None, _flag(metavar="TEXT")] = None
    """What a mask's name has after its image's name, as in _mask; found by itself when absent."""
    val_images: Annotated[str | None, _flag(metavar="DIR")] = None
    """Folder of images to validate on, instead of a share of --images."""
    val_masks: Annotated[str | None, _flag(metavar="DIR")] = None
    """Folder of their masks."""
    scale: Annotated[float, _flag("-s", metavar="FACTOR")] = 1.0
    """Images are reduced to this fraction of their size, 0 < FACTOR <= 1, in training and prediction alike."""
    crop_size: Annotated[tuple[int, int] | None, _flag(metavar="HEIGHT WIDTH")] = None
    """Train on random crops of this size, after scaling; by default whole images where all have one size, else crops of the median size."""
    validation: Annotated[float, _flag("-v", metavar="PERCENT")] = 10.0
    """Share of the images kept for validation, 0 <= PERCENT < 100; whole groups where groups are found."""
    group_pattern: Annotated[str | None, _flag(metavar="REGEX")] = None
    """Images whose names match with the same first bracket stay on one side of the split; detected when absent."""
    folds: Annotated[int | None, _flag(metavar="K")] = None
    """Cross-validation: deal the groups of images out into K folds, and validate on one of them."""
    fold: Annotated[int | None, _flag(metavar="I")] = None
    """Which one, from 1 to K."""
    channels: Annotated[int | None, _flag(metavar="N")] = None
    """1 for grey, 3 for colour, 4 to keep transparency; as the images have them when absent."""
    nodata: Annotated[float | None, _flag(metavar="VALUE")] = None
    """The value of pixels in which the images hold nothing, as -9999 or nan; such pixels count nowhere."""
    classes: Annotated[int | None, _flag("-c", metavar="N")] = None
    """Number of classes, background included; counted in the masks when absent."""
    class_names: Annotated[tuple[str, ...] | None, _flag(metavar="NAME ...")] = None
    """A name for each class, in the order of the mask values."""
    palette: Annotated[str | None, _flag(metavar="FILE")] = None
    """The classes as a CSV file: lines of name,value or name,#rrggbb; one called ignore is left out."""
    binary: bool = False
    """Two classes: every mask value above zero is the one, as where each object has a number."""
    mask_threshold: Annotated[int | None, _flag(metavar="VALUE")] = None
    """Two classes: every mask value above this is the one, as for masks with soft edges."""
    invert: bool = False
    """Of two classes, the darker one is what is looked for, not the background."""
    ignore_index: Annotated[int | None, _MASK_VALUE] = None
    """The mask value, or colour as #rrggbb, of pixels that count neither in the loss nor in the scores."""
    resize_masks: bool = False
    """Bring masks of another size than their images to it, by the nearest pixel."""
    skip_scan: bool = False
    """Don't look at every file before the first step; needs --palette, --classes or --binary."""
    augmentation: Literal["none", "photo", "overhead"] = "photo"
    """none; photo: mirror, small shifts, zoom and turns, brightness, contrast and colour; overhead: the same for pictures that have no up and down, as from a microscope or from above."""


@dataclass(frozen=True)
class NetworkConfig:
    """The network that is trained."""

    model: Annotated[str, _flag(metavar="NAME")] = "unet"
    """unet (the classic one), or unet++, fpn, deeplabv3plus, segformer and the others of segmentation-models-pytorch."""
    encoder: Annotated[str | None, _flag(metavar="NAME")] = None
    """Encoder of segmentation-models-pytorch, as resnet34 or tu-efficientnet_b0; with it, unet is that library's."""
    encoder_weights: Annotated[str | None, _flag(metavar="NAME")] = None
    """Start the encoder from pretrained weights, as imagenet; downloaded once."""
    width: Annotated[int, _flag(metavar="CHANNELS")] = 32
    """Channels of the classic U-Net's first level; the paper's has 64."""
    bilinear: bool = False
    """Bilinear upsampling in the classic U-Net instead of transposed convolutions."""
    checkpointing: bool = False
    """Save memory by computing activations of the classic U-Net a second time in the backward pass."""


@dataclass(frozen=True)
class OptimizationConfig:
    """How it is trained."""

    epochs: Annotated[int, _flag("-e", metavar="N")] = 10
    """Passes over the training images."""
    batch_size: Annotated[int | Literal["auto"], _flag("-b", metavar="N")] = 4
    """Images per process at once; a step of the optimizer takes this times the processes times --accumulate. auto: the most that fit into memory, with --accumulate to make up --images-per-step."""
    accumulate: Annotated[int, _flag(metavar="N")] = 1
    """Steps of the optimizer gather the gradients of N batches; loss and batch norm see one batch at a time."""
    images_per_step: Annotated[int | None, _flag(metavar="N")] = None
    """Images in a step of the optimizer on all processes together, in place of --accumulate (with --batch-size auto: 16)."""
    learning_rate: Annotated[float, _flag("-l", "--lr", metavar="RATE")] = 1e-3
    """Highest learning rate of AdamW; reached after the warm-up, then a cosine falls to a hundredth of it."""
    warmup: Annotated[float, _flag(metavar="PERCENT")] = 5.0
    """Share of all steps in which the learning rate rises."""
    weight_decay: Annotated[float, _flag(metavar="RATE")] = 1e-4
    """Decoupled weight decay of AdamW."""
    clip: Annotated[float, _flag(metavar="NORM")] = 1.0
    """Gradients longer than this are shortened to it; 0 for never."""
    dice_weight: Annotated[float, _flag(metavar="WEIGHT")] = 1.0
    """Weight of the Dice loss."""
    cross_entropy_weight: Annotated[float, _flag(metavar="WEIGHT")] = 1.0
    """Weight of the cross-entropy."""
    class_weights: Annotated[tuple[float, ...] | None, _flag(metavar="WEIGHT ...")] = None
    """One weight per class, for both losses."""
    amp: bool = True
    """Mixed precision; on by default on a GPU."""
    amp_dtype: Literal["auto", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 where the GPU has it, else float16; on a CPU, float32 unless bfloat16 is asked for."""
    compile: bool = False
    """Have torch.compile make code for this network and image size: a minute at the start, quicker steps after it; not with --checkpointing."""
    ema: Annotated[float, _flag(metavar="DECAY")] = 0.0
    """Also keep a moving average of the weights, as 0.999, and score and predict with it; 0 for none."""
    seed: Annotated[int, _flag(metavar="N")] = 0
    """Everything random follows from it: weights, split, order, augmentation, dropout."""

    @property
    def images_at_once(self) -> int:
        """The batch size; for auto the most that it can come to, a whole step on one process."""
        if isinstance(self.batch_size, int):
            return self.batch_size
        return self.images_per_step or USUAL_STEP


@dataclass(frozen=True)
class RunConfig:
    """Where the run is kept."""

    checkpoints: Annotated[str, _flag(metavar="DIR")] = "checkpoints"
    """Folder of runs."""
    exp_name: Annotated[str | None, _flag(metavar="NAME")] = None
    """The run's folder inside it; the folder itself when absent."""
    save_every: Annotated[int, _flag(metavar="EPOCHS")] = 0
    """Keep a checkpoint of every so many epochs beside last.pt and best.pt; 0 for none."""
    save_every_steps: Annotated[int, _flag(metavar="N")] = 0
    """Write last.pt also after every N steps, not only after epochs; 0 for never."""
    save_every_minutes: Annotated[float, _flag(metavar="M")] = 10.0
    """Write last.pt also when the last one is M minutes old; 0 for never."""
    load: Annotated[str | None, _flag("-f", metavar="FILE")] = None
    """Start from the weights of this checkpoint, of ours or of another U-Net program."""
    wandb: bool = False
    """Also log to Weights & Biases (pip install 'unet-ddp[wandb]')."""


@dataclass(frozen=True)
class LaunchConfig:
    """How this start goes about it; not part of the run, never saved with it."""

    resume: Annotated[str | None, _OPTIONAL_FILE] = None
    """Continue the run in its folder at the step where it stopped, or continue from FILE."""
    overwrite: bool = False
    """Delete the run that the folder holds and begin anew."""
    config: Annotated[str | None, _flag(metavar="FILE")] = None
    """A recipe: a YAML file of defaults, named as the flags are."""
    max_steps: Annotated[int | None, _flag(metavar="N")] = None
    """Stop, resumable, once the run has done N steps of the optimizer."""
    nproc: Annotated[int, _flag(metavar="N")] = 1
    """Start N processes on this machine, as torchrun --nproc_per_node=N would."""
    workers: Annotated[int | None, _flag(metavar="N")] = None
    """Reading processes per training process; from the cores when absent."""
    cache: bool = False
    """Decode and scale each pair once, and keep it in the user's cache folder (XDG_CACHE_HOME) for this and later runs."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """A GPU where there is one, unless told."""
    timeout: Annotated[float, _flag(metavar="SECONDS")] = 600.0
    """How long a process waits for the others before it gives up."""
    max_bad_steps: Annotated[int, _flag(metavar="N")] = 20
    """Steps whose loss or gradient is not finite are skipped; stop after N of them in a row."""
    skip_bad_files: Annotated[int, _flag(metavar="N")] = 0
    """Bear up to N files that can't be read, taking another image for each; 0 to stop at the first."""
    rescue_dir: Annotated[str | None, _flag(metavar="DIR")] = None
    """Where the end of a run goes that can't be written to its folder; the system's temporary folder."""
    profile: bool = False
    """Show where the time of ten steps goes, and write their trace into the run's folder."""
    deterministic: bool = False
    """Use torch's deterministic algorithms, slower on a GPU, and say where there is none."""


@dataclass(frozen=True)
class TrainConfig:
    """Train a U-Net on a folder of images and a folder of masks.

    torchrun --nproc_per_node=4 train.py --images DIR --masks DIR
    """

    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimization: OptimizationConfig = field(default_factory=OptimizationConfig)
    run: RunConfig = field(default_factory=RunConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run.checkpoints) / (self.run.exp_name or "")


Training = TypeVar("Training", bound=TrainConfig)


@dataclass(frozen=True)
class DoctorOptions:
    """What the doctor does beside looking."""

    strict: bool = False
    """Exit with status 1 where there are warnings."""
    json: bool = False
    """Print what was found as JSON, for programs."""
    figure: Annotated[str | None, _flag(metavar="FILE")] = None
    """Draw a dozen samples into this PNG file, as the network sees them, masks over them."""


@dataclass(frozen=True)
class DoctorConfig(TrainConfig):
    """Look at a data set before training on it: what it is, what is wrong, what a run will cost.

    Takes the flags of train.py. Exit status 0 where it is sound, 2 where it can't be trained on.
    """

    doctor: DoctorOptions = field(default_factory=DoctorOptions)


@dataclass(frozen=True)
class PredictConfig:
    """Predict the masks of images with a trained network.

    python predict.py image.jpg [more.jpg folder/ ...]
    """

    inputs: tyro.conf.Positional[tuple[str, ...]]
    """Images, folders of images, patterns as 'a/**/*.jpg', and .txt files with a path on each line."""
    output: Annotated[str | None, _flag("-o", metavar="PATH")] = None
    """The mask's file, or for several images the folder for their masks; beside each image when absent."""
    model: Annotated[tuple[str, ...], _flag("-m", metavar="FILE ...")] = ()
    """The checkpoint, or a file that export wrote (checkpoints/best.pt, or the newest best.pt of the runs there); of several the mean."""
    scale: Annotated[float | None, _flag("-s", metavar="FACTOR")] = None
    """For checkpoints of other programs, which do not say at which scale they were trained (0.5)."""
    threshold: Annotated[float | None, _flag("-t", metavar="SHARE")] = None
    """Of two classes, the second is predicted where its probability is at least this; the checkpoint's, or else the class with the highest probability, when absent."""
    tta: Literal["none", "mirror", "flips", "d4"] = "none"
    """Also predict the image mirrored (mirror), upside down (flips) and turned (d4), and take the mean: 2, 4 or 8 times the work."""
    tile: Annotated[int | None, _flag(metavar="PIXELS")] = None
    """Predict in overlapping windows of this side, after scaling; by itself 1024 where an image does not fit into memory."""
    overlap: Annotated[float, _flag(metavar="SHARE")] = 0.25
    """Share of a window's side that its neighbours see too, 0 <= SHARE < 1."""
    mask_format: Literal["png", "tif"] = "png"
    """Of masks that --output does not name."""
    overlay: bool = False
    """Also write each image with its mask drawn over it, image_overlay.png."""
    probabilities: Literal["none", "png", "npy"] = "none"
    """Also write the probabilities: 16-bit PNGs, image_probability_CLASS.png, or image_probabilities.npy."""
    rle: Annotated[str | None, _flag(metavar="FILE")] = None
    """Also write the run lengths of all masks to one CSV file, as the Carvana challenge takes them."""
    rle_order: Literal["rows", "columns"] = "rows"
    """In which order pixels are numbered: along rows, as Carvana has it, or down columns, as the Data Science Bowl and most others."""
    polygons: Annotated[str | None, _flag(metavar="FILE")] = None
    """Also write the outlines of all objects to one GeoJSON file."""
    overwrite: bool = False
    """Replace files that are there already."""
    skip_existing: bool = False
    """Go on with an interrupted job: leave images out whose files are there already."""
    batch_size: Annotated[int | None, _flag("-b", metavar="N")] = None
    """Images of one size that the network sees at a time; 8 on a GPU when absent, and on a CPU one on each core."""
    workers: Annotated[int | None, _flag(metavar="N")] = None
    """Threads that read and write, and on a CPU predict; one for each core when absent."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """A GPU where there is one, unless told."""


@dataclass(frozen=True)
class EvaluateConfig:
    """Score a trained network on images and masks: Dice, IoU, precision, recall, boundaries, calibration.

    python -m unet_ddp evaluate --model best.pt --images DIR --masks DIR
    """

    model: Annotated[str | None, _flag("-m", metavar="FILE")] = None
    """The checkpoint (checkpoints/best.pt, or the newest best.pt of the runs there)."""
    images: Annotated[str | None, _flag(metavar="DIR")] = None
    """Folder of images, all of which are scored; the validation images of the model's own run when absent."""
    masks: Annotated[str | None, _flag(metavar="DIR")] = None
    """Folder of their masks, with the values that the model was trained with."""
    output: Annotated[str | None, _flag("-o", metavar="DIR")] = None
    """Folder for scores.json, CSV files and report.html; evaluation beside the model when absent."""
    threshold: Annotated[float | None, _flag(metavar="P")] = None
    """Of two classes, the probability from which on a pixel is foreground; the model's own when absent, else 0.5."""
    tolerance: Annotated[float | None, _flag(metavar="PIXELS")] = None
    """How far a boundary may be off in the boundary F-score; 0.75 percent of the image's diagonal when absent."""
    scale: Annotated[float | None, _flag("-s", metavar="FACTOR")] = None
    """For checkpoints of other programs, which do not say at which scale they were trained (0.5)."""
    overwrite: bool = False
    """Replace results that are there already."""
    nproc: Annotated[int, _flag(metavar="N")] = 1
    """Start N processes on this machine, each for its share of the images; the results are the same."""
    workers: Annotated[int | None, _flag(metavar="N")] = None
    """Reading processes for each of them; from the cores when absent."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """A GPU where there is one, unless told."""
    timeout: Annotated[float, _flag(metavar="SECONDS")] = 600.0
    """How long a process waits for the others before it gives up."""


@dataclass(frozen=True)
class ReportConfig:
    """Write a run's report.html anew, from what its folder holds.

    python -m unet_ddp report checkpoints/NAME
    """

    folder: tyro.conf.Positional[str | None] = None
    """The run folder (checkpoints, or the newest run there)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """A GPU where there is one, unless told."""


@dataclass(frozen=True)
class DemoConfig:
    """Write the built-in demo set: drawn images, their masks, and a few unseen ones."""

    folder: Annotated[str, _flag(metavar="DIR")] = "data/demo"
    """Where it goes: imgs, masks and unseen."""


@dataclass(frozen=True)
class ExportConfig:
    """Write a checkpoint as a file for other programs.

    python -m unet_ddp export best.pt model.onnx
    """

    checkpoint: tyro.conf.Positional[str] = ""
    """The checkpoint."""
    output: tyro.conf.Positional[str] = ""
    """The file to write, .onnx or .pt2."""
    format: Literal["onnx", "torch"] = "onnx"
    """onnx, for onnxruntime and the like, and for predict.py; or torch, an exported program of torch."""
    scale: Annotated[float | None, _flag("-s", metavar="FACTOR")] = None
    """For checkpoints of other programs, which do not say at which scale they were trained (0.5)."""
    overwrite: bool = False
    """Replace the file where it is there already."""


# -- command line and recipes ------------------------------------------------------------


def parse_train(
    argv: Sequence[str] | None = None, *, resumed: Mapping[str, Plain] | None = None
) -> TrainConfig:
    """The configuration of a training run, from the command line and what it points to.

    Args:
        argv: the words after ``train.py``; those of this process when absent.
        resumed: the settings in the checkpoint that is resumed, which the command line changes.

    Raises:
        UserError: an unknown flag or key, or a value that can't be, by its name.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # torch.distributed.launch passes the rank, which the environment also holds.
    words = [word for word in words if not re.fullmatch(r"--local[-_]rank=\d+", word)]
    known = _names(TrainConfig) - {"checkpoints", "exp_name", "load"}
    kept = {name: value for name, value in (resumed or {}).items() if name in known}
    config = _in_its_folder(_with_recipe(TrainConfig, words, kept, prog="train.py"))
    validate(config)
    return config


def parse_doctor(argv: Sequence[str]) -> DoctorConfig:
    """The configuration of the doctor, from its command line, which is train.py's.

    Raises:
        UserError: an unknown flag or key, or a value that can't be, by its name.
    """
    config = _with_recipe(DoctorConfig, argv, {}, prog="python -m unet_ddp doctor")
    validate(config)
    return config


def _with_recipe(
    kind: type[Training], words: Sequence[str], kept: Mapping[str, Plain], *, prog: str
) -> Training:
    """A configuration from the defaults, what is kept, the recipe and the command line."""
    config = parse(kind, words, prog=prog)
    recipe = _read_settings(Path(config.launch.config)) if config.launch.config else {}
    if not kept and not recipe:
        return config
    return parse(kind, [*_as_words(kept), *_as_words(recipe), *words], prog=prog)


def parse_evaluate(words: Sequence[str]) -> EvaluateConfig:
    """The configuration of an evaluation.

    Raises:
        UserError: an unknown flag, or a value that can't be, by its name.
    """
    config = parse(EvaluateConfig, words, prog="python -m unet_ddp evaluate")
    limits = [
        (
            "--threshold",
            config.threshold,
            config.threshold is None or 0 < config.threshold < 1,
            "above 0 and below 1",
        ),
        ("--tolerance", config.tolerance, (config.tolerance or 0) >= 0, "0 or more pixels"),
        ("--nproc", config.nproc, config.nproc >= 1, "1 or more"),
        ("--workers", config.workers, (config.workers or 0) >= 0, "0 or more"),
        ("--timeout", config.timeout, config.timeout > 0, "above 0"),
    ]
    for flag, value, sound, allowed in limits:
        if not sound:
            raise UserError(f"{flag} {value}: must be {allowed}")
    if config.nproc > 1 and "LOCAL_RANK" in os.environ:
        raise UserError("--nproc under torchrun: it starts the processes; leave --nproc out")
    if (config.images is None) != (config.masks is None):
        given, other = ("--images", "--masks") if config.images else ("--masks", "--images")
        raise UserError(f"{given} is given without {other}: give both folders")
    return config


def _in_its_folder(config: TrainConfig) -> TrainConfig:
    """A run that goes on from a file stays in that file's folder."""
    if config.launch.resume in (None, "auto"):
        return config
    folder = Path(str(config.launch.resume)).parent
    if config.run.exp_name is not None and config.folder.resolve() != folder.resolve():
        raise UserError(
            f"--resume {config.launch.resume} goes on in {folder}: leave --exp-name out, or begin "
            "a new run from these weights by --load"
        )
    return replace(config, run=replace(config.run, checkpoints=str(folder), exp_name=None))


def parse(kind: type[Settings], words: Sequence[str], *, prog: str) -> Settings:
    """An instance of `kind` from command-line words; what tyro has to say becomes one line."""
    anything: Any = kind
    parsed: Settings = _parse(anything, tuple(words), prog)
    return parsed


@lru_cache(maxsize=16)  # a run asks more than once, and it takes a tenth of a second
def _parse(kind: Any, words: tuple[str, ...], prog: str) -> Any:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, args=words, prog=prog, config=(tyro.conf.OmitArgPrefixes,))
    except SystemExit as stop:
        if stop.code in (0, None):
            raise  # --help
        raise UserError(f"{_one_line(said.getvalue())}; see {prog} --help") from None


def _one_line(box: str) -> str:
    """The message in one of tyro's boxes: its text up to the first rule, frame taken off."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip("│╭╮╰╯ ") for line in box.splitlines()]
    message: list[str] = []
    for line in lines:
        if re.fullmatch(r"─+", line) and message:
            break
        if line and "─" not in line:
            message.append(line)
    return " ".join(message) or "the command line can't be read"


def settings(config: TrainConfig) -> dict[str, Plain]:
    """What makes the run what it is, flat and plain, for config.yaml and the checkpoint."""
    flat: dict[str, Plain] = {}
    for group in (config.data, config.network, config.optimization, config.run):
        for item in fields(group):
            value = getattr(group, item.name)
            flat[item.name] = list(value) if isinstance(value, tuple) else value
    return flat


def save_settings(config: TrainConfig, path: Path) -> None:
    """Write `config` as a recipe that starts the same run; whole or not at all."""
    half = path.with_name(path.name + ".tmp")
    half.write_text(yaml.safe_dump(settings(config), sort_keys=False), encoding="utf-8")
    half.replace(path)


def _names(kind: type) -> set[str]:
    names = set()
    for item in fields(kind):
        factory = item.default_factory
        if isinstance(factory, type) and is_dataclass(factory):
            names |= _names(factory)
        else:
            names.add(item.name)
    return names


def _read_settings(path: Path) -> dict[str, Plain]:
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; --config takes a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = " ".join(str(error).split())
        raise UserError(f"{path}: no YAML file: {where}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: a recipe is lines of 'name: value', named as the flags are")
    known = _names(TrainConfig)
    recipe: dict[str, Plain] = {}
    for key, value in loaded.items():
        name = str(key).replace("-", "_").lstrip("_")
        name = "learning_rate" if name == "lr" else name
        if name not in known or name == "config":
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; see train.py --help"
            raise UserError(f"{path}: unknown key {key!r}{hint}")
        if isinstance(value, Mapping):
            raise UserError(f"{path}: {key} takes a value or a list, not a table of {len(value)}")
        recipe[name] = value
    return recipe


def _as_words(values: Mapping[str, Plain]) -> list[str]:
    """A recipe as command-line words, so that its values are read and checked as flags are."""
    words: list[str] = []
    for name, value in values.items():
        flag = _as_flag(name)
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        else:
            words.append(f"{flag}={value}")  # one word, for a value may begin with a dash
    return words


def parse_predict(words: Sequence[str]) -> PredictConfig:
    """The configuration of a prediction.

    ``--model a.pt b.pt photo.jpg`` takes two models: what can be none is an image.

    Raises:
        UserError: an unknown flag, or a value that can't be, by its name.
    """
    config = parse(PredictConfig, words, prog="predict.py")
    given = config.model
    count = next((n for n, name in enumerate(given) if n and not _is_model(name)), len(given))
    config = replace(config, model=given[:count], inputs=(*config.inputs, *given[count:]))
    for flag, value in (("--batch-size", config.batch_size), ("--workers", config.workers)):
        if value is not None and value < 1:
            raise UserError(f"{flag} {value}: must be 1 or more")
    if config.overwrite and config.skip_existing:
        raise UserError("--overwrite replaces what is there, --skip-existing leaves it: give one")
    return config


def _is_model(name: str) -> bool:
    path = Path(name)
    return (path / "best.pt").exists() or path.suffix.lower() in (".pt", ".pth", ".onnx", ".ckpt")


def resume_file(config: TrainConfig) -> Path:
    """The checkpoint that ``--resume`` means."""
    resume = config.launch.resume
    return config.folder / "last.pt" if resume in (None, "auto") else Path(str(resume))


# -- values that can't be ----------------------------------------------------------------


def validate(config: TrainConfig) -> None:
    """Refuse what no run could do.

    Raises:
        UserError: naming the flag, the value and what it may be.
    """
    for flag, value, sound, allowed in _limits(config):
        if not sound:
            raise UserError(f"{flag} {value}: must be {allowed}")
    data, optimization, launch = config.data, config.optimization, config.launch
    weights = (optimization.dice_weight, optimization.cross_entropy_weight)
    if min(weights) < 0 or max(weights) == 0:
        raise UserError("--dice-weight and --cross-entropy-weight: neither below 0, one above it")
    if optimization.class_weights and min(optimization.class_weights) < 0:
        raise UserError(f"--class-weights {optimization.class_weights}: none may be below 0")
    _check_data(data)
    if launch.resume and launch.overwrite and launch.resume == "auto":
        raise UserError("--resume continues the run, --overwrite deletes it: give one of them")
    if launch.resume and config.run.load:
        raise UserError("--resume and --load: a resumed run has its weights already; give one")
    if optimization.compile and config.network.checkpointing:
        raise UserError("--compile and --checkpointing: torch can't compile it; give one of them")
    if config.run.wandb and importlib.util.find_spec("wandb") is None:
        raise UserError(
            "--wandb: not installed; pip install 'unet-ddp[wandb]', or leave the flag out"
        )


def _check_data(data: DataConfig) -> None:
    """Flags that need each other, or exclude each other."""
    for one, other in (("images", "masks"), ("val_images", "val_masks"), ("folds", "fold")):
        values = getattr(data, one), getattr(data, other)
        if (values[0] is None) != (values[1] is None):
            given, missing = (one, other) if values[1] is None else (other, one)
            raise UserError(f"{_as_flag(given)} is given without {_as_flag(missing)}: give both")
    for one, other in (
        ("list", "images"), ("list", "val_images"), ("list", "folds"), ("folds", "val_images"),
        ("binary", "mask_threshold"), ("binary", "palette"), ("mask_threshold", "palette"),
        ("class_names", "palette"), ("binary", "classes"), ("mask_threshold", "classes"),
    ):  # fmt: skip
        if getattr(data, one) not in (None, False) and getattr(data, other) is not None:
            raise UserError(f"{_as_flag(one)} and {_as_flag(other)}: give one of them")
    if data.folds and data.fold and not (data.folds >= 2 and 1 <= data.fold <= data.folds):
        raise UserError(f"--folds {data.folds} --fold {data.fold}: K is 2 or more, I from 1 to K")
    if data.group_pattern is not None:
        _check_pattern(data.group_pattern)


def _as_flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _limits(config: TrainConfig) -> list[tuple[str, object, bool, str]]:
    """Flag, value, whether it can be, and what it may be."""
    data, optimization, launch = config.data, config.optimization, config.launch
    return [
        ("--scale", data.scale, 0 < data.scale <= 1, "above 0 and at most 1"),
        ("--validation", data.validation, 0 <= data.validation < 100, "0 or more and below 100"),
        ("--classes", data.classes, data.classes is None or 2 <= data.classes <= 255,
         "2 to 255; the background is one of them"),
        ("--channels", data.channels, data.channels is None or data.channels >= 1, "1 or more"),
        ("--mask-threshold", data.mask_threshold, data.mask_threshold is None or data.mask_threshold >= 0, "0 or more"),
        ("--skip-bad-files", launch.skip_bad_files, launch.skip_bad_files >= 0, "0 or more"),
        ("--crop-size", data.crop_size, data.crop_size is None or min(data.crop_size) >= 16,
         "two sides of 16 or more pixels"),
        ("--width", config.network.width, config.network.width >= 1, "1 or more"),
        ("--epochs", optimization.epochs, optimization.epochs >= 1, "1 or more"),
        ("--batch-size", optimization.batch_size, optimization.batch_size == "auto" or optimization.batch_size >= 1, "1 or more, or auto"),
        ("--accumulate", optimization.accumulate, optimization.accumulate >= 1, "1 or more"),
        ("--images-per-step", optimization.images_per_step, optimization.images_per_step is None or optimization.images_per_step >= 1, "1 or more"),
        ("--learning-rate", optimization.learning_rate, optimization.learning_rate > 0, "above 0"),
        ("--warmup", optimization.warmup, 0 <= optimization.warmup < 100, "0 or more and below 100"),
        ("--weight-decay", optimization.weight_decay, optimization.weight_decay >= 0, "0 or more"),
        ("--clip", optimization.clip, optimization.clip >= 0, "0 or more"),
        ("--seed", optimization.seed, optimization.seed >= 0, "0 or more"),
        ("--ema", optimization.ema, 0 <= optimization.ema < 1, "0 or more and below 1"),
        ("--save-every", config.run.save_every, config.run.save_every >= 0, "0 or more"),
        ("--save-every-steps", config.run.save_every_steps, config.run.save_every_steps >= 0, "0 or more"),
        ("--save-every-minutes", config.run.save_every_minutes, config.run.save_every_minutes >= 0, "0 or more"),
        ("--max-bad-steps", launch.max_bad_steps, launch.max_bad_steps >= 1, "1 or more"),
        ("--nproc", launch.nproc, launch.nproc >= 1, "1 or more"),
        ("--workers", launch.workers, launch.workers is None or launch.workers >= 0, "0 or more"),
        ("--max-steps", launch.max_steps, launch.max_steps is None or launch.max_steps >= 1, "1 or more"),
        ("--timeout", launch.timeout, launch.timeout > 0, "above 0"),
    ]  # fmt: skip


def _check_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise UserError(f"--group-pattern {pattern!r}: no regular expression: {error}") from None
    if groups < 1:
        raise UserError(
            f"--group-pattern {pattern!r}: needs a bracket around what names the group, as in '(.+)_'"
        )
