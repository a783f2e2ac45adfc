"""A callback of the user's own, which follows a run on the main process."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_train
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.cli import parse_train
from unet_ddp.errors import UserError
from unet_ddp.runs.own_callback import OwnCallback

SOURCE = """
class Notes:
    def __init__(self, run):
        self.file = open("notes.txt", "a")
        print("made for", run.folder, run.settings["seed"], file=self.file)

    def step(self, report, done):
        print("step", done, file=self.file)

    def epoch(self, row):
        print("epoch", row["epoch"], row["loss"] > 0, file=self.file)

    def saved(self, path):
        print("saved", path.name, path.is_file(), file=self.file)

    def close(self, ending):
        print("close", ending.state, ending.exit_status, ending.signal, ending.error, file=self.file)
        self.file.close()


class Faulty:
    def __init__(self, run):
        pass

    def epoch(self, row):
        raise ValueError("no such place")


class Enough:
    def __init__(self, run):
        pass

    def epoch(self, row):
        return row["epoch"] == 2


class Changing:
    def __init__(self, run):
        pass

    def epoch(self, row):
        row["loss"] = -1.0
        del row["epoch"]


class Impossible:
    def __init__(self):
        pass


class OfLightning:
    def __init__(self, run):
        pass

    def on_epoch_end(self, row):
        pass


def function(row):
    print(row)


class Waiting:
    def __init__(self, run):
        pass

    async def close(self, ending):
        pass
"""
FLAGS = [
    "--width", "2", "--epochs", "3", "--validation", "0", "--workers", "0", "--batch-size", "2",
]  # fmt: skip


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a data set and a module, and a package that is installed there with an entry point."""
    (tmp_path / "my_callbacks.py").write_text(SOURCE)
    info = tmp_path / "my_callbacks_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: my-callbacks-package\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text("[unet_ddp.callbacks]\nnotes = my_callbacks:Notes\n")
    make_set(tmp_path, 4)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_callbacks", raising=False)
    return tmp_path


def train_where_installed(argv: list[str], folder: str) -> tuple[int, str, str]:
    """Train on a rank whose Python finds the packages in `folder`."""
    sys.path.insert(0, folder)
    try:
        return call_train(argv, folder)
    finally:
        sys.path.remove(folder)


def test_it_hears_of_steps_epochs_and_checkpoints_on_the_main_process(
    own: Path, ranks: Ranks
) -> None:
    argv = [*data_flags(own), *FLAGS, "--epochs", "1", "--callback", "notes"]
    outcomes = ranks.run(2, train_where_installed, argv, str(own))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    notes = (own / "notes.txt").read_text().splitlines()
    assert notes[0] == "made for checkpoints 0"
    assert notes[1] == "saved last.pt True"  # before the first step
    assert sorted(notes[2:-1]) == ["epoch 1 True", "saved last.pt True", "step 1"]
    assert notes[-1] == "close finished 0 None None"


def test_it_finds_the_row_of_an_epoch_in_the_folder(own: Path) -> None:
    (own / "my_readers.py").write_text(
        "class Rows:\n    def __init__(self, run): self.file = run.folder / 'metrics.csv'\n"
        "    def epoch(self, row): assert len(self.file.read_text().splitlines()) == 1 + row['epoch']\n"
    )
    argv = [*data_flags(own), *FLAGS, "--epochs", "2", "--callback", "my_readers:Rows"]
    status, _, err = call_train(argv, str(own))
    assert status == 0, err


def test_one_that_changes_its_row_changes_no_other_s(own: Path) -> None:
    callbacks = ["--callback", "my_callbacks:Changing", "my_callbacks:Notes"]
    argv = [*data_flags(own), *FLAGS, "--epochs", "1", *callbacks]
    status, _, err = call_train(argv, str(own))
    assert status == 0, err
    assert "epoch 1 True" in (own / "notes.txt").read_text().splitlines()
    row = json.loads((own / "checkpoints" / "run.json").read_text())["metrics"]["last"]
    assert row["epoch"] == 1 and row["loss"] > 0


def test_one_that_returns_true_ends_the_run_on_all_ranks(own: Path, ranks: Ranks) -> None:
    argv = [*data_flags(own), *FLAGS, "--batch-size", "1", "--callback", "my_callbacks:Enough"]
    outcomes = ranks.run(2, train_where_installed, argv, str(own))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    out = "".join(out for _, out, _ in outcomes)
    assert out.count("--callback my_callbacks:Enough ends the run") == 1
    assert out.count("stopped as asked after step 4; continue with --resume") == 1
    position = checkpoint.load(own / "checkpoints" / "last.pt")["position"]
    assert (position["epoch"], position["step"]) == (2, 0)
    outcomes = ranks.run(2, train_where_installed, [*argv[:-2], "--resume"], str(own))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    assert checkpoint.load(own / "checkpoints" / "last.pt")["position"]["epoch"] == 3


def test_a_failure_stops_the_run_saved_and_is_said_with_its_name(own: Path) -> None:
    argv = [*data_flags(own), *FLAGS, "--callback", "my_callbacks:Faulty", "my_callbacks:Notes"]
    status, out, err = call_train(argv, str(own))
    said = "--callback my_callbacks:Faulty: ValueError: no such place"
    assert status == 2 and f"error: {said}" in err
    assert 'raise ValueError("no such place")' in out  # its traceback
    last = (own / "notes.txt").read_text().splitlines()[-1]  # another's is closed
    assert last == f"close failed 2 None {said}; see docs/own_parts.md"
    assert checkpoint.load(own / "checkpoints" / "last.pt")["position"]["epoch"] >= 1
    status, _, err = call_train([*argv[:-3], "--resume"], str(own))
    assert status == 0, err


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (3, "3"),
        (0, "0"),
        ("no", "'no'"),
        ({"epoch": 1}, "a dict of 1"),
        (np.ones(1, bool), "a ndarray"),
        (torch.tensor(1.0), "a Tensor"),
    ],
)
def test_what_is_neither_true_nor_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, returned: object, said: str
) -> None:
    """Issue: `return self.file.write(...)` ended the run after one epoch, with exit status 0."""
    callback = make_returning(monkeypatch, returned)
    with pytest.raises(UserError) as refused:
        callback.epoch({"epoch": 1})
    assert str(refused.value) == (
        f"--callback parts:Returning: epoch returned {said}; return True to end the run, else nothing"
    )
    assert not hasattr(callback, "epoch")  # it is told no more


@pytest.mark.parametrize(
    ("returned", "ends"),
    [
        (None, False),
        (False, False),
        (True, True),
        (np.float32(0.5) < 1, True),
        (np.array(False), False),
        (torch.tensor(0.5) < 1, True),
        (torch.tensor(0.5) > 1, False),
    ],
)
def test_true_of_numpy_or_torch_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, returned: object, ends: bool
) -> None:
    assert make_returning(monkeypatch, returned).epoch({"epoch": 1}) is ends


def make_returning(monkeypatch: pytest.MonkeyPatch, returned: object) -> Any:
    class Returning:
        def __init__(self, run: object) -> None:
            pass

        def epoch(self, row: dict[str, object]) -> object:
            return returned

    monkeypatch.setattr("unet_ddp.runs.own_callback.find", lambda point, name: Returning)
    return OwnCallback("parts:Returning", cast(Any, None))


def test_a_run_whose_callback_returns_something_fails_saved_and_names_it(own: Path) -> None:
    (own / "my_returns.py").write_text(
        "class Rows:\n    def __init__(self, run): pass\n    def epoch(self, row): return row['epoch']\n"
    )
    argv = [*data_flags(own), *FLAGS, "--callback", "my_returns:Rows"]
    status, out, err = call_train(argv, str(own))
    assert status == 2 and "error: --callback my_returns:Rows: epoch returned 1; return True" in err
    assert "NoneType" not in out and "ends the run" not in out  # nothing was raised
    assert checkpoint.load(own / "checkpoints" / "last.pt")["position"]["epoch"] >= 1


@pytest.mark.parametrize("moment", ["epoch", "saved", "close"])
def test_a_failure_in_the_last_epoch_is_one_too(own: Path, moment: str) -> None:
    """Issue: it was a warning, and the exit status 0."""
    (own / "my_failures.py").write_text(
        f"class Faulty:\n    def __init__(self, run): pass\n    def {moment}(self, *_): 1 / 0\n"
    )
    argv = [*data_flags(own), *FLAGS, "--epochs", "1", "--callback", "my_failures:Faulty"]
    status, _, err = call_train(argv, str(own))
    assert status == 2 and "error: --callback my_failures:Faulty: ZeroDivisionError" in err
    assert checkpoint.load(own / "checkpoints" / "last.pt")["position"]["epoch"] <= 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_callbacks:Impossible", "TypeError: Impossible.__init__"),
        ("my_callbacks:None", "can't be imported"),
        (
            "my_callbacks:OfLightning",
            "makes a OfLightning, which has none of the methods step, epoch, saved, close; see docs/own_parts.md",
        ),
        (
            "my_callbacks:function",
            "makes None, which has none of the methods step, epoch, saved, close;",
        ),
        ("my_callbacks:Waiting", "close is never awaited; leave async out"),
        ("nots", "nots: no installed package has it for unet_ddp.callbacks; use MODULE:NAME"),
    ],
)
def test_what_can_not_be_made_is_a_line_before_the_run_has_its_folder(
    own: Path, name: str, said: str
) -> None:
    status, _, err = call_train([*data_flags(own), *FLAGS, "--callback", name], str(own))
    assert status == 2 and name in err and said in err and "Traceback" not in err
    assert not (own / "checkpoints" / "last.pt").exists()


SHARED = """
import torch


class Changing:
    def __init__(self, run):
        self.run = run

    @torch.no_grad()
    def step(self, report, done):
        network, optimizer, loss = self.run.state.network, self.run.state.optimizer, self.run.state.loss
        WHAT


class Early(Changing):
    def __init__(self, run):
        super().__init__(run)
        self.step(None, 0)


class Late(Changing):
    def epoch(self, row):
        self.run.state.network.outc.requires_grad_(False)

    def step(self, report, done):
        pass
"""
CHANGES = {
    "for each in network.parameters(): each.clamp_(-0.05, 0.05)": r"network\.[\w.]+",
    "for each in network.parameters(): each.data.clamp_(-0.05, 0.05)": r"network\.[\w.]+",
    "network.outc.requires_grad_(False)": r"requires_grad of network\.outc[\w.]+",
    "optimizer.param_groups[0]['lr_scale'] = 3.0": r"optimizer\.param_groups\[0\]\['lr_scale'\]",
    "network(torch.rand(2, 3, 32, 32))": r"network\.[\w.]+",  # batch norm's averages
    "optimizer.state.clear()": r"optimizer\.state\[0\]\['\w+'\]",
    "network.outc.requires_grad_(self.run.state.done != 7)": r"requires_grad of network\.outc[\w.]+",
}


@pytest.mark.parametrize("what", CHANGES)
def test_one_that_changes_the_training_of_the_main_process_alone_is_refused(
    own: Path, ranks: Ranks, what: str
) -> None:
    """Issue: two networks were trained, without a word; on one process there is one."""
    (own / "my_shared.py").write_text(SHARED.replace("WHAT", what))
    argv = [*data_flags(own), *FLAGS, "--epochs", "5", "--batch-size", "1", "--exp-name"]
    kinds = ("Changing", "step", 1), ("Early", "__init__", 2)
    for kind, moment, expected in kinds if "each.clamp_" in what else kinds[:1]:
        name = f"my_shared:{kind}"
        outcomes = ranks.run(2, train_where_installed, [*argv, kind, "--callback", name], str(own))
        assert [status for status, _, _ in outcomes] == [expected] * 2, outcomes
        (said,) = "".join(err for _, _, err in outcomes).splitlines()
        assert re.match(
            rf"error: --callback {name}: {moment} changes {CHANGES[what]} on the main process only, so the 2 ",
            said,
        )
        assert ("call run.state.network.eval() before" in said) == what.startswith("network(")
    alone = [*argv, "alone", "--callback", "my_shared:Changing"]
    status, _, err = call_train(alone, str(own))
    assert status == 0, err


@pytest.mark.parametrize(
    "what",
    [
        "network.eval()(torch.rand(2, 3, 32, 32))",  # and it is not trained in this mode
        "network.eval(); loss(network(torch.rand(2, 3, 32, 32)), torch.ones(2, 32, 32).long())",
        "kept = network.outc.conv.weight.clone(); network.outc.conv.weight.zero_(); network.outc.conv.weight.copy_(kept)",
    ],
)
def test_one_that_leaves_the_training_as_it_was_follows_several_processes(
    own: Path, ranks: Ranks, what: str
) -> None:
    """Issue: the others waited for the main process, which had left the mode of training, or had summed up a loss."""
    (own / "my_shared.py").write_text(SHARED.replace("WHAT", what))
    argv = [*data_flags(own), *FLAGS, "--epochs", "1", "--batch-size", "1", "--exp-name"]
    given = ["with", "--callback", "my_shared:Changing"], ["without"]
    for more in given:
        outcomes = ranks.run(2, train_where_installed, [*argv, *more], str(own))
        assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    one, other = (
        checkpoint.load(own / "checkpoints" / name / "last.pt")["model"] for name, *_ in given
    )
    assert all(torch.equal(one[name], other[name]) for name in other)


RATES = """
class Rates:
    def __init__(self, run):
        self.groups, self.network = run.state.optimizer.param_groups, run.state.network

    def step(self, report, done):
        for group in self.groups:
            WHAT

    def epoch(self, row):
        if row["epoch"] == 2:
            return END
"""


@pytest.mark.parametrize(
    ("what", "is_said", "has_effect"),
    [
        ("group['lr'] *= 0.1", True, False),
        ("group['lr'] = 2 * group['lr'] / 2", False, False),
        ("group['lr_scale'] = 0.1", False, True),
    ],
)
def test_a_learning_rate_that_the_schedule_replaces_is_said_once(
    own: Path, what: str, is_said: bool, has_effect: bool
) -> None:
    """Issue: a callback that halved the rate changed nothing, and no line said so."""
    (own / "my_rates.py").write_text(RATES.replace("WHAT", what).replace("END", "True"))
    for more in (["with", "--callback", "my_rates:Rates"], ["without", "--stop-after", "4"]):
        status, out, err = call_train([*data_flags(own), *FLAGS, "--exp-name", *more], str(own))
        assert status == 0, err
        said = "--callback my_rates:Rates: step changes the learning rate, but the schedule sets it"
        assert out.count(said) == (is_said and more[0] == "with"), out
        assert out.count("lr_scale") == out.count("again after --resume") == out.count(said)
    one, other = (
        checkpoint.load(own / "checkpoints" / name / "last.pt")["model"]
        for name in ("with", "without")
    )
    assert any(not torch.equal(one[name], other[name]) for name in other) == has_effect


@pytest.mark.parametrize(
    ("end", "epochs", "expected"), [("None", 3, 2), ("True", 3, 0), ("None", 2, 0)]
)
def test_one_that_freezes_the_whole_network_is_a_line(
    own: Path, end: str, epochs: int, expected: int
) -> None:
    """Issue: the next step ended with torch's traceback, of a loss without a gradient."""
    text = RATES.replace("WHAT", "pass").replace(
        "END", f"self.network.requires_grad_(False) and {end}"
    )
    (own / "my_rates.py").write_text(text)
    argv = [*data_flags(own), *FLAGS, "--epochs", str(epochs), "--callback", "my_rates:Rates"]
    status, _, err = call_train(argv, str(own))
    assert status == expected, err
    said = "error: --callback my_rates:Rates: epoch freezes the whole network, so nothing would be"
    assert err.startswith(said) == bool(expected) and "Traceback" not in err, err
    saved = checkpoint.load(own / "checkpoints" / "last.pt")["position"]
    assert saved["epoch"] == 2, saved


COUNTING = """
import numpy as np
import torch
from torch import nn


class Counting(nn.Module):
    stride = 1

    def __init__(self, channels, num_classes):
        super().__init__()
        self.layer = nn.Conv2d(channels, num_classes, 1)
        self.calls = self.height = 0
        self.scale = 1.0
        self.last = float("nan")
        self.register_buffer("row", torch.zeros(0), persistent=False)

    def forward(self, images):
        self.calls, self.height = self.calls + 1, images.shape[-2]
        self.scale = np.float32(0.5)  # no plain number from now on
        if len(self.row) < images.shape[-1]:
            self.row = torch.arange(images.shape[-1]) / 100
        return self.layer(images) * float(self.scale) + self.row[: images.shape[-1]]


class Picture:
    def __init__(self, run):
        self.state = run.state

    @torch.no_grad()
    def epoch(self, row):
        assert self.state.network.scale == 0.5
        self.state.network.eval()(torch.rand(1, 3, 128, 128))
        self.state.network.best = row["loss"]
        for group in self.state.optimizer.param_groups:
            group["lr"] *= 0.5  # as the schedule gives it to each step, it has no effect
"""


def test_a_picture_by_a_network_that_counts_its_passes_follows_several_processes(
    own: Path, ranks: Ranks
) -> None:
    """Issue: it was refused, as other processes have other numbers and longer rows; so was any with a nan."""
    (own / "my_counting.py").write_text(COUNTING)
    argv = [*data_flags(own), *FLAGS, "--batch-size", "1", "--model", "my_counting:Counting"]
    given = ["with", "--callback", "my_counting:Picture"], ["without"]
    for more in given:
        outcomes = ranks.run(2, train_where_installed, [*argv, "--exp-name", *more], str(own))
        assert [status for status, _, _ in outcomes] == [0, 0], outcomes
        said = "".join(out + err for _, out, err in outcomes)
        line = "epoch changes model.calls on the main process only, so it is set back"
        assert said.count(line) == (more != ["without"]), said
    one, other = (checkpoint.load(own / "checkpoints" / name / "last.pt") for name, *_ in given)
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in other["model"])
    assert {**other["numbers"], "model:best": 0} == {**one["numbers"], "model:best": 0}


def test_a_layer_frozen_after_an_epoch_is_refused_too(own: Path, ranks: Ranks) -> None:
    (own / "my_shared.py").write_text(SHARED.replace("WHAT", "pass"))
    argv = [*data_flags(own), *FLAGS, "--batch-size", "1", "--callback", "my_shared:Late"]
    outcomes = ranks.run(2, train_where_installed, argv, str(own))
    assert [status for status, _, _ in outcomes] == [1, 1], outcomes
    assert "epoch changes requires_grad of network.outc" in "".join(err for _, _, err in outcomes)
    # No process has gone on: the last save is the one before the first step.
    position = checkpoint.load(own / "checkpoints" / "last.pt")["position"]
    assert (position["epoch"], position["step"]) == (0, 0)


def test_a_recipe_starts_none(own: Path) -> None:
    (own / "evil.yaml").write_text("callback: ['my_callbacks:Notes']\n")
    with pytest.raises(UserError, match="type --callback my_callbacks:Notes, too"):
        parse_train(["--config", "evil.yaml"])
