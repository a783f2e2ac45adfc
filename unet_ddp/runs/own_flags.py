"""Flags that a network or a loss does not use are refused: what was typed would be left out without a word."""

from __future__ import annotations

import inspect

from torch import nn

from unet_ddp.config import TrainConfig
from unet_ddp.errors import UserError
from unet_ddp.network.architecture import Architecture, in_encoder
from unet_ddp.plugins import find, is_built_in
from unet_ddp.settings import as_flag
from unet_ddp.training.losses import SegmentationLoss
from unet_ddp.training.own_loss import MeanOverRanks

_OF_NETWORKS = "encoder", "width", "bilinear"


def check_typed(
    config: TrainConfig, architecture: Architecture, network: nn.Module, loss: SegmentationLoss
) -> None:
    """Refuse typed settings that the network or the loss does not use; a recipe's may be for other parts.

    Raises:
        UserError: there is one.
    """
    typed, part = config.given - config.recipe, architecture.part
    known = inspect.signature(find("networks", part)).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in known.values())
    for name in typed.intersection(() if takes_any else _OF_NETWORKS) - known.keys():
        flag, network_name = as_flag(name), str(architecture).partition(",")[0]
        raise UserError(f"{flag}: {network_name} has no parameter {name}; leave {flag} out")
    if not is_built_in("networks", part):
        has_encoder = any(in_encoder(name) for name, _ in network.named_parameters())
        rate = config.optimization.encoder_rate
        if "encoder_rate" in typed and rate != 1 and not has_encoder:
            raise UserError(
                f"--encoder-rate {rate:g}: no module of {part} is called encoder; leave it out"
            )
    options = config.optimization
    own = [term.function for term in loss.own_terms.values()]
    is_plain = len(options.loss_terms) == len(own) and all(isinstance(each, MeanOverRanks) for each in own)  # fmt: skip
    if "class_weights" in typed and options.class_weights is not None and is_plain:
        raise UserError(
            f"--class-weights: --loss {options.loss} is called with logits and masks, and has no weights; leave "
            f"--class-weights out, or use --loss {options.loss}+ce, of which ce has them"
        )
