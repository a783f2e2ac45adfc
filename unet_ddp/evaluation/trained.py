"""A trained network with what is needed to score it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.device import total_memory
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.network.architecture import Architecture, build_network
from unet_ddp.prediction.backends import bytes_per_pixel, stride_of
from unet_ddp.prediction.predictor import OVERLAP, TILE
from unet_ddp.prediction.tiling import Tiling, blend
from unet_ddp.runs.weights import SavedModel, load_weights

_MEMORY = 1 / 8  # share of all memory that an image may take: there may be several processes


@dataclass(frozen=True)
class Trained:
    """The network as training has scored it: nothing is folded, merged or averaged."""

    network: nn.Module
    """In evaluation mode, on `device`."""
    labels: Labels
    preprocessing: Preprocessing
    device: torch.device

    @classmethod
    def from_model(cls, model: SavedModel, source: Path, device: torch.device) -> Trained:
        """The network in a checkpoint.

        Raises:
            UserError: the file does not tell which network, or which classes.
        """
        architecture, labels, preprocessing = check_described(model, source)
        network = build_network(architecture)
        load_weights(network, model.state, source)
        return cls(network.to(device).eval(), labels, preprocessing, device)

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Pixels (N, H, W, C), as files hold them, to logits (N, num_classes, H, W).

        Images that are too large for the memory are seen in `predict.py`'s windows.
        """
        if self.fits((images.shape[1], images.shape[2])):
            return self._whole(images)
        return torch.stack([self._in_windows(image) for image in images])

    def fits(self, size: tuple[int, int]) -> bool:
        """Whether images of `size` are seen whole.

        By the memory that there is and not by what is free: so that it is the same on any number
        of processes, and in any minute.
        """
        if max(size) <= TILE:
            return True
        needed = size[0] * size[1] * bytes_per_pixel(self.network)
        return needed < _MEMORY * total_memory(self.device)

    def _whole(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(self.preprocessing(images.to(self.device)))
        return logits

    def _in_windows(self, image: Tensor) -> Tensor:
        """Pixels (H, W, C) to logits (num_classes, H, W)."""
        pixels = image.numpy()
        bands = blend(
            lambda top, bottom: pixels[top:bottom],
            lambda windows: self._whole(torch.from_numpy(np.stack(windows))).float().cpu().numpy(),
            (image.shape[0], image.shape[1]),
            Tiling(TILE, OVERLAP, stride_of(self.network)),
        )
        found = np.concatenate([logits for _, logits in bands], axis=1)
        return torch.from_numpy(found).to(self.device)


def check_described(model: SavedModel, source: Path) -> tuple[Architecture, Labels, Preprocessing]:
    """What a model file says of itself.

    Raises:
        UserError: it does not tell which network, or which classes.
    """
    if model.architecture is None or model.labels is None or model.preprocessing is None:
        raise UserError(
            f"{source}: neither a checkpoint of ours nor a classic U-Net, so its classes are not "
            "known; start training from it with --load and the flags of its network"
        )
    return model.architecture, model.labels, model.preprocessing


def resize(logits: Tensor, size: torch.Size) -> Tensor:
    """Logits (N, C, h, w) at another size, as predicting makes them."""
    if logits.shape[-2:] == size:
        return logits
    return F.interpolate(logits, size, mode="bilinear", align_corners=False)


def one_thread(world: World) -> None:
    """One thread for each rank on a CPU: how many there are decides the last bits of a sum."""
    if world.device.type == "cpu":
        torch.set_num_threads(1)
