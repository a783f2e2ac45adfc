"""Steps before and after an exported network, in its graph: for images of any size, or for QGIS."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import UserError
from unet_ddp.extras.onnx.runtimes import import_extra
from unet_ddp.extras.onnx.tracing import LOGIT_AXES, PIXEL_AXES, TRACED, noise, trace
from unet_ddp.heads import find_head
from unet_ddp.prediction.backends import LoadedModel

_LARGEST_DENOMINATOR = 10_000  # of a scale as a fraction
_TILE = 512, 25  # of QGIS: pixels, and the percentage that neighbours share


class Shrink(nn.Module):
    """Images (N, H, W, C) reduced to the network's scale: each new pixel is the mean of its area.

    A mean between two whole numbers becomes what OpenCV makes of it in `resize_area`: the even one, or
    the larger one where both sides are halved, except in the two channels that four leave over.
    """

    halves_up: Tensor

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        channels = preprocessing.channels
        halves_up = torch.ones(channels)
        if channels % 4 == 2:
            halves_up[-2:] = 0
        self.register_buffer("halves_up", halves_up)
        self.scale = Fraction(preprocessing.scale).limit_denominator(_LARGEST_DENOMINATOR)
        self.dtype = getattr(torch, preprocessing.dtype)

    def forward(self, image: Tensor) -> Tensor:
        """Return pixels (N, h, w, C) of the image's type."""
        if self.scale == 1:
            return image.clone()  # torch 2.10 would give the input the output's name
        pixels = image.float()
        for axis in (1, 2):
            weights = self._weigh(image.shape[axis])  # (new, old)
            pixels = torch.tensordot(weights, pixels, dims=([1], [axis])).movedim(0, axis)
        if self.dtype.is_floating_point:
            return pixels
        even, up = pixels.round(), (pixels + 0.5).floor()
        odd = [side - 2 * self._scale_side(side) for side in image.shape[1:3]]
        are_halved = 1 - torch.sym_min(1, odd[0] * odd[0] + odd[1] * odd[1])
        return (even + (up - even) * self.halves_up * are_halved).to(self.dtype)

    def _weigh(self, side: int) -> Tensor:
        """Return the share that each old pixel of a side has in each new one."""
        new = self._scale_side(side)
        edges = torch.arange(new + 1, dtype=torch.float64) * side / new
        old = torch.arange(side, dtype=torch.float64)
        begin = torch.maximum(edges[:-1, None], old)
        end = torch.minimum(edges[1:, None], old + 1)
        shares = (end - begin).clamp(min=0)
        return (shares / shares.sum(1, keepdim=True)).float()

    def _scale_side(self, side: int) -> int:
        """Return `scaled_size` of a side, in whole numbers: a half is rounded to the even one."""
        whole = 2 * self.scale.denominator
        shifted = 2 * self.scale.numerator * side + self.scale.denominator  # by a half
        nearest = shifted // whole
        is_half = 1 - torch.sym_min(1, shifted % whole)
        return cast(int, torch.sym_max(1, nearest - is_half * (nearest % 2)))


class Decide(nn.Module):
    """Mask values of logits, at the image's size."""

    values: Tensor

    def __init__(self, model: LoadedModel) -> None:
        super().__init__()
        self.least = None
        if model.threshold:
            self.least = math.log(model.threshold / (1 - model.threshold))
        every = np.arange(model.labels.num_classes, dtype=np.uint8)[None]
        self.register_buffer("values", torch.from_numpy(model.labels.to_values(every)[0]))

    def forward(self, logits: Tensor, image: Tensor) -> Tensor:
        """Return the mask (N, H, W), or (N, H, W, 3) in colour, of logits (N, num_classes, h, w)."""
        size = image.shape[1], image.shape[2]
        logits = F.interpolate(logits, size, mode="bilinear", align_corners=False)
        if self.least is None:
            return self.values[logits.argmax(1)]
        return self.values[(logits[:, 1] - logits[:, 0] >= self.least).long()]


class Enlarge(nn.Module):
    """Probabilities at the image's size."""

    def __init__(self, model: LoadedModel) -> None:
        super().__init__()
        self.head = find_head(model.labels)

    def forward(self, logits: Tensor, image: Tensor) -> Tensor:
        """Return probabilities (N, num_classes, H, W) of logits (N, num_classes, h, w)."""
        size = image.shape[1], image.shape[2]
        return self.head.normalise(F.interpolate(logits, size, mode="bilinear"))


class FromPlanes(nn.Module):
    """Images (N, H, W, C) of images (N, C, H, W)."""

    def forward(self, planes: Tensor) -> Tensor:
        """Return the images."""
        return planes.permute(0, 2, 3, 1)


class FromUnit(nn.Module):
    """Pixels (N, H, W, C) of images (N, C, H, W) in which 0 to 1 stands for 0 to 255."""

    def forward(self, image: Tensor) -> Tensor:
        """Return the pixels."""
        return (image * 255).round().to(torch.uint8).permute(0, 2, 3, 1)


class Foreground(nn.Module):
    """Probabilities as QGIS's plugin thresholds them: of two classes, the second's alone."""

    def forward(self, probabilities: Tensor) -> Tensor:
        """Return probabilities (N, num_classes or 1, H, W)."""
        return probabilities[:, 1:] if probabilities.shape[1] == 2 else probabilities


def add_image_steps(network: Any, model: LoadedModel) -> Any:
    """Return an exported network as a graph from images of any size to mask values."""
    pixels, labels = model.preprocessing, model.labels
    refuse_maps(pixels, "--whole")
    if labels.kind != "classes":
        raise UserError(f"--whole: masks of {labels.kind} are not in a graph; export without it")
    return join(_resize(network, model, Decide(model), "mask"), "image", "mask")


def refuse_maps(pixels: Preprocessing, flag: str) -> None:
    """Raise a UserError for steps before the network that need more of a map than its pixels."""
    if pixels.nodata is not None:
        raise UserError(f"{flag}: pixels without data are not in a graph; export without it")
    if pixels.ground_resolution is not None and flag != "--qgis":
        raise UserError(
            f"{flag}: the network takes images of {pixels.ground_resolution:g} m on the ground, and a graph does not "
            "know an image's; export without it, or with --qgis"
        )


def add_probability_steps(network: Any, model: LoadedModel) -> Any:
    """Return an exported network as a graph from images (N, C, H, W) to probabilities at their size."""
    planes, how = noise(model.preprocessing, TRACED).permute(0, 3, 1, 2), {"inputs": ["planes"]}
    before = trace(FromPlanes(), [planes], [LOGIT_AXES], **how, outputs=["image"])
    parts = _resize(network, model, Enlarge(model), "class_probabilities")
    return join([before, *parts], "planes", "class_probabilities")


def _resize(network: Any, model: LoadedModel, last: nn.Module, given: str) -> list[Any]:
    """Return the parts of a graph from `image`, at any size, to what `last` makes of it and its logits."""
    pixels = model.preprocessing
    image, logits = noise(pixels, TRACED), torch.zeros(2, model.labels.num_classes, 38, 54)
    before = trace(Shrink(pixels), [image], [PIXEL_AXES], inputs=["image"], outputs=["pixels"])
    axes, taken = [LOGIT_AXES, PIXEL_AXES], ["logits", "image"]
    return [before, network, trace(last, [logits, image], axes, inputs=taken, outputs=[given])]


def add_qgis_steps(network: Any, model: LoadedModel) -> Any:
    """Return an exported network with the input and output of QGIS's plugin Deepness."""
    pixels = model.preprocessing
    if model.labels.may_overlap:
        raise UserError(f"--qgis: its plugin has one class for each pixel, not {model.labels.kind}")
    refuse_maps(pixels, "--qgis")
    if pixels.dtype != "uint8":
        raise UserError(f"--qgis: its plugin has images of 8 bit, these are {pixels.dtype}")
    image = torch.zeros(2, pixels.channels, 64, 96)
    shares = torch.zeros(2, model.labels.num_classes, 64, 96)
    axes = [LOGIT_AXES]
    before = trace(FromUnit(), [image], axes, inputs=["image"], outputs=["pixels"])
    after = trace(Foreground(), [shares], axes, inputs=["probabilities"], outputs=["classes"])
    return join([before, network, after], "image", "classes")


def add_steps(network: Any, model: LoadedModel, form: str) -> Any:
    """Return an exported network with the steps before and after it that its form has."""
    forms: dict[str, Callable[[Any, LoadedModel], Any]] = {
        "--whole": add_image_steps,
        "--qgis": add_qgis_steps,
        "--bioimageio": add_probability_steps,
    }
    return forms[form](network, model) if form else network


def describe_ends(model: LoadedModel, form: str) -> str:
    """Return a line about the input and the output of a file."""
    pixels, classes = model.preprocessing, model.labels.num_classes
    planes = f"  images (N, {pixels.channels}, H, W)"
    lines = {
        "--whole": f"  images (N, H, W, {pixels.channels}) of {pixels.dtype} to mask values (N, H, W)",
        "--bioimageio": f"{planes} of {pixels.dtype}, to probabilities (N, {classes}, H, W)",
        "--qgis": f"{planes} from 0 to 1, to probabilities, for QGIS's Deepness",
        "": f"  pixels (N, H, W, {pixels.channels}) of {pixels.dtype}, at scale {pixels.scale:g}, to "
        f"logits and probabilities (N, {classes}, H, W)",
    }
    return lines[form]


def describe_form(model: LoadedModel, form: str) -> dict[str, str]:
    """Return the metadata that the programs of a form read."""
    return describe_for_qgis(model) if form == "--qgis" else {}


def describe_for_qgis(model: LoadedModel) -> dict[str, str]:
    """Return the metadata that QGIS's plugin Deepness reads of a segmentation network."""
    threshold = (model.threshold or 0.5) if model.labels.num_classes == 2 else 0.0
    facts: dict[str, Any] = {
        "model_type": "Segmentor",
        "class_names": dict(enumerate(model.labels.class_names)),
        "tile_size": _TILE[0],
        "tiles_overlap": _TILE[1],
        "seg_thresh": threshold,
        "seg_small_segment": 0,
        "standardization_mean": [0.0] * model.preprocessing.channels,
        "standardization_std": [1.0] * model.preprocessing.channels,
    }
    metres = model.preprocessing.ground_resolution
    if metres is not None:
        facts["resolution"] = 100 * metres / model.preprocessing.scale  # centimetres
    return {name: json.dumps(value) for name, value in facts.items()}


def join(parts: Sequence[Any], taken: str, given: str) -> Any:
    """Return the graph of parts one after the other, from the input `taken` to the output `given`.

    A part takes what an earlier one gives under the same name.
    """
    onnx = import_extra("onnx", "onnx", "--whole")
    ends: dict[str, Any] = {}
    opsets: dict[str, Any] = {}
    joined, initializers = [], []
    for number, part in enumerate(parts):
        unique = onnx.ModelProto.FromString(part.SerializeToString())
        keep = {"rename_inputs": False, "rename_outputs": False}
        onnx.compose.add_prefix(unique, f"part{number}_", inplace=True, **keep)
        joined += unique.graph.node
        initializers += unique.graph.initializer
        ends.update((value.name, value) for value in (*part.graph.input, *part.graph.output))
        opsets.update((each.domain, each) for each in part.opset_import)
    first, last = ends[taken], ends[given]
    for value in (first, last):
        for side in value.type.tensor_type.shape.dim:
            side.ClearField("dim_param")  # which the parts name independently
    graph = onnx.helper.make_graph(joined, "unet_ddp", [first], [last], initializers)
    return onnx.helper.make_model(
        graph, opset_imports=[*opsets.values()], ir_version=parts[0].ir_version
    )
