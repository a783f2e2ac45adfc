"""A flag that a network, or a part of the user's own, does not use is one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_train

SOURCE = """
from torch import nn
from torch.nn import functional as F


class Small(nn.Module):
    stride = 1

    def __init__(self, channels, num_classes):
        super().__init__()
        self.head = nn.Conv2d(channels, num_classes, 1)

    def forward(self, images):
        return self.head(images)


class Sized(Small):
    def __init__(self, channels, num_classes, width, bilinear, encoder):
        super().__init__(channels, num_classes)
        self.encoder = nn.Conv2d(channels, channels, 1)

    def forward(self, images):
        return self.head(self.encoder(images))


class Any(Small):
    def __init__(self, *sizes, **more):
        super().__init__(*sizes)


def mine(logits, masks):
    return F.cross_entropy(logits, masks, ignore_index=255)


class Notes:
    def __init__(self, run):
        pass

    def epoch(self, row):
        pass

    def on_time(self):
        pass


class Misnamed(Notes):
    def on_epoch_end(self, row):
        pass
"""
FLAGS = ["--epochs", "1", "--validation", "20", "--workers", "0", "--device", "cpu", "--batch-size", "4"]  # fmt: skip
SMALL = ["--model", "unused_parts:Small"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_set(tmp_path_factory.mktemp("unused"), 10)
    (folder / "unused_parts.py").write_text(SOURCE)
    (folder / "recipe.yaml").write_text("width: 4\nbilinear: true\nencoder_rate: 0.1\n")
    (folder / "weights.yaml").write_text("class_weights: [1, 3]\n")
    return folder


@pytest.fixture(autouse=True)
def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    sys.modules.pop("unused_parts", None)


def train(folder: Path, *flags: str, name: str) -> tuple[int, str, str]:
    argv = [*data_flags(folder), *FLAGS, *flags, "--exp-name", name]
    return call_train(argv, str(folder))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--loss", "unused_parts:mine", "--class-weights", "1", "3"), "--class-weights: --loss unused_parts:mine is"),
        (("--callback", "unused_parts:Misnamed"), "--callback unused_parts:Misnamed: nothing calls on_epoch_end; the"),
    ],
)  # fmt: skip
def test_what_a_part_does_not_use_is_refused(
    folder: Path, flags: tuple[str, ...], said: str
) -> None:
    status, _, err = train(folder, "--config", "recipe.yaml", *flags, name="refused")
    assert status == 2 and f"error: {said}" in err, err
    assert not (folder / "checkpoints" / "refused" / "last.pt").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((*SMALL, "--width", "4", "--bilinear"), "unused_parts:Small has no use for --bilinear and --width"),
        ((*SMALL, "--encoder", "resnet18"), "unused_parts:Small has no use for --encoder"),
        ((*SMALL, "--encoder-rate", "0.1"), "unused_parts:Small has no use for --encoder-rate"),
        (("--encoder", "resnet18", "--width", "4"), "unet with resnet18 has no use for --width"),
        (("--model", "fpn", "--bilinear"), "fpn with resnet34 has no use for --bilinear"),
    ],
)  # fmt: skip
def test_a_script_may_give_flags_for_other_networks(
    folder: Path, flags: tuple[str, ...], said: str, ranks: Ranks
) -> None:
    argv = [*data_flags(folder), *FLAGS, *flags, "--exp-name", "other", "--overwrite", "--batch-size", "2"]  # fmt: skip
    outcomes = ranks.run(2, call_train, argv, str(folder))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    assert "".join(out for _, out, _ in outcomes).count(f"warning: {said}\n") == 1


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("recipe", ("--config", "recipe.yaml", *SMALL)),  # it may be for other networks
        ("weights", ("--config", "weights.yaml", "--width", "2", "--loss", "unused_parts:mine")),
        ("ce", ("--width", "2", "--loss", "unused_parts:mine+ce", "--class-weights", "1", "3")),
        ("sized", ("--model", "unused_parts:Sized", "--width", "4", "--bilinear", "--encoder", "x", "--encoder-rate", "0.1")),
        ("any", ("--model", "unused_parts:Any", "--width", "4")),  # who knows what it would take
        ("notes", (*SMALL, "--callback", "unused_parts:Notes")),
    ],
)  # fmt: skip
def test_what_it_uses_or_nobody_typed_is_taken(
    folder: Path, name: str, flags: tuple[str, ...]
) -> None:
    status, out, err = train(folder, *flags, name=name)
    assert status == 0 and "has no use" not in out + err, err
    again = [flag for flag in flags if flag not in ("--config", "recipe.yaml", "weights.yaml")]
    more = [*data_flags(folder), *again, "--exp-name", name, "--resume", "--epochs", "2", "--workers", "0"]  # fmt: skip
    status, _, err = call_train([*more, "--device", "cpu"], str(folder))
    assert status == 0, err


def test_a_network_is_not_named_for_weights_of_another(folder: Path) -> None:
    assert train(folder, "--width", "2", name="ours")[0] == 0
    best = folder / "checkpoints/ours/best.pt"
    status, _, err = train(folder, *SMALL, "--load", str(best), name="loaded")
    assert status == 2 and "--model unused_parts:Small: " in err and "contains its network" in err
