"""Two calls in one process equal two processes: nothing that a call leaves behind changes the next one's files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import unet_ddp
from tests.conftest import make_set
from tests.ranks import ROOT, warm_python

WHERE: dict[str, Any] = {
    "images": "imgs", "masks": "masks", "epochs": 2, "width": 2, "batch_size": 2, "workers": 0,
    "device": "cpu", "precision": "float32", "validation": 25, "stop_after": "2",
}  # fmt: skip
LOSS = "def mine(logits, masks):\n    return {n} * helper(logits, masks)\n"
HELPER = "from torch.nn import functional as F\ndef helper(logits, masks):\n    return {n} * F.cross_entropy(logits, masks, ignore_index=255)\n"
COUNTING = """from functools import partial
def counting(logits, masks, most=4):
    counting.calls = getattr(counting, "calls", 0) + 1
    return helper(logits, masks) * min(1, counting.calls / most)
least = partial(counting, most=3)
"""
AUGMENTATION = "import albumentations as A\nchange = A.{kind}(p=0.5)\n"

# A call: the folder, what is in its parts.py, the settings, and what is done to the process before.
CALLS: dict[str, dict[str, Any]] = {
    "own": {"n": 1, "settings": {"loss": "parts:mine"}},
    "edited": {"n": 3, "settings": {"loss": "parts:mine"}},
    "helper": {"helper": 5, "settings": {"loss": "parts:mine"}},
    "counting": {"settings": {"loss": "parts:counting"}},
    "least": {"settings": {"loss": "parts:least"}},
    "elsewhere": {"folder": "b", "n": 2, "settings": {"loss": "parts:mine"}},
    "turned": {"kind": "VerticalFlip", "settings": {"augmentation": "parts:change", "seed": 4}},
    "flipped": {"kind": "HorizontalFlip", "settings": {"augmentation": "parts:change", "seed": 4}},
    "average": {"settings": {"ema": 0.5, "seed": 7, "augmentation": "none"}},
    "small": {"folder": "b", "settings": {"scale": 0.5, "seed": 7, "loss": "focal"}},
    "deterministic": {"settings": {"deterministic": True, "accumulate": 2}},
    "photo": {"settings": {"augmentation": "photo", "class_weights": [1.0, 3.0]}},
    "threads": {"threads": 2, "settings": {"learning_rate": 1e-2}},
    "random": {"seed": 99, "settings": {"encoder_rate": 1.0, "clip": 0.5}},
}  # fmt: skip
ORDERS = [
    ["own", "edited", "helper", "elsewhere", "turned", "own"],
    ["average", "deterministic", "small", "photo", "least", "threads", "counting", "average"],
    ["flipped", "random", "turned", "small", "own", "flipped"],
]
SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[4])
from tests.test_two_calls import do
do(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
"""


def do(root: str, call: dict[str, Any], name: str) -> None:
    """Make a call, as a cell of a notebook does."""
    folder = Path(root, call.get("folder", "a"))
    os.chdir(folder)
    texts = {
        "parts.py": "from helpers import helper\n" + LOSS.format(n=call.get("n", 1)) + COUNTING
        + AUGMENTATION.format(kind=call.get("kind", "HorizontalFlip")),
        "helpers.py": HELPER.format(n=call.get("helper", 1)),
    }  # fmt: skip
    for file, text in texts.items():
        Path(file).write_text(text)
        os.utime(file, (10**9, 10**9))
    torch.set_num_threads(call.get("threads", 1))
    torch.manual_seed(call.get("seed", 0))
    with mock.patch("unet_ddp.extras.report.write.write_reports"):
        unet_ddp.train(**{**WHERE, **call["settings"]}, exp_name=name)


def content(root: Path, call: dict[str, Any], name: str) -> Any:
    """Return what a run's checkpoint contains, but for its name and the time."""
    path = root / call.get("folder", "a") / "checkpoints" / name / "last.pt"
    saved = torch.load(path, weights_only=True)
    return {
        key: saved[key]
        for key in ("sources", "position", "model", "ema", "optimizer")
        if key in saved
    }


def assert_same(one: Any, other: Any, where: str) -> None:
    if isinstance(one, torch.Tensor):
        far = (one.double() - other.double()).abs().max() if one.shape == other.shape else "shapes"
        assert torch.equal(one, other), f"{where}, {far} apart"
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}: {key}")
    elif isinstance(one, (list, tuple)):
        for k, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{where}: {k}")
    else:
        assert one == other, where


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(
        "NO_ALBUMENTATIONS_UPDATE", "1"
    )  # the part imports it before this package does
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("parts", "helpers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        make_set(tmp_path / folder, 8)
    return tmp_path


def check(root: Path, orders: list[list[str]]) -> None:
    """Compare each call of the orders, made in this process, with the same call in one of its own."""
    made: dict[str, Any] = {}
    threads = torch.get_num_threads()
    try:
        for k, order in enumerate(orders):
            for j, name in enumerate(order):
                run = f"{name}-{k}-{j}"
                do(str(root), CALLS[name], run)
                made[run] = content(root, CALLS[name], run)
    finally:
        torch.set_num_threads(threads)
        os.chdir(root)
        # The last call's folder is on it, and processes of a warm server that begins now would have it, too.
        sys.path[:] = [path for path in sys.path if root not in Path(path).parents]
    (root / "alone.py").write_text(SCRIPT)
    for name in {name for order in orders for name in order}:
        words = (str(root), json.dumps(CALLS[name]), f"alone-{name}", str(ROOT))
        alone = warm_python(root, "alone.py", *words)
        assert alone.returncode == 0, alone.stdout + alone.stderr
        expected = content(root, CALLS[name], "alone-" + name)
        for run in made:
            if run.rsplit("-", 2)[0] == name:
                assert_same(made[run], expected, f"{run} of {orders}")


@pytest.mark.processes
def test_calls_that_follow_each_other_are_as_each_alone(root: Path) -> None:
    check(root, [["own", "edited"]])


def test_a_function_begins_with_the_attributes_that_it_had_before_the_first_call(
    root: Path,
) -> None:
    """Issue: the second of two calls went on with what a loss function had counted in the first.

    Issue: nor could the user read the count after a call.
    """
    found = {}
    for k, name in enumerate(("counting", "least", "counting")):
        do(str(root), CALLS[name], f"{name}-{k}")
        found[k] = content(root, CALLS[name], f"{name}-{k}")
        counting = sys.modules["parts"].counting
        assert vars(counting).pop("calls") > 0 if k == 1 else counting.calls > 0
        counting.shown = True  # by the user
    assert_same(found[0], found[2], "counting")
    assert counting.shown
    counting.calls = 50  # by the user: the next one begins with it
    do(str(root), CALLS["counting"], "from-50")
    assert counting.calls > 50
    with pytest.raises(AssertionError, match="sums"):
        assert_same(found[0], content(root, CALLS["counting"], "from-50"), "counting")


@pytest.mark.processes
@pytest.mark.thorough
@pytest.mark.parametrize(
    "order",
    [pytest.param(order, marks=[pytest.mark.release] * (k > 0)) for k, order in enumerate(ORDERS)],
)
def test_calls_in_many_orders_are_as_each_alone(root: Path, order: list[str]) -> None:
    check(root, [order])
