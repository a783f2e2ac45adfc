"""Settings of a training run: frozen dataclasses of plain values.

The docstring under a field is its line in ``--help``, and its limit stands beside it. Names are
unique over the groups of a configuration, so that flags, recipes and saved settings are flat.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal, cast

from unet_ddp.errors import Limit, UserError
from unet_ddp.files import as_path, is_address
from unet_ddp.flags import MASK_VALUE, NAMES, OPTIONAL_FILE, Plain, flag
from unet_ddp.plugins import find, is_built_in, is_known

SAVED_NAMES = {"pairs_file": "list"}  # fields that flags, recipes and saved settings call otherwise
DATA_PLACES = frozenset({"images", "masks", "list", "val_images", "val_masks", "palette"})
RUN_PLACES = frozenset({"checkpoints", "exp_name", "load", "wandb"})  # not what the run is
LOSSES = (
    "dice_ce", "dice", "ce", "dice_focal", "focal", "tversky", "tversky_ce", "lovasz", "lovasz_ce",
)  # fmt: skip
PIXEL_TERMS = frozenset({"ce", "focal"})  # of losses; the others are over regions


@dataclass(frozen=True)
class DataConfig:
    """The images and masks, and how they are read."""

    images: Annotated[str | None, flag("DIR")] = None
    """Folder of images, or its address (s3://bucket/folder, gs://, az://), or a pack, which has the masks too (default: data/imgs, or the built-in demo set if that is empty)."""
    masks: Annotated[str | None, flag("DIR")] = None
    """Folder, or address, of masks named like their images, e.g. image.png or image_mask.gif for image.jpg (default: data/masks)."""
    pairs_file: Annotated[str | None, flag("FILE", name="list")] = None
    """CSV file of pairs instead of two folders, with paths or addresses (http:// too): columns image,mask and optionally group,split (training, validation or test)."""
    mask_suffix: Annotated[str | None, flag("TEXT")] = None
    """Text that mask names add to the image's name, e.g. _mask (default: detected)."""
    val_images: Annotated[str | None, flag("DIR")] = None
    """Folder of validation images, instead of a share of --images."""
    val_masks: Annotated[str | None, flag("DIR")] = None
    """Folder of the masks of --val-images."""
    scale: Annotated[float, flag("FACTOR", "-s"), Limit(above=0, at_most=1)] = 1.0
    """Resize images to this fraction of their size, 0 < FACTOR <= 1, in training and prediction."""
    ground_resolution: Annotated[float | None, flag("METRES"), Limit(above=0, at_most=1e6)] = None
    """Bring images with map coordinates, which need not have one resolution then, to pixels of this size on the ground, before scaling."""
    crop_size: Annotated[tuple[int, int] | None, flag("HEIGHT WIDTH"), Limit(at_least=16)] = None
    """Train on random crops of this size, after scaling (default: whole images if all have one size, else crops of the median size)."""
    validation: Annotated[float, flag("PERCENT", "-v"), Limit(at_least=0, below=100)] = 10.0
    """Percentage of the images held out for validation, 0 <= PERCENT < 100; groups are kept whole."""
    group_pattern: Annotated[str | None, flag("REGEX")] = None
    """Images whose names match with the same text in the first bracket are one group, never split between training and validation (default: detected)."""
    folds: Annotated[int | None, flag("K"), Limit(at_least=2)] = None
    """Cross-validation: divide the groups of images into K folds and validate on one, --fold."""
    fold: Annotated[int | None, flag("I"), Limit(at_least=1)] = None
    """The fold to validate on, from 1 to K."""
    channels: Annotated[int | None, flag("N"), Limit(at_least=1)] = None
    """Channels of the network's input: 1 grey, 3 colour, 4 colour and transparency (default: as in the images)."""
    nodata: Annotated[float | None, flag("VALUE")] = None
    """Value of image pixels without data, e.g. -9999 or nan; these pixels are ignored everywhere."""
    classes: Annotated[
        int | None, flag("N", "-c"), Limit(2, 255, note="; the background is one of them")
    ] = None
    """Number of classes, including the background (default: counted in the masks)."""
    class_names: Annotated[tuple[str, ...] | None, flag("NAME ...")] = None
    """A name for each class, in the order of the mask values; with --instances, for each class of objects (docs/objects.md)."""
    palette: Annotated[str | None, flag("FILE")] = None
    """CSV file of the classes: lines of name,value or name,#rrggbb; the one called ignore is excluded."""
    binary: bool = False
    """Two classes: every non-zero value is foreground (e.g. instance ids)."""
    mask_threshold: Annotated[int | None, flag("VALUE"), Limit(at_least=0)] = None
    """Two classes: every value above this one is foreground (e.g. masks with soft edges)."""
    invert: bool = False
    """Two classes: treat dark pixels as foreground."""
    instances: bool = False
    """Each object has a number, or colour, of its own in its mask: learn background, objects and the borders between touching ones, and predict numbered objects (needs the extra objects; docs/objects.md)."""
    ignore_index: Annotated[int | None, MASK_VALUE, flag("VALUE")] = None
    """Mask value, or colour as #rrggbb, of pixels excluded from the loss and the scores."""
    resize_masks: bool = False
    """Resize masks that differ in size from their images, by nearest neighbour."""
    balance: Annotated[float, flag("SHARE"), Limit(at_least=0, at_most=1)] = 0.0
    """Share of the training samples that are drawn by class, each class as often as any other, their crops around one of its pixels; e.g. 0.5 where classes are rare; 0: off."""
    scale_jitter: Annotated[
        tuple[float, float] | None, flag("LOW HIGH"), Limit(at_least=0.1, at_most=10)
    ] = None
    """Resize each training image by a random factor before its crop, e.g. 0.5 2; whole images are cropped or padded to their size."""
    augmentation: Annotated[str, flag("none|photo|overhead|street")] = "photo"
    """photo: mirroring, small shifts, zooms and rotations, brightness, contrast and colour; overhead: also upside down, for microscope, aerial and satellite images; street: mirroring and strong changes of colour; none; or one of your own as MODULE:NAME; docs/own_parts.md."""

    def check(self) -> None:
        """Raise a UserError if settings contradict each other."""
        if self.folds and self.fold and self.fold > self.folds:
            raise UserError(f"--fold {self.fold}: must be at most {self.folds}, as --folds")
        low, high = self.scale_jitter or (1, 1)
        if low > high:
            raise UserError(f"--scale-jitter {low:g} {high:g}: use {high:g} {low:g}, LOW first")


@dataclass(frozen=True)
class NetworkConfig:
    """The network to train."""

    model: Annotated[str, flag("NAME")] = "unet"
    """unet (the classic U-Net), unet++, fpn, deeplabv3plus, segformer or another of segmentation-models-pytorch; or one of your own as MODULE:FUNCTION; docs/own_parts.md."""
    encoder: Annotated[str | None, flag("NAME")] = None
    """Encoder of segmentation-models-pytorch, e.g. resnet34 or tu-efficientnet_b0; unet is then that library's."""
    encoder_weights: Annotated[str | None, flag("NAME|FILE")] = None
    """Pretrained weights for the encoder, e.g. imagenet, downloaded once; or a file of timm, torchvision or this program."""
    width: Annotated[int, flag("CHANNELS"), Limit(at_least=1)] = 32
    """Classic U-Net: channels of the first level; the paper's has 64."""
    bilinear: bool = False
    """Classic U-Net: bilinear upsampling instead of transposed convolutions."""
    batch_norm: Literal["global", "local"] = "global"
    """Batch norm's statistics in training: of the batches of all processes, or of each process's own: faster on slow networks, but the run then depends on their number."""
    checkpointing: bool = False
    """Classic U-Net: recompute activations in the backward pass to save memory."""


@dataclass(frozen=True)
class OptimizationConfig:
    """Settings of the optimizer, the loss and the steps."""

    epochs: Annotated[int, flag("N", "-e"), Limit(at_least=1)] = 10
    """Passes over the training images."""
    patience: Annotated[int, flag("EPOCHS"), Limit(at_least=0)] = 0
    """When so many epochs bring no better validation Dice, lower the learning rate to its end within a tenth of the epochs done, then stop; 0: off."""
    batch_size: Annotated[
        int | Literal["auto"], flag("N", "-b"), Limit(at_least=1, note=", or auto")
    ] = 4
    """Images per batch and process; auto: as many as fit into memory, with --accumulate to reach --images-per-step."""
    accumulate: Annotated[int, flag("N"), Limit(at_least=1)] = 1
    """Batches per optimizer step; loss and batch norm see one batch at a time."""
    images_per_step: Annotated[int | None, flag("N"), Limit(at_least=1)] = None
    """Images per optimizer step over all processes, instead of --accumulate (default with --batch-size auto: 16)."""
    learning_rate: Annotated[
        float | Literal["auto"], flag("RATE", "-l", "--lr"), Limit(above=0, note=", or auto")
    ] = 1e-3
    """Peak learning rate of AdamW, reached after the warm-up; a cosine then lowers it to a hundredth. auto: found by steps at a rising rate, which are thrown away."""
    warmup: Annotated[float, flag("PERCENT"), Limit(at_least=0, below=100)] = 5.0
    """Percentage of all steps in which the learning rate rises to its peak."""
    encoder_rate: Annotated[float, flag("FACTOR"), Limit(above=0)] = 1.0
    """Learning rate of the encoder (classic U-Net: its way down), as a share of --learning-rate, e.g. 0.1."""
    freeze: Literal["none", "encoder"] = "none"
    """encoder: keep its weights and batch norm statistics as loaded, and train the rest."""
    weight_decay: Annotated[float, flag("RATE"), Limit(at_least=0)] = 1e-4
    """Decoupled weight decay of AdamW."""
    clip: Annotated[float, flag("NORM"), Limit(at_least=0)] = 1.0
    """Largest norm of the gradients, longer ones are scaled down to it; 0: no clipping."""
    loss: Annotated[str, flag("|".join(LOSSES))] = "dice_ce"
    """Terms of the loss: dice, tversky (misses weigh more than false alarms; for small objects) or lovasz (IoU), over regions; ce (cross-entropy) or focal (sure pixels count less), over pixels; or one of your own as MODULE:CLASS, +ce added for both; docs/losses.md."""
    dice_weight: Annotated[float, flag("WEIGHT"), Limit(at_least=0)] = 1.0
    """Weight of the Dice, Tversky or Lovász term."""
    cross_entropy_weight: Annotated[float, flag("WEIGHT"), Limit(at_least=0)] = 1.0
    """Weight of the cross-entropy or focal term."""
    class_weights: Annotated[tuple[float, ...] | None, flag("WEIGHT ..."), Limit(at_least=0)] = None
    """One weight per class, used in both terms."""
    label_smoothing: Annotated[float, flag("SHARE"), Limit(at_least=0, below=1)] = 0.0
    """Share of each pixel's truth that the pixel term gives to all classes alike, e.g. 0.1."""
    hard_pixels: Annotated[float, flag("PERCENT"), Limit(above=0, at_most=100)] = 100.0
    """Percentage of the pixels, the hardest of the global batch, that the pixel term is the mean of (OHEM), e.g. 25."""
    boundary_weight: Annotated[float | None, flag("WEIGHT"), Limit(at_least=0)] = None
    """Further weight in the pixel term of a pixel among other classes' pixels, e.g. 5; 0: off (default: 5 with --instances, else 0)."""
    amp: bool = True
    """Mixed precision on a GPU, and on a CPU that computes in bfloat16."""
    amp_dtype: Literal["auto", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 if the GPU, or the CPU (AVX512-BF16), supports it, else float16 on a GPU and float32 on a CPU."""
    compile: bool = False
    """Compile network and loss with torch.compile: a minute at the start, faster steps after it; not with --checkpointing."""
    compress_gradients: bool = False
    """Send gradients between processes in bfloat16: half the bytes, for Ethernet; the weights differ by its rounding."""
    ema: Annotated[float, flag("DECAY"), Limit(at_least=0, below=1)] = 0.0
    """Score, save and predict with an exponential moving average of the weights of this decay, e.g. 0.999; 0: off."""
    seed: Annotated[int, flag("N"), Limit(at_least=0)] = 0
    """Seed of everything random: weights, split, order, augmentation, dropout."""

    @property
    def loss_terms(self) -> list[str]:
        """Names of the loss's terms."""
        return self.loss.split("_" if self.loss in LOSSES else "+")

    def check_loss(self) -> None:
        """Raise a UserError if the loss is unknown, is 0, or lacks the term that a setting is about."""
        terms = self.loss_terms
        own = [term for term in terms if not is_built_in("losses", term)]
        if not (own or self.loss in LOSSES) or not all(is_known("losses", term) for term in own):
            raise UserError(f"--loss {self.loss}: not one of {', '.join(LOSSES)}, nor MODULE:CLASS")
        pixel = [term for term in terms if term in PIXEL_TERMS]
        if len(pixel) > 1 or len(terms) - len(pixel) > 1:
            raise UserError(f"--loss {self.loss}: at most one region term, and one of ce and focal")
        weights = {"--dice-weight": self.dice_weight} if len(terms) > len(pixel) else {}
        if pixel:
            weights["--cross-entropy-weight"] = self.cross_entropy_weight
        elif self.label_smoothing or self.hard_pixels < 100 or self.boundary_weight:
            sign = "+" if own else "_"
            raise UserError(
                f"--loss {self.loss} has no pixel term for --label-smoothing, --hard-pixels or "
                f"--boundary-weight; use one with a term ce or focal, e.g. {self.loss}{sign}ce"
            )
        if not any(weights.values()):
            raise UserError(f"--loss {self.loss}: {' or '.join(weights)} must be above 0")


@dataclass(frozen=True)
class RunConfig:
    """The run's folder, its files, and the weights it starts from."""

    checkpoints: Annotated[str, flag("DIR")] = "checkpoints"
    """Folder of runs, or its address in object storage (s3://bucket/folder, gs://, az://): each file is then written to the user's cache folder (XDG_CACHE_HOME) and put from there."""
    exp_name: Annotated[str | None, flag("NAME")] = None
    """Save the run in the sub-folder NAME of --checkpoints (default: in --checkpoints itself)."""
    save_every: Annotated[int, flag("EPOCHS"), Limit(at_least=0)] = 0
    """Also keep the checkpoint of every so many epochs, as epoch_0005.pt; 0: last.pt and best.pt only."""
    save_every_steps: Annotated[int, flag("N"), Limit(at_least=0)] = 0
    """Also write last.pt every N optimizer steps; 0: off."""
    save_every_minutes: Annotated[float, flag("M"), Limit(at_least=0)] = 10.0
    """Also write last.pt when the previous one is M minutes old; 0: off."""
    load: Annotated[str | None, flag("FILE", "-f")] = None
    """Start from the weights in this checkpoint or run folder (or s3:// address), of this program or another; classes and channels may differ."""
    wandb: bool = False
    """Also log to Weights & Biases (pip install 'unet-ddp[wandb]'); no file switches it on."""


@dataclass(frozen=True)
class LaunchConfig:
    """Settings of one start; never saved with the run."""

    resume: Annotated[str | None, OPTIONAL_FILE, flag("[FILE]")] = None
    """Continue the run in its folder where it stopped, on any machine if that is an address, or continue from the checkpoint FILE."""
    overwrite: bool = False
    """Delete the run in the folder and start a new one."""
    config: Annotated[str | None, flag("FILE")] = None
    """Recipe: a YAML file of settings, named as the flags are, or camvid, carvana or cells, which are in the package; flags take precedence."""
    budget: Annotated[str | None, flag("TIME")] = None
    """Time of a whole new run, e.g. 90s, 30m or 2h, instead of --epochs: some steps are timed, and as many epochs planned as end in it."""
    max_steps: Annotated[int | None, flag("N"), Limit(at_least=1)] = None
    """Stop after N optimizer steps in all; continue with --resume."""
    max_epochs: Annotated[int | None, flag("N"), Limit(at_least=1)] = None
    """Stop after N of the --epochs in all; continue with --resume."""
    nproc: Annotated[int, flag("N"), Limit(at_least=1)] = 1
    """Start N processes on this machine, as torchrun --nproc_per_node=N does."""
    workers: Annotated[int | None, flag("N"), Limit(at_least=0)] = None
    """Data loading processes per training process (default: by the number of cores, at most 16)."""
    cache: bool = False
    """Decode and scale each pair once, and keep it in the user's cache folder (XDG_CACHE_HOME) for this and later runs."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if there is one."""
    timeout: Annotated[float, flag("SECONDS"), Limit(above=0, at_most=1e6)] = 600.0
    """Longest wait of a process for the others before it gives up."""
    max_bad_steps: Annotated[int, flag("N"), Limit(at_least=1)] = 20
    """Stop after N steps in a row with a non-finite loss or gradient; single ones are skipped."""
    skip_bad_files: Annotated[int, flag("N"), Limit(at_least=0)] = 0
    """Leave out up to N pairs whose files the scan can't read; 0: stop at the first."""
    rescue_dir: Annotated[str | None, flag("DIR")] = None
    """Fallback folder for the final checkpoint, if the run's folder can't be written to; made and tried at the start (default: the system's temporary folder)."""
    profile: bool = False
    """Print where the time of ten steps goes, and save their trace in the run's folder."""
    deterministic: bool = False
    """Use deterministic algorithms, slower on a GPU; warn where torch has none."""


@dataclass(frozen=True)
class TrainConfig:
    """Train a U-Net on a folder of images and a folder of masks.

    torchrun --nproc_per_node=4 train.py --images DIR --masks DIR
    """

    unused: ClassVar[frozenset[str]] = frozenset()  # settings that are no flags of the command
    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimization: OptimizationConfig = field(default_factory=OptimizationConfig)
    run: RunConfig = field(default_factory=RunConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    given: NAMES = field(default=frozenset(), compare=False)
    """Names of the settings that the command line or the recipe gave."""
    recipe: NAMES = field(default=frozenset(), compare=False)  # those that it gave alone

    @property
    def place(self) -> Path:
        """The run folder, or its address."""
        return as_path(self.run.checkpoints) / (self.run.exp_name or "")

    @property
    def folder(self) -> Path:
        """The run folder on this machine; of an address one in the user's cache."""
        if is_address(self.place):
            return cast(Path, find("addresses", "run_folder")(self.place))
        return self.place

    @property
    def resume_file(self) -> Path:
        """The checkpoint that ``--resume`` means, or its address."""
        is_file = self.launch.resume not in (None, "auto")
        return as_path(str(self.launch.resume)) if is_file else self.place / "last.pt"

    def to_dict(self) -> dict[str, Plain]:
        """Return the settings that belong to the run, flat, as checkpoints and recipes have them."""
        groups = (self.data, self.network, self.optimization, self.run)
        named = ((SAVED_NAMES.get(n, n), v) for each in groups for n, v in vars(each).items())
        return {name: list(value) if isinstance(value, tuple) else value for name, value in named}
