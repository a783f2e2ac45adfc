"""Networks by name: the classic U-Net, one of segmentation-models-pytorch, or one of the user's own."""

from __future__ import annotations

import inspect
import re
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import torch
from torch import nn

from unet_ddp.errors import Limit, UserError, count_of, shorten
from unet_ddp.network.any_size import make_own
from unet_ddp.plugins import find, is_built_in, is_own

_ENCODER = ("encoder.", "inc.", "down")  # what its parameters' names begin with
_LAST = ("segmentation_head.", "outc.")


@dataclass(frozen=True)
class Architecture:
    """Everything needed to build the network again, as saved in the checkpoint."""

    model: str
    channels: Annotated[int, Limit(1, 4096)]
    num_classes: Annotated[int, Limit(2, 255)]
    encoder: str | None = None  # None for the classic U-Net; of one's own, what --encoder says
    width: Annotated[int, Limit(1, 4096)] = 32
    bilinear: bool = False

    def __post_init__(self) -> None:
        """Refuse another model without encoder: smp's all have one."""
        if self.encoder is None and self.part == "smp":
            raise UserError(f"model: {shorten(self.model)}; expected unet, or an encoder too")

    @property
    def part(self) -> str:
        """The name of its function among the networks in plugins/built_in/."""
        if self.model == "unet" and self.encoder is None:
            return "unet"
        return self.model if is_own("networks", self.model) else "smp"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return asdict(self)

    def __str__(self) -> str:
        """Return the run's line about its network."""
        kind = self.model
        if self.part == "unet":
            upsampling = "bilinear" if self.bilinear else "transposed"
            kind = f"classic U-Net of width {self.width}, {upsampling} upsampling"
        elif self.part == "smp":
            kind = f"{self.model} with {self.encoder}"
        sizes = count_of(self.channels, "channel"), count_of(self.num_classes, "class")
        return ", ".join((kind, *sizes))


def choose_architecture(
    model: str,
    encoder: str | None,
    *,
    channels: int,
    num_classes: int,
    width: int = 32,
    bilinear: bool = False,
) -> Architecture:
    """Return the architecture that ``--model`` and ``--encoder`` name."""
    name = model.lower().replace("+", "plus").replace("-", "").replace("_", "")
    if is_own("networks", model):
        return Architecture(model, channels, num_classes, encoder, width, bilinear)
    if name == "unet" and encoder is None:
        return Architecture("unet", channels, num_classes, None, width, bilinear)
    return Architecture(name, channels, num_classes, full_name(encoder or "resnet34"))


def full_name(encoder: str) -> str:
    """Return smp's name of an encoder, of efficientnet-lite0 to 4 too."""
    return re.sub(r"^efficientnet-lite(?=[0-4]$)", "tu-tf_efficientnet_lite", encoder)


def trust(
    architecture: Architecture, told: str | None, source: object, flag: str = "--network"
) -> Architecture:
    """Return the architecture in `source`; one of the user's own with the name that `flag` has `told`.

    Own is one of an installed package, too: which of them is run is for the user to say.

    Raises:
        UserError: it is code, and was not told.
    """
    if not is_own("networks", architecture.model):
        return architecture
    if told is None or not is_own("networks", told):
        raise UserError(
            f"{source}: its network is {architecture.model}, and a checkpoint starts no code; if you "
            f"trust it, type {flag} {architecture.model}, too"
        )
    return replace(architecture, model=told)


def build_network(
    architecture: Architecture, *, encoder_weights: str | None = None, checkpointing: bool = False
) -> nn.Module:
    """Return a new network, in channels_last order.

    Its function is given the channels, the classes, and the settings that are among its parameters.
    `encoder_weights` names the encoder's pretrained weights to download, e.g. imagenet; for
    `checkpointing` see `UNet`.

    Raises:
        UserError: the model or encoder is unknown, or its weights can't be downloaded.
    """
    part, settings = architecture.part, asdict(architecture)
    sizes = settings.pop("channels"), settings.pop("num_classes")
    make, is_ours = find("networks", part), is_built_in("networks", part)
    known = inspect.signature(make).parameters
    settings |= {"encoder_weights": encoder_weights, "checkpointing": checkpointing}
    for name in ("encoder_weights", "checkpointing"):
        if settings[name] and name not in known and not is_ours:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag}: {part} has no parameter {name}; leave --{flag} out")
    if checkpointing and "checkpointing" not in known:
        raise UserError(
            "--checkpointing: only the classic U-Net has it; leave out --checkpointing, or "
            "--model and --encoder"
        )
    if encoder_weights is not None and "encoder_weights" not in known:
        raise UserError(
            f"--encoder-weights {encoder_weights}: the classic U-Net has no pretrained weights; "
            "use --encoder too, e.g. --encoder resnet34"
        )
    given = {name: value for name, value in settings.items() if name in known}
    if is_ours:
        network: nn.Module = make(*sizes, **given)
    else:
        network = make_own(part, make, *sizes, given)
    return network.to(memory_format=torch.channels_last)


# -- the encoder: smp's, or the classic U-Net's way down ------------------------------------


def in_encoder(name: str) -> bool:
    """Return whether a parameter or buffer of this name belongs to the encoder."""
    return name.startswith(_ENCODER)


def freeze_encoder(network: nn.Module) -> list[nn.Module]:
    """Freeze the encoder, in evaluation mode; return its modules, see `TrainState.frozen`."""
    modules = [child for name, child in network.named_children() if in_encoder(f"{name}.")]
    if not modules:
        raise UserError(
            "--freeze encoder: no module of the network is called encoder; leave it out"
        )
    for module in modules:
        module.requires_grad_(False).eval()
    return modules


def parameter_groups(
    network: nn.Module, encoder_rate: float, last_rate: float = 1.0
) -> list[dict[str, Any]]:
    """Return the optimizer's groups, in the parameters' order: the encoder, the rest, the last layer.

    As in timm, "lr_scale" is the factor of a group's learning rate.
    """
    encoder: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    last: list[nn.Parameter] = []
    for name, parameter in network.named_parameters():
        if in_encoder(name):
            encoder.append(parameter)
        elif name.startswith(_LAST):
            last.append(parameter)
        else:
            rest.append(parameter)
    return [
        {"params": encoder, "lr_scale": encoder_rate},
        {"params": rest, "lr_scale": 1.0},
        {"params": last, "lr_scale": last_rate},
    ]
