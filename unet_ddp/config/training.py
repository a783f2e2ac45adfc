"""Settings of the network and of its training."""

from dataclasses import dataclass
from typing import Annotated, Literal

from unet_ddp.config.data import NOT_NEGATIVE, POSITIVE, N
from unet_ddp.errors import Limit, UserError
from unet_ddp.plugins import is_built_in, is_own
from unet_ddp.settings import (
    Brief,
    Calls,
    Excludes,
    Kind,
    Names,
    Percent,
    as_flag,
    called,
    flag,
    joined,
    pairs_of,
)

LOSS_NAMES = (
    "dice_ce", "dice", "ce", "dice_focal", "focal", "tversky", "tversky_ce", "lovasz", "lovasz_ce",
)  # fmt: skip
PIXEL_TERMS = frozenset({"ce", "focal"})  # of losses; the others are over regions


@dataclass(frozen=True)
@joined("network")
class NetworkConfig:
    """The network to train."""

    model: Annotated[str, Kind.FIXED, Names("networks"), flag("NAME")] = "unet"
    """unet (the classic U-Net), unet++, fpn, deeplabv3plus, segformer or another of segmentation-models-pytorch; or one of your own as MODULE:FUNCTION; docs/own_parts.md."""
    encoder: Annotated[
        str | None, Kind.FIXED, flag("NAME"), Brief("Pretrained encoder, e.g. resnet34.")
    ] = None
    """Encoder of segmentation-models-pytorch, e.g. resnet34, tu-efficientnet_b0 or efficientnet-lite0; unet is then that library's."""
    encoder_weights: Annotated[
        str | None, flag("NAME|FILE"), Brief("Its weights, e.g. imagenet.")
    ] = None
    """Pretrained weights for the encoder: imagenet, downloaded once or from the extra pretrained (efficientnet-lite0 to 2); or a file of timm, torchvision or this program. With that extra, few images start from imagenet if no flag names a network."""
    width: Annotated[int, Kind.FIXED, flag("CHANNELS"), POSITIVE] = 32
    """Classic U-Net: channels of the first level; the paper's has 64."""
    bilinear: Annotated[bool, Kind.FIXED] = False
    """Classic U-Net: bilinear upsampling instead of transposed convolutions."""
    batch_norm: Annotated[Literal["global", "local"], Kind.FIXED] = "global"
    """Batch norm's statistics in training: of the batches of all processes, or of each process's own: faster on slow networks, but the run then depends on their number."""
    checkpointing: bool = False
    """Classic U-Net: recompute activations in the backward pass to save memory."""


@dataclass(frozen=True)
@joined("optimization")
class OptimizationConfig:
    """Settings of the optimizer, the loss and the steps."""

    epochs: Annotated[int, flag("N", "-e"), POSITIVE, Brief("Passes over the training images.")] = (
        10
    )
    """Passes over the training images; with --epoch-steps, epochs of so many steps."""
    epoch_steps: Annotated[
        int | None, Kind.FIXED, Kind.LIMITED_BY_DATA, Kind.EXTRA, N, POSITIVE
    ] = None
    """Steps of an epoch, whatever the number of images; these are shuffled again each time that all were used (default: one pass over the images)."""
    patience: Annotated[int, flag("EPOCHS"), NOT_NEGATIVE] = 0
    """When so many epochs bring no better score of validation, lower the learning rate to its end within a tenth of the epochs done, then stop; 0: off."""
    batch_size: Annotated[
        int | Literal["auto"],
        Calls("planners", "auto"),
        Kind.PER_STEP,
        Kind.LIMITED_BY_DATA,
        flag("N", "-b"),
        Limit(at_least=1, note=", or auto"),
        Brief("Images per batch and process, or auto."),
    ] = 4
    """Images per batch and process; auto: as many as fit into memory, with --accumulate to reach --images-per-step."""
    accumulate: Annotated[int, Kind.LIMITED_BY_DATA, N, POSITIVE] = 1
    """Batches per optimizer step; loss and batch norm see one batch at a time."""
    images_per_step: Annotated[int | None, Kind.PER_STEP, N, POSITIVE] = None
    """Images per optimizer step over all processes, instead of --accumulate (default with --batch-size auto: 16)."""
    learning_rate: Annotated[
        float | Literal["auto"],
        Calls("planners", "auto"),
        flag("RATE", "-l", "--lr"),
        Limit(above=0, note=", or auto"),
        Brief("Peak learning rate, or auto."),
    ] = 1e-3
    """Peak learning rate of AdamW, reached after the warm-up; a cosine then lowers it to a hundredth. auto: found by steps at a rising rate, which are thrown away."""
    warmup: Annotated[float, flag("PERCENT"), Percent(at_least=1, below=100)] = 5.0
    """Percentage of all steps in which the learning rate rises to its peak."""
    encoder_rate: Annotated[float, flag("FACTOR"), Limit(above=0)] = 1.0
    """Learning rate of the encoder (classic U-Net: its way down), as a share of --learning-rate, e.g. 0.1."""
    freeze: Literal["none", "encoder"] = "none"
    """encoder: keep its weights and batch norm statistics as loaded, and train the rest."""
    weight_decay: Annotated[float, flag("RATE"), NOT_NEGATIVE] = 1e-4
    """Decoupled weight decay of AdamW."""
    clip: Annotated[float, flag("NORM"), Limit(at_least=0, infinite=True)] = 1.0
    """Largest norm of the gradients, longer ones are scaled down to it; 0: no clipping."""
    loss: Annotated[str, Names("losses"), flag("|".join(LOSS_NAMES))] = "dice_ce"
    """Terms of the loss. Over regions: dice, tversky (misses weigh more than false alarms; for small objects) or lovasz (IoU). Over pixels: ce (cross-entropy) or focal (sure pixels count less). MODULE:CLASS is one of your own, +ce added for both; docs/losses.md."""
    loss_weights: Annotated[tuple[float, float], flag("REGION PIXEL"), NOT_NEGATIVE] = (1.0, 1.0)
    """Weights of the loss's terms: of Dice, Tversky or Lovász, and of cross-entropy or focal."""
    class_weights: Annotated[
        tuple[float, ...] | None, Kind.LIMITED_BY_DATA, flag("WEIGHT ..."), NOT_NEGATIVE
    ] = None
    """One weight per class, used in both terms."""
    label_smoothing: Annotated[float, flag("PERCENT"), Percent(at_least=1, below=100)] = 0.0
    """Percentage of each pixel's truth that the pixel term gives to all classes alike, e.g. 10."""
    hard_pixels: Annotated[
        float,
        Kind.EXTRA,
        Calls("pixel_factors"),
        flag("PERCENT"),
        Limit(at_least=1, at_most=100, note=" percent"),
    ] = 100.0
    """Average the pixel term over only this percentage of the global batch's pixels, the ones with the highest loss (online hard example mining), e.g. 25."""
    boundary_weight: Annotated[
        float | None, Kind.EXTRA, Calls("pixel_factors"), flag("WEIGHT"), NOT_NEGATIVE
    ] = None
    """Extra weight in the pixel term for pixels near a class boundary, e.g. 5; 0: off (default: 5 with --instances, else 0)."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type that the network computes in. auto: bfloat16, mixed, if the GPU supports it or the CPU is faster in it (AMD AVX512-BF16, Intel AMX). Otherwise GPUs take float16 and CPUs float32."""
    compile: Annotated[bool, Excludes("checkpointing")] = False
    """Compile network and loss with torch.compile: a minute at the start, faster steps after it; not with --checkpointing."""
    compress_gradients: bool = False
    """Send gradients between processes in bfloat16: half the bytes, for Ethernet; the weights differ by its rounding."""
    ema: Annotated[float, flag("DECAY"), Limit(at_least=0, below=1)] = 0.0
    """Score, save and predict with an exponential moving average of the weights of this decay, e.g. 0.999, which is less in the first steps; 0: off."""
    seed: Annotated[int, Kind.DATA, N, NOT_NEGATIVE] = 0
    """Seed of everything random: weights, split, order, augmentation, dropout."""

    @property
    def loss_terms(self) -> list[str]:
        """Names of the loss's terms."""
        return self.loss.split("_" if self.loss in LOSS_NAMES else "+")

    def check(self) -> None:
        """Raise a UserError if the loss is unknown, is 0, or lacks the term that a setting is about."""
        terms = self.loss_terms
        own = [term for term in terms if not is_built_in("losses", term)]
        if not (own or self.loss in LOSS_NAMES) or not all(is_own("losses", term) for term in own):
            raise UserError(
                f"--loss {self.loss}: not one of {', '.join(LOSS_NAMES)}, nor MODULE:CLASS"
            )
        pixel = [term for term in terms if term in PIXEL_TERMS]
        region = [term for term in terms if term not in PIXEL_TERMS]
        if len(pixel) > 1 or len(region) > 1:
            raise UserError(f"--loss {self.loss}: at most one region term, and one of ce and focal")
        if not pixel and (self.label_smoothing or called(self, "pixel_factors")):
            factors = [
                name for name, point in pairs_of(type(self), Calls) if point == "pixel_factors"
            ]
            *names, last = map(as_flag, ["label_smoothing", *factors])
            sign = "+" if own else "_"
            raise UserError(
                f"--loss {self.loss} has no pixel term for {', '.join(names)} or {last}; "
                f"use one with a term ce or focal, e.g. {self.loss}{sign}ce"
            )
        if self.class_weights is not None and not any(self.class_weights):
            shown = " ".join(f"{weight:g}" for weight in self.class_weights)
            raise UserError(f"--class-weights {shown}: one must be above 0, or nothing is learnt")
        if not any(w for w, term in zip(self.loss_weights, (region, pixel), strict=True) if term):
            shown = " ".join(f"{weight:g}" for weight in self.loss_weights)
            raise UserError(
                f"--loss-weights {shown}: one of a term of --loss {self.loss} must be above 0"
            )
