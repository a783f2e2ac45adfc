"""Networks in int8: static, per channel, with the ranges that calibration images have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from unet_ddp.data.readers.base import Pixels
from unet_ddp.extras.onnx.runtimes import import_extra
from unet_ddp.files import temporary_folder

CALIBRATION = 32
"""Images that the ranges are taken from."""
MOST_FLOAT = 0.25
"""Share of the layers that may stay in float32: with more, the file is no network in int8."""
_RANKED = 2  # images that show what a layer costs
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_BETWEEN = ("Relu", "MaxPool", "Concat", "Pad", "Add", "Resize")  # take and give integers
_FOLDED = "onnx.quant.pre_process", "onnxruntime.quant"  # the batch norm, or onnxruntime warns


def find_layers(model: Any) -> dict[str, str]:
    """Return the names of the layers of an ONNX model, as its network calls them, by their nodes'."""
    weights = {each.name for each in model.graph.initializer}
    layers = {}
    for node in model.graph.node:
        if node.op_type in _LAYERS and node.input[1] in weights:
            layers[node.name] = node.input[1].removeprefix("network.").removesuffix(".weight")
    return layers


def quantised(model: Any, images: Sequence[Pixels]) -> Iterator[tuple[Any, list[str]]]:
    """Yield a model in int8, then the same with more and more layers left in float32, and their nodes.

    The first layers to be left are those that change the probabilities of the `images` most in int8.
    """
    yield quantise(model, images), []
    ranked = rank_layers(model, images[:_RANKED])
    count = 1
    while count <= MOST_FLOAT * len(ranked):
        yield quantise(model, images, excluded=ranked[:count]), ranked[:count]
        count *= 2


def rank_layers(model: Any, images: Sequence[Pixels]) -> list[str]:
    """Return the nodes of the layers, the one first that alone in int8 changes the probabilities most."""
    expected = _run(model, images)
    costs: dict[str, float] = {}
    for layer in find_layers(model):
        others = [node.name for node in model.graph.node if node.name != layer]
        found = _run(quantise(model, images, excluded=others), images)
        differences = [np.abs(a - b).mean() for a, b in zip(found, expected, strict=True)]
        costs[layer] = sum(map(float, differences))
    return sorted(costs, key=lambda layer: -costs[layer])


def quantise(model: Any, images: Iterable[Pixels], *, excluded: Collection[str] = ()) -> Any:
    """Return an ONNX model in int8 between its first and its last layer, except the `excluded` nodes."""
    tool = import_extra("onnxruntime.quantization", "onnx", "int8")
    onnx = import_extra("onnx", "onnx", "int8")
    layers = [*find_layers(model)]
    nodes = [node.name for node in model.graph.node]
    outside = nodes[: nodes.index(layers[0])] + nodes[nodes.index(layers[-1]) + 1 :]
    folded = onnx.ModelProto.FromString(model.SerializeToString())
    folded.metadata_props.add(key=_FOLDED[0], value=_FOLDED[1])
    with TemporaryDirectory(dir=temporary_folder()) as folder:
        source, path = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(folded, source)
        tool.quantize_static(
            source,
            path,
            _Reader(images),
            quant_format=tool.QuantFormat.QDQ,
            per_channel=True,
            activation_type=tool.QuantType.QUInt8,
            weight_type=tool.QuantType.QInt8,
            op_types_to_quantize=[*_LAYERS, *_BETWEEN],
            nodes_to_exclude=[*outside, *excluded],
        )
        return onnx.load(path)


class _Reader:
    """Gives images one by one, as onnxruntime asks for them."""

    def __init__(self, images: Iterable[Pixels]) -> None:
        self._images = iter(images)

    def get_next(self) -> dict[str, Any] | None:
        for image in self._images:
            return {"pixels": image[None]}
        return None


def _run(model: Any, images: Sequence[Pixels]) -> list[Any]:
    """Return the probabilities of images."""
    runtime = import_extra("onnxruntime", "onnx", "int8")
    providers = ["CPUExecutionProvider"]
    session = runtime.InferenceSession(model.SerializeToString(), providers=providers)
    return [session.run(["probabilities"], {"pixels": image[None]})[0] for image in images]
