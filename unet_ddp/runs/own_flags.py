"""Flags that a network or a loss does not use: what was typed would be left out without a word."""

from __future__ import annotations

import inspect

from torch import nn

from unet_ddp.cli.mistakes import join_flags
from unet_ddp.config import TrainConfig
from unet_ddp.errors import UserError, print_lines
from unet_ddp.network.architecture import Architecture, in_encoder
from unet_ddp.plugins import find
from unet_ddp.training.losses import SegmentationLoss
from unet_ddp.training.own_loss import MeanOverRanks

_OF_NETWORKS = "encoder", "width", "bilinear"


def check_typed(
    config: TrainConfig, architecture: Architecture, network: nn.Module, loss: SegmentationLoss
) -> None:
    """Print a line for typed settings that the network has no use for; a recipe's may be for other networks.

    Raises:
        UserError: a loss does not use its class weights.
    """
    typed, part = config.given - config.recipe, architecture.part
    known = inspect.signature(find("networks", part)).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in known.values())
    unused = sorted(typed.intersection(() if takes_any else _OF_NETWORKS) - known.keys())
    rate = config.optimization.encoder_rate if "encoder_rate" in typed else 1
    if rate != 1 and not any(in_encoder(name) for name, _ in network.named_parameters()):
        unused.append("encoder_rate")
    if unused:
        network_name = str(architecture).partition(",")[0]
        print_lines(f"warning: {network_name} has no use for {join_flags(unused)}")
    options = config.optimization
    own = [term.function for term in loss.own_terms.values()]
    is_plain = len(options.loss_terms) == len(own) and all(isinstance(each, MeanOverRanks) for each in own)  # fmt: skip
    if "class_weights" in typed and options.class_weights is not None and is_plain:
        raise UserError(
            f"--class-weights: --loss {options.loss} is called with logits and masks, and has no weights; leave "
            f"--class-weights out, or use --loss {options.loss}+ce, of which ce has them"
        )
