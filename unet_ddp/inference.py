"""A trained network as a function from images to masks; imports nothing that only training needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from unet_ddp.checkpoint import load_weights, read_model, with_scale
from unet_ddp.data.labels import Labels
from unet_ddp.data.reading import ImageFormat, Pixels, read_header, read_image
from unet_ddp.errors import UserError
from unet_ddp.network.build import build_network
from unet_ddp.preprocessing import Preprocessing
from unet_ddp.world import pick_device


@dataclass(frozen=True)
class Prediction:
    """What the network sees in one image."""

    ids: NDArray[np.uint8]
    """Class ids (H, W), at the image's own size."""
    labels: Labels

    @property
    def shares(self) -> list[float]:
        """The share of the pixels that each class has; they add up to 1."""
        counts = np.bincount(self.ids.ravel(), minlength=self.labels.num_classes)
        return [float(count) / self.ids.size for count in counts]

    def to_image(self) -> Image.Image:
        """The mask in the training masks' own values."""
        return self.labels.to_image(self.ids)


class Predictor:
    """A trained network with all that belongs to it.

    Args:
        network: in evaluation mode, on `device`.
        labels: its classes.
        preprocessing: what it was trained with.
        notes: what was done to make sense of its file.
    """

    def __init__(
        self,
        network: nn.Module,
        labels: Labels,
        preprocessing: Preprocessing,
        *,
        device: torch.device,
        notes: list[str] | None = None,
    ) -> None:
        self.network = network.to(device).eval()
        self.labels = labels
        self.preprocessing = preprocessing
        self.device = device
        self.notes = notes or []

    @classmethod
    def from_checkpoint(
        cls, path: str | Path, *, device: str = "auto", scale: float | None = None
    ) -> Predictor:
        """The network in a checkpoint, of ours or of another U-Net program.

        Args:
            device: auto, cpu or cuda.
            scale: for checkpoints that do not say at which scale they were trained.

        Raises:
            UserError: it can't be loaded.
        """
        model = with_scale(read_model(Path(path)), scale)
        if model.architecture is None or model.labels is None or model.preprocessing is None:
            raise UserError(
                f"{path}: neither a checkpoint of ours nor a classic U-Net; start training from it "
                "with --load and the flags of its network"
            )
        network = build_network(model.architecture)
        load_weights(network, model.state, Path(path))
        return cls(
            network,
            model.labels,
            model.preprocessing,
            device=pick_device(device),
            notes=model.notes,
        )

    @property
    def format(self) -> ImageFormat:
        """What images must be like."""
        return self.preprocessing.format

    def __call__(self, image: str | Path) -> Prediction:
        """The mask of an image file, at its own size.

        Raises:
            UserError: it can't be read, or has other channels than the network takes.
        """
        header = read_header(Path(image))
        pixels = read_image(Path(image), self.format, scale=self.preprocessing.scale)
        return self.predict_scaled(pixels, (header.height, header.width))

    @torch.inference_mode()
    def predict_scaled(self, pixels: Pixels, size: tuple[int, int]) -> Prediction:
        """The mask, `size` (height, width) large, of an image that is scaled already."""
        batch = torch.from_numpy(np.require(pixels, requirements=["C", "W"]))[None].to(self.device)
        logits: Tensor = self.network(self.preprocessing(batch))  # (1, C, h, w)
        if logits.shape[-2:] != size:
            logits = F.interpolate(logits, size, mode="bilinear", align_corners=False)
        ids = logits.argmax(1)[0].to(torch.uint8).cpu().numpy()
        return Prediction(ids, self.labels)
