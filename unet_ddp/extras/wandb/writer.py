"""Weights & Biases (--wandb): figures, a validation image and histograms of each epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from unet_ddp.data.drawing import to_rgb
from unet_ddp.data.masks import Ids
from unet_ddp.errors import UserError
from unet_ddp.runs.ending import Ending
from unet_ddp.runs.service import ServiceWriter
from unet_ddp.runs.writers import Row, RunInfo
from unet_ddp.training.step import forward

_IGNORED = 128  # grey of a mask's ignored pixels


class WandbWriter(ServiceWriter):
    """Logs each epoch to Weights & Biases, under the names of the well-known U-Net script.

    W&B makes up a name that is None. The weights and gradients are logged as histograms, and the first
    validation image with its true and predicted mask; without them where classes overlap.

    Raises:
        UserError: W&B refuses, as without an account, or the image can't be read.
    """

    name = "wandb"

    def __init__(self, run: RunInfo) -> None:
        import wandb

        super().__init__(run)
        sample = run.validation[0, 0] if run.validation is not None else None
        if isinstance(sample, UserError):
            raise sample
        state = run.state
        self._wandb, self._state, self._sample = wandb, state, sample
        self._has_bits = bool(run.settings.get("overlap"))
        self._histograms: dict[str, Any] = {}
        try:
            self._run: Any = wandb.init(
                project="unet_ddp",
                name=run.name,
                dir=run.folder,
                config=run.settings,
                id=self.previous,
                resume="allow",
            )
        except wandb.Error as error:
            raise UserError(f"--wandb: {error}; run `wandb login`, or leave --wandb out") from None
        self.run_id = self._run.id
        state.optimizer.register_step_pre_hook(lambda *_: self._keep_histograms())

    def _keep_histograms(self) -> None:
        """Keep histograms of the first step of an epoch; its gradients are gone after it.

        wandb.watch takes the gradients of one batch of one process, times the scaler's factor, and logs
        them with the row of the epoch before.
        """
        if self._histograms:
            return
        for name, weight in self._state.network.named_parameters():
            for kind, values in (("Weights", weight), ("Gradients", weight.grad)):
                if values is not None and bool(values.isfinite().all()):
                    histogram = self._wandb.Histogram(values.detach().float().cpu().numpy())
                    self._histograms[f"{kind}/{name}"] = histogram

    def send(self, figures: Row, step: int) -> None:
        """Log the figures of an epoch, the histograms and the image."""
        self._run.log({**figures, **self._histograms, **self._pictures()}, step=step)
        self._histograms = {}

    @torch.no_grad()  # what a network keeps is used in training, too
    def _pictures(self) -> dict[str, Any]:
        if self._sample is None:
            return {}
        state, image = self._state, self._sample.image
        pictures = {"images": self._wandb.Image(to_rgb(image.numpy()).permute(1, 2, 0).numpy())}
        if self._has_bits:
            return pictures
        weight = next(state.validation_network.parameters())
        was_training = state.validation_network.training
        state.validation_network.eval()
        with state.precision.autocast():
            batch = image[None].to(weight.device)
            logits = forward(state.validation_network, state.preprocess, batch)
        state.validation_network.train(was_training)
        classes = logits.shape[1]  # (1, classes, H, W)
        return pictures | {
            "masks/true": self._wandb.Image(as_grey(self._sample.mask, classes)),
            "masks/pred": self._wandb.Image(as_grey(logits[0].argmax(0).cpu(), classes)),
        }

    def close(self, ending: Ending) -> None:
        """End the run there, with the exit status of this one."""
        self._run.finish(exit_code=ending.exit_status)


def as_grey(ids: Tensor, classes: int) -> Ids:
    """Return class ids (H, W) as grey levels from black to white."""
    levels = np.full(256, _IGNORED, np.uint8)
    levels[:classes] = np.linspace(0, 255, classes)
    grey: Ids = levels[ids.numpy()]
    return grey
