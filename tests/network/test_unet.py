"""Networks: names, sizes, and that they learn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tests.jobs import PIXELS, fixed_sample, stack
from unet_ddp.errors import UserError
from unet_ddp.metrics.scores import Scores
from unet_ddp.network.architecture import build_network, choose_architecture
from unet_ddp.network.precision import Precision
from unet_ddp.network.unet import UNet
from unet_ddp.training.losses import DiceCrossEntropy
from unet_ddp.training.step import Schedule, TrainState, evaluate, moving_average, train_epoch


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
    bilinear = UNet(3, 2, width=64, bilinear=True).state_dict()
    assert not any(".up." in name for name in bilinear)
    assert bilinear["up1.conv.double_conv.0.weight"].shape == (512, 1024, 3, 3)
    assert (
        sum(p.numel() for p in UNet(3, 2, width=64, bilinear=True).parameters()) == 17_262_977 + 65
    )


@pytest.mark.parametrize("size", [(1, 1), (7, 40), (16, 16), (33, 47), (64, 96)])
@pytest.mark.parametrize(
    ("model", "encoder"),
    [("unet", None), ("fpn", "tu-mobilenetv3_small_050"), ("unet++", "resnet18")],
)
def test_any_size_comes_back_at_its_size(
    model: str, encoder: str | None, size: tuple[int, int]
) -> None:
    architecture = choose_architecture(model, encoder, channels=3, num_classes=4, width=2)
    network = build_network(architecture).eval()
    with torch.no_grad():
        assert network(torch.randn(1, 3, *size)).shape == (1, 4, *size)


@pytest.mark.parametrize("bilinear", [False, True])
def test_every_parameter_has_a_gradient(bilinear: bool) -> None:
    """Unused parameters would make DDP fail at the second step."""
    network = UNet(3, 2, width=2, bilinear=bilinear)
    network(torch.randn(2, 3, 32, 32)).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize(
    "convert", [lambda network: network, nn.SyncBatchNorm.convert_sync_batchnorm]
)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_checkpointing_changes_neither_gradients_nor_statistics(
    convert: Callable[[nn.Module], nn.Module], momentum: float | None
) -> None:
    torch.manual_seed(0)
    plain, saving = (convert(UNet(3, 2, width=2, checkpointing=c).double()) for c in (False, True))
    saving.load_state_dict(plain.state_dict())
    for network in (plain, saving):
        for norm in network.modules():
            if isinstance(norm, _BatchNorm):
                norm.momentum = momentum
        for seed in (1, 2):
            torch.manual_seed(seed)
            images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
            network(images).square().sum().backward()
            assert {n.momentum for n in network.modules() if isinstance(n, _BatchNorm)} == {
                momentum
            }
    for a, b in zip(plain.parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    torch.testing.assert_close(saving.state_dict(), plain.state_dict())
    assert saving.state_dict()["down1.maxpool_conv.1.double_conv.1.num_batches_tracked"] == 2


@pytest.mark.parametrize(
    ("model", "encoder", "said"),
    [
        ("yolo", None, "--model yolo"),
        ("fpn", "resnet7", "resnet7"),
        ("unet", "nonsense", "nonsense"),
    ],
)
def test_unknown_networks(model: str, encoder: str | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        build_network(choose_architecture(model, encoder, channels=3, num_classes=2))


def test_pretrained_weights_that_can_not_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_connection(*_: object, **__: object) -> None:
        raise OSError("no connection")

    monkeypatch.setattr("segmentation_models_pytorch.encoders.hf_hub_download", no_connection)
    encoded = choose_architecture("unet", "resnet18", channels=3, num_classes=2)
    for weights, said in (("imagenet", "can't download"), ("imgnet", "imgnet")):
        with pytest.raises(UserError, match=said):
            build_network(encoded, encoder_weights=weights)
    classic = choose_architecture("unet", None, channels=3, num_classes=2)
    with pytest.raises(UserError, match="use --encoder"):
        build_network(classic, encoder_weights="imagenet")


def learn(state: TrainState, steps: int) -> list[float]:
    batch = stack([fixed_sample(0), fixed_sample(1)])
    reports = train_epoch(
        state, [batch] * steps, DiceCrossEntropy(), PIXELS, Schedule(1e-2, steps), steps=steps
    )
    return [float(report.losses[0]) for report in reports]


def small_state(ema: float = 0.0) -> TrainState:
    torch.manual_seed(0)
    network = UNet(3, 3, width=8)
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    return TrainState(
        network, network, optimizer, Precision(torch.device("cpu")), moving_average(network, ema)
    )


def test_one_batch_is_learnt_by_heart() -> None:
    state = small_state()
    losses = learn(state, 150)
    assert losses[-1] < losses[0] / 4
    counts = evaluate(
        state.network,
        [stack([fixed_sample(0), fixed_sample(1)])],
        PIXELS,
        state.precision,
        num_classes=3,
    )
    assert Scores.from_confusion(counts.confusion).dice > 0.95


def test_moving_average_lags_and_is_what_is_scored() -> None:
    state = small_state(ema=0.9)
    before = state.network.outc.conv.weight.detach().clone()
    learn(state, 5)
    average, now = (n.outc.conv.weight.detach() for n in (state.scored, state.network))
    assert state.scored is not state.network
    lag = (average - before).norm() / (now - before).norm()
    assert 0.05 < float(lag) < 1
    assert torch.equal(state.scored.inc.double_conv[1].running_mean,
                       state.network.inc.double_conv[1].running_mean)  # fmt: skip


def test_moving_average_is_torchs() -> None:
    state, theirs = small_state(ema=0.9), small_state(ema=0.9)
    assert state.average is not None and theirs.average is not None
    for _ in range(3):
        learn(state, 1)
        state.epoch, state.step = state.epoch + 1, 0
        theirs.average.update_parameters(state.network)
    ours = state.average.state_dict()
    for name, value in theirs.average.state_dict().items():
        assert torch.equal(value, ours[name]), name


def test_schedule_rises_then_falls() -> None:
    schedule = Schedule(1.0, 200, warmup=0.1)
    rates = [schedule.at(step) for step in range(200)]
    assert rates[0] < 0.06
    assert max(rates) == rates[20] == 1.0
    assert rates[:21] == sorted(rates[:21])
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert 0.01 <= rates[-1] < 0.011


def test_bfloat16_on_a_cpu_only_where_asked_for() -> None:
    cpu = torch.device("cpu")
    assert Precision(cpu).dtype == torch.float32
    assert Precision(cpu, dtype="bfloat16").dtype == torch.bfloat16
    assert Precision(cpu, amp=False, dtype="bfloat16").dtype == torch.float32
    with pytest.raises(UserError, match="float16"):
        Precision(cpu, dtype="float16")
    state = small_state()
    state.precision = Precision(cpu, dtype="bfloat16")
    losses = learn(state, 40)
    assert losses[-1] < losses[0] * 0.7
