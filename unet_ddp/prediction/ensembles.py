"""Networks whose probabilities are averaged: of one data set, at one scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unet_ddp.errors import UserError

if TYPE_CHECKING:
    from unet_ddp.prediction.backends import LoadedModel


def check_match(path: str, model: LoadedModel, first_path: str, first: LoadedModel) -> None:
    """Raise UserError for networks whose probabilities can't be averaged."""
    others = _describe_data(first)
    for what, own in _describe_data(model).items():
        other = others[what]
        if what == "names" and not (own and other):  # one may have been trained without any
            continue
        if own != other:
            raise UserError(
                f"{path}: its {what} ({own}) differs from that of {first_path} ({other}); an "
                "ensemble needs networks of one data set at one scale"
            )


def _describe_data(model: LoadedModel) -> dict[str, object]:
    labels, preprocessing = model.labels, model.preprocessing
    return {
        "kind of masks": labels.kind,
        "classes": ", ".join(map(labels.show, labels.values)),
        "names": ", ".join(labels.names or ()),
        "channels": preprocessing.channels,
        "type of pixels": preprocessing.dtype,
        "scale": preprocessing.scale,
        "resolution": preprocessing.ground_resolution,
    }
