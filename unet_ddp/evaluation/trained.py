"""A trained network with what is needed to score it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unet_ddp.checkpoint import SavedModel, load_weights
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.network.build import Architecture, build_network
from unet_ddp.preprocessing import Preprocessing
from unet_ddp.world import World


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
        """Pixels (N, H, W, C), as files hold them, to logits (N, num_classes, H, W)."""
        logits: Tensor = self.network(self.preprocessing(images.to(self.device)))
        return logits


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
