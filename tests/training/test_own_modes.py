"""A network's own train() and eval() may return nothing, as many that freeze batch norm."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests import zoo
from unet_ddp.errors import UserError
from unet_ddp.training.own_network import try_network
from unet_ddp.training.tensors import WeightAverage


class NoReturn(zoo.Plain):
    """Its batch norm is frozen."""

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)
        self.encoder[1].eval()

    def eval(self) -> None:  # type: ignore[override]
        super().eval()


class Shares(NoReturn):
    def forward(self, images: Tensor) -> Tensor:
        powers = super().forward(images).exp()
        return powers / powers.sum(1, keepdim=True)


def test_modes_that_return_nothing_are_set() -> None:
    network, images = NoReturn(3, 2), torch.rand(2, 3, 16, 16)
    assert try_network("own", network, lambda: NoReturn(3, 2), images).training
    average = WeightAverage(network, 0.9).network
    assert not average.training and not any(each.requires_grad for each in average.parameters())


def test_probabilities_of_such_a_network_are_a_line() -> None:
    with pytest.raises(UserError, match="--model own: returns probabilities in training"):
        try_network("own", Shares(3, 2), lambda: Shares(3, 2), torch.rand(2, 3, 16, 16))
