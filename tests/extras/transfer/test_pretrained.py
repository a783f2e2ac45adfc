"""ImageNet weights from installed packages, and the pixels that encoders expect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch

from tests.conftest import data_flags, make_set
from tests.ranks import call_train
from unet_ddp.checkpoints.weights import read_model
from unet_ddp.config import NetworkConfig, TrainConfig
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import UserError
from unet_ddp.extras.transfer.fit import read_weights
from unet_ddp.extras.transfer.pretrained import find_packaged, normalise_for, read_packaged
from unet_ddp.network.architecture import build_network, choose_architecture

LITE0 = "tu-tf_efficientnet_lite0"
needs_package = pytest.mark.skipif(find_packaged(LITE0) is None, reason="no extra pretrained")


@needs_package
@pytest.mark.parametrize(
    ("number", "side", "first"),
    [  # of package efficientnet-lite-pytorch 0.1.0, the weights' own network
        (0, 224, [-2.9129, 0.2042, 0.9092]),
        (1, 240, [-2.2011, 0.0033, 0.7678]),
        (2, 260, [-3.0449, 0.2193, 0.0164]),
    ],
)
def test_the_logits_are_those_of_the_weights_own_network(
    number: int, side: int, first: list[float]
) -> None:
    encoder = f"tu-tf_efficientnet_lite{number}"
    path = find_packaged(encoder)
    if path is None:
        pytest.skip(f"no package of {encoder}")
    network = timm.create_model(encoder.removeprefix("tu-")).eval()
    network.load_state_dict(read_packaged(path, encoder).state)
    images = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        torch.testing.assert_close(network(images)[0, :3], torch.tensor(first), atol=2e-4, rtol=0)


@needs_package
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_all_tensors_of_the_encoder_are_taken(channels: int) -> None:
    network = NetworkConfig(encoder="efficientnet-lite0", encoder_weights="imagenet")
    given = read_weights(replace(TrainConfig(), network=network))
    assert given is not None
    architecture = choose_architecture("unet", network.encoder, channels=channels, num_classes=2)
    assert architecture.encoder == LITE0
    state, notes = given.fit(architecture, Labels((0, 255)))
    encoder = {name for name in build_network(architecture).state_dict() if "encoder." in name}
    assert state.keys() == encoder and len(encoder) == 288
    assert notes[0].startswith("taken: 288 tensors of ")
    assert ("conv_stem" in notes[1]) == (channels != 3)


@needs_package
@pytest.mark.thorough
def test_a_run_starts_from_them_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the hub is asked")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", refuse)
    make_set(tmp_path, 4)
    argv = [*data_flags(tmp_path), "--encoder", "efficientnet-lite0", "--encoder-weights=imagenet"]
    argv += ["--epochs", "1", "-b", "2", "--workers", "0", "-v", "25", "--device", "cpu"]
    status, out, err = call_train(argv, str(tmp_path))
    assert status == 0, err
    assert "taken: 288 tensors" in out
    saved = read_model(tmp_path / "checkpoints" / "best.pt")
    assert saved.preprocessing is not None and saved.architecture is not None
    assert saved.preprocessing.mean == saved.preprocessing.std == (0.5, 0.5, 0.5)
    assert saved.architecture.encoder == LITE0


@pytest.mark.parametrize(
    ("encoder", "channels", "high", "expected"),
    [
        (LITE0, 3, 255, ((0.5,) * 3, (0.5,) * 3)),
        (LITE0, 1, 255, ((0.5,), (0.5,))),
        ("tu-resnet18", 1, 255, ((0.449,), (0.226,))),  # the means over ImageNet's colours
        (LITE0, 3, 65535, None),
        (LITE0, 5, 255, None),
        ("resnet34", 1, 255, None),  # smp's, which timm does not describe
    ],
)
def test_pixels_are_normalised_as_the_weights_expect(
    encoder: str, channels: int, high: float, expected: tuple[tuple[float, ...], ...] | None
) -> None:
    usual = Preprocessing.for_images(channels, high, scale=0.5)
    found = normalise_for(encoder, usual)
    mean, std = expected or (usual.mean, usual.std)
    assert found.mean == pytest.approx(mean) and found.std == pytest.approx(std)
    assert replace(found, mean=usual.mean, std=usual.std) == usual


def test_other_weights_come_from_elsewhere() -> None:
    for encoder, weights in (("resnet18", "imagenet"), ("efficientnet-lite0", "other")):
        network = NetworkConfig(encoder=encoder, encoder_weights=weights)
        assert read_weights(replace(TrainConfig(), network=network)) is None


def test_a_damaged_package_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes(b"damaged")
    with pytest.raises(
        UserError, match=r"a\.pth: corrupt or truncated .*install its package again"
    ):
        read_packaged(path, LITE0)
    torch.save({"weight": torch.zeros(3)}, path)
    with pytest.raises(UserError, match=r"1 tensor, tu-tf_efficientnet_lite0 has 296"):
        read_packaged(path, LITE0)
