"""The state of a run: everything that a step changes, and what it is made from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.metrics.scores import UNSCORED, Validation
from unet_ddp.network.precision import Precision
from unet_ddp.network.state_dicts import load_state
from unet_ddp.training.losses import SegmentationLoss
from unet_ddp.training.own_holders import Numbers
from unet_ddp.training.tensors import Tensors, WeightAverage


@dataclass(frozen=True)
class Schedule:
    """The learning rate as a function of the step: linear warm-up, then a cosine.

    A run that stops improving is cut short by `anneal`, so that its last weights are annealed, too.
    """

    highest: float
    """The rate after the warm-up; of ``--learning-rate auto`` once it is found."""
    steps: int
    """Steps of the optimizer in the whole run."""
    warmup: float = 0.05
    """Share of the steps in which the rate rises."""
    lowest: float = 0.01
    """Rate at the end of the cosine, as a share of `highest`."""
    anneal: tuple[int, int] | None = None
    """Steps between which the rate falls to its lowest, by a separate cosine; the last ends the run."""

    @property
    def end(self) -> int:
        """Steps after which the run ends."""
        return self.anneal[1] if self.anneal else self.steps

    def at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if self.anneal is not None and step > self.anneal[0]:
            first, end = self.anneal
            lowest, done = self.lowest * self.highest, (step - first) / (end - first)
            return lowest + (self.at(first) - lowest) * _cosine(done)
        rising = round(self.warmup * self.steps)
        if step < rising:
            return self.highest * (step + 1) / (rising + 1)
        share = _cosine((step - rising) / max(1, self.steps - rising))
        return self.highest * (self.lowest + (1 - self.lowest) * share)


def _cosine(done: float) -> float:
    """Return 1 at 0, 0 from 1 on, and half a cosine between them."""
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


@dataclass
class TrainState:
    """All that changes while a run trains, and the functions that change it.

    The optimizer must be one of torch's fused ones, which can skip a step on the device.
    """

    network: nn.Module
    """Validated and saved."""
    replica: nn.Module
    """Trained: the same weights, whose gradients are the mean over ranks."""
    optimizer: torch.optim.Optimizer
    precision: Precision
    loss: SegmentationLoss
    """Its buffers and parameters are trained and saved, too."""
    preprocess: Preprocessing
    schedule: Schedule
    steps_per_epoch: int
    patience: int = 0
    """Epochs without a better score after which the rate is annealed; 0: off."""
    seed: int = 0
    """Seed of random layers; a different one on each rank."""
    average: WeightAverage | None = None
    compiled: nn.Module | None = None
    """The replica as torch.compile returns it: the same weights."""
    frozen: Sequence[nn.Module] = ()
    """Parts of the network that stay as they are: always in evaluation mode."""
    has_local_norms: bool = False
    """Batch norm sees each rank's own batch; its running averages are the mean over all ranks."""
    unbiased: bool = True
    """Correct the bias of batch norm's averages."""
    numbers: Numbers = field(default_factory=Numbers)
    """Plain numbers that parts of the user's own change."""
    has_own_buffers: bool = False
    """The network or the loss is the user's own: its buffers may differ on several ranks until they are averaged."""
    epoch: int = 0
    step: int = 0
    """Steps of the optimizer done in this epoch."""
    best: float = -math.inf
    """Highest score of validation so far; `UNSCORED` if no epoch had one, -inf before the first."""
    best_name: str = "Dice"
    best_dice: float | None = None
    """Validation Dice of the best epoch, without a threshold; None if it is nan."""
    best_epoch: int = 0
    """Of equally good ones the last."""
    improved_epoch: int = 0
    """Of the epochs with the highest score, the first."""
    threshold: float | None = None
    """Best threshold of the last validation; None for more than two classes."""
    sums: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    """(3,): loss, region and pixel term, summed over this epoch's finite steps, on the device."""
    skipped: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.float64))
    """(2,): steps that were not finite, of this epoch and of the run, on the device."""

    @property
    def done(self) -> int:
        """Steps of the optimizer done in the run."""
        return self.epoch * self.steps_per_epoch + self.step

    def __post_init__(self) -> None:
        self.tensors = Tensors(self.network)
        self.trained = Tensors(self.network, self.loss)
        self.of_loss = [p for p in self.loss.parameters() if p.requires_grad]
        self.zero_gradients()
        self.forward = self.replica if self.compiled is None else self.compiled
        self.sums = self.sums.to(self.precision.device)
        self.skipped = self.skipped.to(self.precision.device)

    def zero_gradients(self) -> None:
        """Forget the gradients; the loss has zeros, as a call may use a parameter on some ranks only."""
        self.optimizer.zero_grad(set_to_none=True)
        for parameter in self.of_loss:
            parameter.grad = torch.zeros_like(parameter)

    def count_step(self, losses: Tensor, is_finite: Tensor) -> None:
        """Add a step's losses (3,) if it was finite, () bool; the device is not waited for."""
        self.sums += torch.where(is_finite, losses, torch.zeros_like(losses))
        self.skipped += ~is_finite
        self.step += 1

    def finish_epoch(self, validation: Validation | None) -> bool:
        """Go to the next epoch; return whether this one's network is the best so far.

        Of equally good ones it is the last, and of epochs without a score, too.
        """
        is_best, self.threshold = False, None
        if validation is not None:
            self.threshold = validation.threshold
            score = UNSCORED if math.isnan(validation.score) else validation.score
            is_best = score >= self.best
            if score > self.best:
                self.improved_epoch = self.epoch
            if is_best:
                dice = validation.scores.dice
                self.best, self.best_name, self.best_epoch = (
                    score,
                    validation.score_name,
                    self.epoch,
                )
                self.best_dice = None if math.isnan(dice) else dice
        self.epoch, self.step = self.epoch + 1, 0
        self.sums = torch.zeros_like(self.sums)
        self.skipped[0] = 0
        self._anneal_if_stuck()
        return is_best

    def _anneal_if_stuck(self) -> None:
        """End the run soon if its patience is over: within a tenth of the epochs done, rounded up.

        Hägele et al., arXiv 2405.18392: a fall of the rate in 10 to 20 % of the steps gives what a
        cosine over all of them gives.
        """
        is_stuck = 0 < self.patience < self.epoch - self.improved_epoch
        end = self.done + math.ceil(self.epoch / 10) * self.steps_per_epoch
        if is_stuck and self.schedule.anneal is None and end < self.schedule.steps:
            self.schedule = replace(self.schedule, anneal=(self.done, end))

    @property
    def is_over(self) -> bool:
        """True when all epochs are done, the last one's validation too."""
        return self.step == 0 and self.done >= self.schedule.end

    @property
    def validation_network(self) -> nn.Module:
        """The network to validate and to predict with: the average if there is one."""
        return self.network if self.average is None else self.average.network

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values, for a checkpoint."""
        average = self.average
        return {
            "model": self.network.state_dict(),
            "ema": average.network.state_dict() if average else None,
            "ema_steps": average.steps if average else 0,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.precision.scaler.state_dict(),
            "position": {
                "epoch": self.epoch,
                "step": self.step,
                "sums": self.sums.tolist(),
                "skipped": self.skipped.tolist(),
            },
            "best": {
                "score": self.best,
                "name": self.best_name,
                "dice": self.best_dice,
                "epoch": self.best_epoch,
                "improved": self.improved_epoch,
            },
            "threshold": self.threshold,
            "anneal": self.schedule.anneal,
            "last_rate": self._last_group(self.optimizer.param_groups).get("lr_scale", 1.0),
            "loss": self.loss.state_dict(),
            "numbers": self.numbers.state_dict(),
        }

    @staticmethod
    def _last_group(groups: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the group of the network's last layer; behind it is that of the loss, if it is trained."""
        return [group for group in groups if not group.get("is_loss")][-1]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        load_state(self.network, state["model"])
        groups = self.optimizer.state_dict()["param_groups"]  # by the settings, not the file
        last = self._last_group(groups)
        last["lr_scale"] = min(last.get("lr_scale", 1.0), state["last_rate"])
        self.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
        if self.average is not None:  # the run may have had none
            load_state(self.average.network, state["ema"] or state["model"])
            self.average.steps = state["ema_steps"]
        load_state(self.loss, state["loss"])
        self.numbers.load_state_dict(state["numbers"])
        if state["scaler"]:  # empty where scaling was off
            self.precision.scaler.load_state_dict(state["scaler"])
        position, best = state["position"], state["best"]
        self.epoch, self.step = position["epoch"], position["step"]
        self.sums = self.sums.new_tensor(position["sums"])
        self.skipped = self.skipped.new_tensor(position["skipped"])
        self.best, self.best_epoch = best["score"], best["epoch"]
        self.best_name, self.best_dice = best["name"], best["dice"]
        self.improved_epoch = best["improved"]
        self.threshold = state["threshold"]
        if state["anneal"] and self.patience:
            self.schedule = replace(self.schedule, anneal=tuple(state["anneal"]))


# -- the optimizer -------------------------------------------------------------------------


def _unwrapped(method: Callable[..., Any]) -> Any:
    return getattr(method, "__wrapped__", method)


class AdamW(torch.optim.AdamW):
    """``torch.optim.AdamW``, whose methods import torch._dynamo at their first call.

    That takes 1.5 to 1.6 s at each start and on every rank where importing torch takes 1.8 s, and
    tells torch.compile to leave an optimizer alone that is never given to it here.
    """

    add_param_group = _unwrapped(Optimizer.add_param_group)
    state_dict = _unwrapped(Optimizer.state_dict)
    load_state_dict = _unwrapped(Optimizer.load_state_dict)
    zero_grad = _unwrapped(Optimizer.zero_grad)
    step = torch.no_grad()(_unwrapped(torch.optim.AdamW.step))
