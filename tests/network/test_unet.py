"""The classic U-Net: names and shapes of the published one, at any size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from unet_ddp.network.unet import UNet


def test_parameter_names_and_sizes_of_the_carvana_unet() -> None:
    """Names and shapes are facts of its published checkpoints; so is the count for two classes."""
    state = UNet(3, 2, width=64).state_dict()
    assert state["inc.double_conv.0.weight"].shape == (64, 3, 3, 3)
    assert state["inc.double_conv.4.running_var"].shape == (64,)
    assert state["down4.maxpool_conv.1.double_conv.3.weight"].shape == (1024, 1024, 3, 3)
    assert state["up1.up.weight"].shape == (1024, 512, 2, 2)
    assert state["up4.conv.double_conv.0.weight"].shape == (64, 128, 3, 3)
    assert state["outc.conv.weight"].shape == (2, 64, 1, 1)
    assert sum(p.numel() for p in UNet(3, 2, width=64).parameters()) == 31_037_698
    bilinear = UNet(3, 2, width=64, bilinear=True)
    assert not any(".up." in name for name in bilinear.state_dict())
    assert bilinear.state_dict()["up1.conv.double_conv.0.weight"].shape == (512, 1024, 3, 3)
    assert sum(p.numel() for p in bilinear.parameters()) == 17_262_977 + 65
    assert UNet(3, 2).inc.double_conv[0].out_channels == 32


def published_logits(state: dict[str, Tensor], images: Tensor) -> Tensor:
    """The paper's forward pass in evaluation, written with functions; zeros where pooling rounds."""

    def convolve(name: str, x: Tensor) -> Tensor:
        for conv, norm in ((0, 1), (3, 4)):
            weight, *norms = (
                state[f"{name}.double_conv.{layer}"]
                for layer in (
                    f"{conv}.weight", f"{norm}.running_mean", f"{norm}.running_var",
                    f"{norm}.weight", f"{norm}.bias",
                )
            )  # fmt: skip
            x = F.relu(F.batch_norm(F.conv2d(x, weight, padding=1), *norms))
        return x

    levels = [convolve("inc", images)]
    for n in (1, 2, 3, 4):
        levels.append(convolve(f"down{n}.maxpool_conv.1", F.max_pool2d(levels[-1], 2)))
    x = levels.pop()
    for n, skip in enumerate(reversed(levels), start=1):
        if f"up{n}.up.weight" in state:
            x = F.conv_transpose2d(x, state[f"up{n}.up.weight"], state[f"up{n}.up.bias"], stride=2)
        else:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
        x = F.pad(x, (0, skip.shape[3] - x.shape[3], 0, skip.shape[2] - x.shape[2]))
        x = convolve(f"up{n}.conv", torch.cat([skip, x], 1))
    return F.conv2d(x, state["outc.conv.weight"], state["outc.conv.bias"])


@pytest.mark.parametrize("bilinear", [False, True])
@pytest.mark.parametrize("size", [(16, 16), (33, 47), (50, 64)])
def test_logits_are_those_of_the_paper(bilinear: bool, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    network = UNet(3, 2, width=4, bilinear=bilinear).double()
    with torch.no_grad():
        network(torch.randn(4, 3, 32, 32, dtype=torch.float64))  # statistics other than 0 and 1
        images = torch.randn(2, 3, *size, dtype=torch.float64)
        expected = published_logits(network.state_dict(), images)
        torch.testing.assert_close(network.eval()(images), expected)


@pytest.mark.parametrize("size", [(1, 1), (15, 40), (40, 3)])
def test_smaller_images_are_padded_with_zeros_below_and_to_the_right(
    size: tuple[int, int],
) -> None:
    network = UNet(3, 2, width=2).double().eval()
    images = torch.randn(1, 3, *size, dtype=torch.float64)
    height, width = (max(side, 16) for side in size)
    padded = torch.zeros(1, 3, height, width, dtype=torch.float64)
    padded[..., : size[0], : size[1]] = images
    with torch.no_grad():
        expected = network(padded)[..., : size[0], : size[1]]
        torch.testing.assert_close(network(images), expected)


@pytest.mark.parametrize("bilinear", [False, True])
def test_every_parameter_has_a_gradient(bilinear: bool) -> None:
    """Unused parameters would make DDP fail at the second step."""
    network = UNet(3, 2, width=2, bilinear=bilinear)
    network(torch.randn(2, 3, 32, 32)).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("convert", [nn.Identity(), nn.SyncBatchNorm.convert_sync_batchnorm])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_checkpointing_changes_neither_gradients_nor_statistics(
    convert: Callable[[nn.Module], nn.Module], momentum: float | None
) -> None:
    torch.manual_seed(0)
    plain, saving = (convert(UNet(3, 2, width=2, checkpointing=c).double()) for c in (False, True))
    saving.load_state_dict(plain.state_dict())
    for network in (plain, saving):
        norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
        for norm in norms:
            norm.momentum = momentum
        for seed in (1, 2):
            torch.manual_seed(seed)
            images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
            network(images).square().sum().backward()
            assert {norm.momentum for norm in norms} == {momentum}
    for a, b in zip(plain.parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    torch.testing.assert_close(saving.state_dict(), plain.state_dict())
    assert saving.state_dict()["down1.maxpool_conv.1.double_conv.1.num_batches_tracked"] == 2


def test_checkpointing_computes_levels_twice_in_training_alone() -> None:
    network = UNet(3, 2, width=2, checkpointing=True)
    calls = []
    for level in (network.inc, network.down1, network.up4):
        level.register_forward_pre_hook(lambda *_: calls.append(1))
    images = torch.randn(2, 3, 32, 32)
    network(images).sum().backward()
    assert len(calls) == 6
    network.eval()(images).sum().backward()
    assert len(calls) == 9
