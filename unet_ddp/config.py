"""Settings of the programs: frozen dataclasses of plain values.

The docstring under an attribute is its line in ``--help``. Every name is unique over the
groups, so that flags, recipes and saved configurations are flat.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

USUAL_STEP = 16  # images in a step, where --batch-size auto is not told

Plain = bool | int | float | str | list[Any] | None


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
    cache: Literal["none", "ram", "disk"] = "none"
    """Decode and scale each pair once, and keep it: in memory for this start, or on disk, in the user's cache folder, for later ones too."""
    cache_limit: Annotated[float | None, _flag(metavar="GB")] = None
    """The most that --cache may take; half of what is free when absent. Pairs beyond it are read each time."""
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


def settings(config: TrainConfig) -> dict[str, Plain]:
    """What makes the run what it is, flat and plain, for config.yaml and the checkpoint."""
    flat: dict[str, Plain] = {}
    for group in (config.data, config.network, config.optimization, config.run):
        for item in fields(group):
            value = getattr(group, item.name)
            flat[item.name] = list(value) if isinstance(value, tuple) else value
    return flat


def resume_file(config: TrainConfig) -> Path:
    """The checkpoint that ``--resume`` means."""
    resume = config.launch.resume
    return config.folder / "last.pt" if resume in (None, "auto") else Path(str(resume))
