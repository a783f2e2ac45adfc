"""A network as an ONNX graph, compared with the network itself."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.extras.onnx.runtimes import import_extra
from unet_ddp.heads import SOFTMAX, Head

LARGEST_DIFFERENCE = 1e-4  # of probabilities, between an exported file and its network
ROUNDINGS = 4  # as many times its own error in float32 may a file differ from a network
SIZES = ((1, 64, 96), (2, 97, 131), (1, 33, 50), (1, 9, 21), (1, 160, 240))  # (N, H, W)
TRACED = (2, 75, 107)  # sides that no stride divides
PIXEL_AXES = (0, 1, 2)  # of (N, H, W, C), which may have any size
LOGIT_AXES = (0, 2, 3)  # of (N, C, H, W)
_SHAPES = "torch.fx.experimental.symbolic_shapes"


class Exported(nn.Module):
    """A network with its normalisation and head; it may compute in another type than float32."""

    mean: Tensor
    factor: Tensor

    def __init__(
        self,
        network: nn.Module,
        preprocessing: Preprocessing,
        head: Head = SOFTMAX,
    ) -> None:
        super().__init__()
        self.network, self.head = network, head
        mean = torch.tensor(preprocessing.fill)
        spread = preprocessing.high - preprocessing.low
        std = torch.tensor(preprocessing.std) * (spread or 1.0)
        self.register_buffer("mean", mean.view(1, -1, 1, 1))
        self.register_buffer("factor", (1 / std).view(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and probabilities (N, num_classes, H, W) of pixels (N, H, W, C)."""
        images = pixels.permute(0, 3, 1, 2).to(self.mean.dtype)  # (N, C, H, W)
        images = (images - self.mean) * self.factor
        weights = next(self.network.parameters(), self.mean)
        logits: Tensor = self.network(images.to(weights.dtype)).to(self.mean.dtype)
        return logits, self.head.normalise(logits)


def in_type(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a network in another type, with the tensors that are plain attributes of its modules."""
    for module in network.to(dtype).modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(module, name, value.to(dtype))
    return network


def trace(
    module: nn.Module,
    examples: Sequence[Tensor],
    axes: Sequence[Sequence[int]],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> Any:
    """Return the ONNX model of a module; `axes` has the axes of each example that may have any size."""
    auto = torch.export.Dim.DYNAMIC
    logging.getLogger(_SHAPES).setLevel(logging.ERROR)
    # Of a network that it can't trace, torch prints the graph.
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")  # of what torch will deprecate
        traced = torch.export.export(
            module,
            tuple(examples),
            dynamic_shapes=tuple(dict.fromkeys(free, auto) for free in axes),
        )
        program = torch.onnx.export(
            traced, dynamo=True, input_names=inputs, output_names=outputs, verbose=False
        )
    assert program is not None
    model = program.model_proto
    for node in model.graph.node:
        del node.metadata_props[:]  # the path of this program on this machine
    return model


def trace_network(module: Exported, preprocessing: Preprocessing) -> Any:
    """Return the ONNX model of a network, for any number of images of any size."""
    return trace(
        module,
        [noise(preprocessing, TRACED)],
        [PIXEL_AXES],
        inputs=["pixels"],
        outputs=["logits", "probabilities"],
    )


def largest_difference(
    module: Exported, backend: Callable[[Tensor], Tensor], preprocessing: Preprocessing
) -> float:
    """Return by how much the probabilities of a backend's logits differ from the network's, over all sizes."""
    largest = 0.0
    for size in SIZES:
        pixels = noise(preprocessing, size)
        with torch.inference_mode():
            _, expected = module(pixels)
            found = module.head.normalise(backend(pixels))
        largest = max(largest, float((found - expected).abs().max()))
    return largest


def largest_rounding(module: Exported, preprocessing: Preprocessing) -> float:
    """Return by how much the network's own probabilities differ in float32 from those in float64.

    It is large after few steps of training: a channel that hardly varied is then divided by almost 0.
    """
    exact = copy.deepcopy(module).double()
    return largest_difference(exact, lambda pixels: module(pixels)[0], preprocessing)


def noise(preprocessing: Preprocessing, size: tuple[int, int, int]) -> Tensor:
    """Return random pixels (N, H, W, C) of the images' type and range."""
    shape = (*size, preprocessing.channels)
    values = np.random.default_rng(0).uniform(preprocessing.low, preprocessing.high, shape)
    return torch.from_numpy(values.astype(preprocessing.dtype))


def write_graph(graph: Any, metadata: Mapping[str, str], path: Path) -> None:
    """Write a graph that ONNX's own checker accepts, with this metadata and no other."""
    onnx = import_extra("onnx", "onnx", path)
    del graph.metadata_props[:]
    for key, value in metadata.items():
        graph.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(graph)
    path.write_bytes(graph.SerializeToString())
