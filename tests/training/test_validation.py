"""Validation counts the pixels of each class, and leaves the network as it was."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from tests.tiny import CPU, PIXELS, make_batch
from unet_ddp.data.dataset import Sample
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.network.precision import Precision
from unet_ddp.training.validation import count_pixels


class Brightness(nn.Module):
    """Foreground where the first channel is bright; only in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.seen: list[tuple[torch.dtype, bool, bool]] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append((images.dtype, self.training, torch.is_grad_enabled()))
        return torch.stack([torch.zeros_like(images[:, 0]), images[:, 0]], 1)


@pytest.mark.parametrize("training", [True, False])
def test_pixels_are_counted_by_truth_and_prediction(training: bool) -> None:
    image = torch.zeros(1, 2, 3, 3, dtype=torch.uint8)
    image[0, :, 0] = 255  # the first column is bright
    mask = torch.tensor([[[1, 1, 0], [0, IGNORE_ID, 0]]], dtype=torch.uint8)
    network = Brightness().train(training)
    batches = [Sample(image, mask, torch.tensor([0]))] * 2 + [make_batch(0, count=1)]
    state = SimpleNamespace(validation_network=network, preprocess=PIXELS, precision=Precision(CPU))
    counts = count_pixels(state, batches, num_classes=2)
    alone = count_pixels(state, batches[:2], num_classes=2)
    # truth 0: one pixel found as 1, two as 0; truth 1: one found, one missed; each image twice
    assert alone.confusion.tolist() == [[4, 2], [2, 2]]
    assert alone.histogram.sum() == 10
    assert counts.confusion.sum() == 10 + 30
    assert network.training is training
    assert set(network.seen) == {(torch.float64, False, False)}


def test_it_computes_in_the_run_s_precision() -> None:
    network = nn.Conv2d(3, 2, 1)
    dtypes: list[torch.dtype] = []
    network.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
    precision = Precision(CPU, "bfloat16")
    state = SimpleNamespace(validation_network=network, preprocess=PIXELS, precision=precision)
    count_pixels(state, [make_batch(0)], num_classes=2)
    assert dtypes == [torch.bfloat16]
