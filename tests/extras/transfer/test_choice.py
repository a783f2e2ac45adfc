"""A run whose settings name no network: from ImageNet weights, where they suit its images and are installed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_train
from unet_ddp.checkpoints.weights import read_model
from unet_ddp.cli import parse_train
from unet_ddp.commands.train_parts import suit_network
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.extras.transfer import choice
from unet_ddp.extras.transfer.choice import choose_encoder
from unet_ddp.extras.transfer.pretrained import find_packaged

LITE0 = "tu-tf_efficientnet_lite0"
ARGV = ["--epochs", "1", "-b", "2", "--workers", "0", "-v", "25", "--device", "cpu"]
needs_package = pytest.mark.skipif(find_packaged(LITE0) is None, reason="no extra pretrained")


def choose(
    *argv: str, count: int = 8, channels: int = 3, dtype: str = "uint8", side: int = 64
) -> dict[str, Any]:
    split: Any = SimpleNamespace(training=range(count))
    found = choose_encoder(parse_train(argv), split, ImageFormat(channels, dtype), (side, 99))
    return found.values if found else {}


def test_they_suit_few_images_of_8_bit_that_are_not_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose()["encoder_weights"] == "imagenet" and choose(channels=1)
    assert not choose(channels=4) and not choose(dtype="uint16")
    assert not choose(side=63) and choose("--crop-size", "64", "64", side=20)
    monkeypatch.setattr(choice, "FEW_IMAGES", 8)
    assert choose(count=7) and not choose(count=8)


@pytest.mark.parametrize(
    "flags",
    ["--model unet", "--width 32", "--encoder resnet18", "--encoder-rate 0.1", "--load a.pt", "--bilinear"],
)  # fmt: skip
def test_a_network_that_is_named_is_kept(flags: str, tmp_path: Path) -> None:
    assert not choose(*flags.split())
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("width: 32\n")
    assert not choose("--config", str(recipe))


def test_a_learning_rate_that_is_given_is_kept() -> None:
    assert choose()["learning_rate"] == 0.003
    assert "learning_rate" not in choose("--lr", "0.001") and choose("--lr", "0.001")


@needs_package
def test_a_run_says_what_is_chosen_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Ranks
) -> None:
    monkeypatch.chdir(tmp_path)
    make_set(tmp_path, 8, size=(64, 72))
    argv = [*data_flags(tmp_path), *ARGV, "--precision", "float32", "--augmentation", "none"]
    status, out, err = call_train([*argv, "--exp-name", "one"], str(tmp_path))
    assert status == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("few images")]
    flags = line.partition("weights: ")[2].partition(";")[0].split()
    assert line.endswith("--model unet trains the classic U-Net")
    assert "taken: 288 tensors" in out
    for _, two, err in ranks.run(
        2, call_train, [*argv, "-b", "1", "--exp-name", "two"], str(tmp_path)
    ):
        assert two.count(line) <= 1 and not err
    status, _, err = call_train([*argv, *flags, "--exp-name", "typed"], str(tmp_path))
    assert status == 0, err
    one, two, typed = (read_model(Path("checkpoints") / name / "last.pt") for name in ("one", "two", "typed"))  # fmt: skip
    assert one.run is not None and typed.run is not None
    assert one.run["config"]["encoder_weights"] == "imagenet"
    for name, weight in typed.state.items():
        assert torch.equal(one.state[name], weight), name
        assert two.state[name].shape == weight.shape

    status, out, err = call_train(["--exp-name", "one", "--resume", "--epochs", "2"], str(tmp_path))
    assert status == 0 and "few images" not in out, err


def test_without_the_package_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    data: Any = SimpleNamespace(
        split=SimpleNamespace(training=range(8)), format=ImageFormat(3), smallest=(64, 64)
    )
    config = parse_train([])
    monkeypatch.setattr(choice, "find_packaged", lambda encoder: Path("there.pth"))
    assert suit_network(config, data)[0].network.encoder_weights == "imagenet"
    monkeypatch.setattr(choice, "find_packaged", lambda encoder: None)
    assert suit_network(config, data) == (config, "")
