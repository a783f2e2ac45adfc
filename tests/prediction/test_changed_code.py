"""Code of the user's own that has changed since the training is named wherever the checkpoint is used."""

from __future__ import annotations

import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_main, call_train
from unet_ddp import Predictor, evaluate
from unet_ddp.prediction.changed_code import ChangedCode

NETWORK = """
from torch import nn
from my_helper import turn


class Net(nn.Module):
    stride = 1

    def __init__(self, channels, num_classes):
        super().__init__()
        self.layer = nn.Conv2d(channels, num_classes, 1)

    def forward(self, images):
        return turn(self.layer(images))
"""
HELPER = "def turn(x):\n    return x\n"
NAME = "my_net:Net"
SAID = "--network {}: {} has changed since its training"
HELPERS = SAID.format(NAME, "the source of my_helper, which it imports,")


@pytest.fixture
def best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkpoint of a run with a network of the user's own in two files."""
    (tmp_path / "my_net.py").write_text(NETWORK)
    (tmp_path / "my_helper.py").write_text(HELPER)
    make_set(tmp_path, 8)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    flags = ["--epochs", "1", "--validation", "25", "--workers", "0", "--batch-size", "2"]
    status, _, err = call_train([*data_flags(tmp_path), *flags, "--model", NAME], str(tmp_path))
    assert status == 0, err
    forget()
    return tmp_path / "checkpoints" / "best.pt"


def forget() -> None:
    """Have the modules imported again, as another process does."""
    for name in ("my_net", "my_helper", "renamed"):
        sys.modules.pop(name, None)


def test_a_changed_helper_is_a_line_of_each_program(best: Path) -> None:
    folder = best.parents[1]
    image = str(next((folder / "imgs").iterdir()))
    calls = [
        ["predict", "--model", str(best), image, "-o", "mask.png", "--overwrite"],
        ["evaluate", "--workers", "0", "--overwrite"],
        ["report"],
        ["export", str(best), "--card", "card", "--license", "mit", "--overwrite"],
    ]
    if find_spec("onnxscript") is not None:  # of the extra onnx
        calls.append(["export", str(best), "net.onnx", "--overwrite"])

    def list_lines(call: list[str]) -> list[str]:
        forget()
        given = [*call, "--network", NAME]
        status, out, err = call_main("unet_ddp.__main__", given, str(folder))
        assert status == 0, err
        return [line for line in [*out.splitlines(), *err.splitlines()] if "changed since" in line]

    assert [list_lines(call) for call in calls] == [[]] * len(calls)
    (folder / "my_helper.py").write_text(HELPER.replace("return x", "return -x"))
    for call in calls:
        (line,) = list_lines(call)
        assert line.startswith("warning: ") and f"best.pt: {HELPERS}" in line, call
        assert line.endswith("the old text is in the file, under sources")


def test_ranks_say_it_once_and_a_second_network_is_named_too(best: Path, ranks: Ranks) -> None:
    folder = best.parents[1]
    (folder / "my_helper.py").write_text(HELPER.replace("return x", "return -x"))
    flags = ["evaluate", "--workers", "0", "--network", NAME]
    outcomes = ranks.run(2, call_main, "unet_ddp.__main__", flags, str(folder))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    assert sum((out + err).count(HELPERS) for _, out, err in outcomes) == 1
    flags += ["--against", str(best), "--overwrite"]
    status, out, err = call_main("unet_ddp.__main__", flags, str(folder))
    assert status == 0 and out.count(HELPERS) == 2, err


def test_python_is_warned(best: Path) -> None:
    folder = best.parents[1]
    (folder / "my_net.py").write_text(NETWORK + "\n\nUSED = 1\n")
    forget()
    said = SAID.format(NAME, "its source")
    with pytest.warns(ChangedCode, match=said):
        assert Predictor.from_checkpoint(best, network=NAME).labels.num_classes == 2
    with pytest.warns(ChangedCode, match=said):
        assert said in evaluate(best, network=NAME, workers=0).text


def test_a_comment_or_another_name_is_no_change(best: Path) -> None:
    folder = best.parents[1]
    (folder / "my_helper.py").write_text(f"# turns nothing\n\n{HELPER}")
    (folder / "renamed.py").write_text(NETWORK)
    forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in (NAME, "renamed:Net"):
            assert Predictor.from_checkpoint(best, network=name).labels.num_classes == 2
    (folder / "renamed.py").write_text(NETWORK.replace("(self.layer", "(-self.layer"))
    with pytest.warns(ChangedCode, match=SAID.format("renamed:Net", "its source")):
        Predictor.from_checkpoint(best, network="renamed:Net")
