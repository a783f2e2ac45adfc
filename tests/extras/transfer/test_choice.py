"""A run whose settings name no network: from ImageNet weights, where they suit its images and are installed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_train
from unet_ddp.checkpoints.weights import read_model
from unet_ddp.cli import parse_train
from unet_ddp.commands.train_parts import suit_network, suit_run
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.extras.transfer import choice
from unet_ddp.extras.transfer.choice import choose_encoder
from unet_ddp.extras.transfer.pretrained import find_packaged
from unet_ddp.runs.resume import StartPoint

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
def test_a_run_says_what_is_chosen_and_keeps_it(tmp_path: Path) -> None:
    argv = [*data_flags(make_set(tmp_path, 4, size=(64, 72))), *ARGV]
    status, out, err = call_train(argv, str(tmp_path))
    assert status == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("few images")]
    assert line.endswith("; a new run with --model unet trains the classic U-Net")
    assert "taken: 288 tensors" in out
    run = read_model(tmp_path / "checkpoints/last.pt").run
    assert run is not None and run["config"]["encoder_weights"] == "imagenet"
    status, out, err = call_train(["--resume", "--epochs", "2"], str(tmp_path))
    assert status == 0 and "few images" not in out, err


@needs_package
@pytest.mark.thorough
def test_a_chosen_network_is_that_of_the_flags_on_any_number_of_ranks(
    tmp_path: Path, ranks: Ranks
) -> None:
    argv = [*data_flags(make_set(tmp_path, 8, size=(64, 72))), *ARGV, "--precision", "float32"]
    argv += ["--augmentation", "none", "--exp-name"]
    _, out, err = call_train([*argv, "one"], str(tmp_path))
    flags = out.partition("ImageNet weights: ")[2].partition(";")[0].split()
    assert flags, err
    assert call_train([*argv, "typed", *flags], str(tmp_path))[0] == 0
    for status, _, err in ranks.run(2, call_train, [*argv, "two", "-b", "1"], str(tmp_path)):
        assert status == 0, err
    one, two, typed = (
        read_model(tmp_path / "checkpoints" / name / "last.pt") for name in ("one", "two", "typed")
    )
    for name, weight in typed.state.items():
        assert torch.equal(one.state[name], weight), name
        if name.endswith("weight"):  # float32 sums in another order, over one epoch
            torch.testing.assert_close(two.state[name], weight, atol=0.02, rtol=0.1)


def test_without_the_package_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    data: Any = SimpleNamespace(
        split=SimpleNamespace(training=range(8)), format=ImageFormat(3), smallest=(64, 64)
    )
    config = parse_train([])
    monkeypatch.setattr(choice, "find_packaged", lambda encoder: Path("there.pth"))
    assert suit_network(config, data)[0]["encoder_weights"] == "imagenet"
    monkeypatch.setattr(choice, "find_packaged", lambda encoder: None)
    assert suit_network(config, data) == ({}, "")


def test_each_host_keeps_its_own_settings() -> None:
    """The main process chooses; its number of reading processes, as all of its host, is its own."""
    main: Any = SimpleNamespace(on_main=lambda choose: ({"encoder": "resnet18"}, StartPoint()))
    config, data = parse_train(["--workers", "3"]), cast(Any, None)
    found, _ = suit_run(config, data, StartPoint(), main)
    assert (found.network.encoder, found.launch.workers) == ("resnet18", 3)
