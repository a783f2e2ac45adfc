"""Losses over the global batch, the same on any number of ranks: a region term and a pixel term.

A term is two functions: sums over the pixels of one rank, and its value from the sums of all ranks.
docs/losses.md has the formulas and their sources.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from unet_ddp.config import PIXEL_TERMS, OptimizationConfig
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.distributed.world import sum_over_ranks
from unet_ddp.errors import UserError
from unet_ddp.plugins import find, is_built_in
from unet_ddp.settings import called
from unet_ddp.training.own_holders import modules_of


class Losses(NamedTuple):
    """Scalars on the device, equal on all ranks; only the total has a gradient."""

    total: Tensor
    region: Tensor
    """Dice, Tversky or Lovász loss, without its weight; 0 if the loss has none of them."""
    pixel: Tensor
    """Cross-entropy or focal loss, without its weight; 0 if the loss has none of them."""


class Batch(NamedTuple):
    """One rank's pixels, and the weights of the classes; C counts them."""

    logits: Tensor
    """(N, C, H, W), float32 or better."""
    log_probabilities: Tensor
    """(N, C, H, W)."""
    probabilities: Tensor
    """(N, C, H, W); 0 where the mask is ignored."""
    truth: Tensor
    """(N, C, H, W) bool; ignored pixels are in no class."""
    masks: Tensor
    """(N, H, W) class ids."""
    weights: Tensor
    """(C,)."""

    def count_truth(self) -> Tensor:
        """Return the pixels of each class, (C,)."""
        return self.truth.sum((0, 2, 3)).to(self.weights.dtype)


class Term(Protocol):
    """A term of the loss; it is made from the settings."""

    @property
    def column(self) -> str:
        """Its name in metrics.csv."""

    def sums(self, batch: Batch) -> dict[str, Tensor]:
        """Return this rank's sums, vectors by name; a sum over pixels of a batch can be added."""

    def value(self, sums: dict[str, Tensor], weights: Tensor) -> Tensor:
        """Return the term () from the sums of all ranks.

        Among them is "occurring", the pixels of each class (C,); `weights` (C,) are the classes'.
        """


class OwnTerm(nn.Module):
    """A term of the user's own, mostly a `MeanOverRanks`: it keeps to the names and lengths of its first sums.

    Ranks add up their sums by place. Ranks with other sums would wait without end, or add what does not belong
    together.
    """

    function: Term
    column: str

    def __init__(self, name: str, term: Term) -> None:
        super().__init__()
        self.name, self.column = name, term.column
        self.__dict__["function"] = term  # its modules are the parts, once each
        self.parts = nn.ModuleList(modules_of(term))
        self.lengths: dict[str, int] = {}

    def sums(self, batch: Batch) -> dict[str, Tensor]:
        """Return the term's sums, in the order of the first."""
        sums = self.function.sums(batch)
        lengths = {name: each.numel() for name, each in sums.items()}
        expected = self.lengths = self.lengths or lengths
        if lengths != expected:
            raise UserError(
                f"--loss {self.name}: its sums are {_list(lengths)}, before {_list(expected)}; return the same names and "
                "lengths for every batch, with 0 for a class that does not occur (docs/losses.md)"
            )
        return {name: sums[name] for name in expected}

    def value(self, sums: dict[str, Tensor], weights: Tensor) -> Tensor:
        """Return the term's value ()."""
        return self.function.value(sums, weights)


def _list(lengths: dict[str, int]) -> str:
    return ", ".join(f"{name} ({length})" for name, length in lengths.items()) or "none"


class Dice:
    """1 - Dice of each class, their mean over the classes that occur."""

    column: ClassVar[str] = "dice_loss"
    false_positives: ClassVar[float] = 0.5
    """Their weight; the rest of 1 is that of false negatives."""

    def __init__(self, options: OptimizationConfig) -> None:
        pass

    def sums(self, batch: Batch) -> dict[str, Tensor]:
        """Return two vectors (C,)."""
        overlap = (batch.probabilities * batch.truth).sum((0, 2, 3))
        return {"overlap": overlap, "predicted": batch.probabilities.sum((0, 2, 3))}

    def value(self, sums: dict[str, Tensor], weights: Tensor) -> Tensor:
        """Return the mean () of the classes' losses."""
        false, occurring = self.false_positives, sums["occurring"]
        cardinality = false * sums["predicted"] + (1 - false) * occurring
        losses = 1 - sums["overlap"] / cardinality.clamp(min=5e-9)  # (C,)
        weights = weights * (occurring > 0)
        return (weights * losses).sum() / weights.sum().clamp(min=1e-8)


class CrossEntropy:
    """Cross-entropy of the pixels, their mean by the weights of classes and by factors of pixels."""

    column: ClassVar[str] = "cross_entropy"

    def __init__(self, options: OptimizationConfig) -> None:
        self.smoothing = options.label_smoothing / 100
        self.factors = [
            find("pixel_factors", name)(options) for name in called(options, "pixel_factors")
        ]

    def targets(self, batch: Batch) -> Tensor:
        """Return the factors of the pixels' log-probabilities (N, C, H, W)."""
        targets = batch.truth
        if self.smoothing:
            valid = (batch.masks != IGNORE_ID).unsqueeze(1).to(batch.weights.dtype)
            shared = valid * self.smoothing
            targets = shared / targets.shape[1] + targets * (1 - shared)
        return targets

    def sums(self, batch: Batch) -> dict[str, Tensor]:
        """Return the entropy (1,), and the pixels of each class by their factors (C,) if they have any."""
        sums, targets = {}, self.targets(batch)
        if self.factors:
            factors = self.factors[0](batch)  # (N, 1, H, W) without gradient
            for factor in self.factors[1:]:
                factors = factors * factor(batch)
            targets = targets * factors
            sums["counted"] = (batch.truth * factors).sum((0, 2, 3))
        entropies = -(batch.log_probabilities * targets).sum((0, 2, 3))  # (C,)
        return {**sums, "entropy": (batch.weights * entropies).sum().view(1)}

    def value(self, sums: dict[str, Tensor], weights: Tensor) -> Tensor:
        """Return the mean () over the pixels."""
        counted = sums.get("counted", sums["occurring"])
        mean: Tensor = sums["entropy"].squeeze() / (weights * counted).sum().clamp(min=1e-8)
        return mean


class SegmentationLoss(nn.Module):
    """Weighted sum of a term over regions and a term over pixels, over the batches of all ranks.

    Sums go over ranks before the ratio is taken: the Dice of ten images is not the mean of
    ten Dices, nor is the mean over valid pixels the mean of the ranks' means. DDP's mean of
    the gradients then is exactly the gradient of one process with the whole batch.

    Everything is computed in float32 or better, also under autocast: sums over pixels overflow
    half precision.

    Args:
        options: the settings of the loss; default: the program's.

    Raises:
        UserError: a term of the user's own can't be imported, or is no term.
    """

    class_weights: Tensor | None

    def __init__(self, options: OptimizationConfig | None = None) -> None:
        super().__init__()
        self.options = options or OptimizationConfig()
        self.region: Term | None = None
        self.pixel: Term | None = None
        for name in self.options.loss_terms:
            if is_built_in("losses", name):
                term = find("losses", name)(self.options)
            else:
                from unet_ddp.training.own_loss import make_own_term

                term = OwnTerm(name, make_own_term(name, self.options))
            if name in PIXEL_TERMS:
                self.pixel = term
            else:
                self.region = term
        weights = None
        if self.options.class_weights is not None:
            weights = torch.tensor(self.options.class_weights, dtype=torch.float64)
        self.register_buffer("class_weights", weights, persistent=False)  # a setting

    @property
    def own_terms(self) -> dict[str, OwnTerm]:
        """The terms of the user's own, by the names of their attributes."""
        terms = {"region": self.region, "pixel": self.pixel}
        return {name: term for name, term in terms.items() if isinstance(term, OwnTerm)}

    @property
    def columns(self) -> tuple[str | None, str | None]:
        """Names of the region and the pixel term in metrics.csv; None for one that there is not."""
        region, pixel = self.region, self.pixel
        return region.column if region else None, pixel.column if pixel else None

    def forward(self, logits: Tensor, masks: Tensor) -> Losses:
        """Return the losses of logits (N, C, H, W).

        Args:
            logits: of any floating dtype.
            masks: class ids (N, H, W); IGNORE_ID marks pixels to leave out.
        """
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        with torch.autocast(logits.device.type, enabled=False):
            weights = self.class_weights
            if weights is None:
                weights = logits.new_ones(logits.shape[1])
            weights = weights.to(logits)
            regions, pixels = self.split(logits, masks.long(), weights)
            region_sums = self.region.sums(regions) if self.region else {}
            pixel_sums = self.pixel.sums(pixels) if self.pixel else {}
            if pixels is not regions:
                pixel_sums["occurring"] = pixels.count_truth()
            shared = {"occurring": regions.count_truth()}
            region_sums, pixel_sums, shared = sum_all(region_sums, pixel_sums, shared)
            region = pixel = weights.new_zeros(())
            if self.region:
                region = self.region.value({**shared, **region_sums}, regions.weights)
            if self.pixel:
                pixel = self.pixel.value({**shared, **pixel_sums}, pixels.weights)
            by_region, by_pixel = self.options.loss_weights
            return Losses(by_region * region + by_pixel * pixel, region.detach(), pixel.detach())

    def split(self, logits: Tensor, masks: Tensor, weights: Tensor) -> tuple[Batch, Batch]:
        """Return the batch that the region term sums over, and that of the pixel term: here the same."""
        classes = torch.arange(logits.shape[1], device=masks.device).view(1, -1, 1, 1)
        truth = masks.unsqueeze(1) == classes
        # One softmax for both terms. Not F.cross_entropy, which a GPU adds up in random order.
        log_probabilities = logits.log_softmax(1)
        probabilities = log_probabilities.exp() * (masks != IGNORE_ID).unsqueeze(1)
        batch = Batch(logits, log_probabilities, probabilities, truth, masks, weights)
        return batch, batch


def sum_all(*groups: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return the vectors by name, each summed over all ranks: one collective for all of them."""
    vectors: list[Tensor] = []
    for group in groups:
        for name, sums in group.items():
            if sums.ndim != 1:
                raise UserError(
                    f"--loss: {name} is of {sums.ndim} dimensions; sums must be vectors"
                )
            vectors.append(sums)
    total = sum_over_ranks(torch.cat(vectors))
    chunks = iter(torch.split(total, [*map(len, vectors)]))
    return [dict(zip(group, chunks, strict=False)) for group in groups]
