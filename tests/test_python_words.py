"""What Python gives as settings: each value becomes the words of a command line, or is refused in one line."""

from __future__ import annotations

import inspect
import pydoc
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

import unet_ddp
from unet_ddp.cli.python import to_words
from unet_ddp.config import TrainConfig
from unet_ddp.settings import settings_of

PARTS = """
import functools
from torch import nn

def function(logits, masks): return logits.mean()
class Kind: pass
class Callable:
    def __call__(self, logits, masks): return logits.mean()
instance, unnamed = Callable(), lambda logits, masks: logits.mean()
part, module = functools.partial(function), nn.CrossEntropyLoss(ignore_index=255)
"""
OBJECTS = ("function", "Kind", "instance", "unnamed", "part", "module")
IMAGES = np.zeros((5, 8, 8, 3), np.uint8)
WRONG: list[tuple[str, Any, str]] = [
    ("load", torch.zeros(2, 3, 4, 4), "an array (2, 3, 4, 4); give a number, text or a path"),
    ("list", ["a.png", "b.png"], "a list of 2 values"),
    ("model", nn.Conv2d(1, 1, 1), "give the class, or a function in a file"),
    ("loss", nn.CrossEntropyLoss(), "%%writefile parts.py"),
    ("loss", partial(max, 1), "%%writefile parts.py"),
    ("callback", [object()], "%%writefile parts.py"),
    ("loss", IMAGES, "an array (5, 8, 8, 3)"),
    ("seed", {"a": 1}, "a dict of 1 value"),
    ("nproc", object(), "an object of type object"),
    ("dataset", [], "train() has no such setting; use images="),
    ("optimizer", "sgd", "train() has no such setting; the optimizer is AdamW; use learning_rate="),
    ("epoch", 3, "did you mean epochs?"),
    ("colour", 3, "help(unet_ddp.train)"),
    ("width", True, "True; expected a number"),
    ("width", False, "False; expected a number"),
    ("lr", np.bool_(True), "True; expected a number or auto"),
    ("list", True, "True; expected text or a path"),
    ("crop_size", True, "True; expected numbers"),
    ("class_names", [], "[]; give at least one value, or leave it out"),
    ("crop_size", np.zeros(0, np.int64), "[]; give at least one value"),
    ("loss_weights", (), "(); give at least one value"),
    ("epochs", [], "[]; give at least one value"),
]


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "words_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "words_parts", raising=False)
    return __import__("words_parts")


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("setting", ["loss", "augmentation", "reader"])
def test_an_object_is_its_import_path(parts: Any, setting: str, name: str) -> None:
    assert to_words(setting, getattr(parts, name))[-1].endswith(f"words_parts:{name}")
    assert to_words("callback", [getattr(parts, name)]) == ["--callback", f"words_parts:{name}"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("shares", [], []),  # none, as its default
        ("amp", np.bool_(True), ["--amp"]),
        ("amp", torch.tensor(False), ["--no-amp"]),
        ("epochs", np.int64(3), ["--epochs=3"]),
        ("crop_size", np.array([64, 32]), ["--crop-size", "64", "32"]),
        ("class_weights", torch.tensor([1.0, 2.5]), ["--class-weights", "1.0", "2.5"]),
        ("images", Path("imgs"), ["--images=imgs"]),
        ("e", 3, ["--e=3"]),
        ("no_amp", True, ["--no-amp"]),
        ("resume", False, []),
        ("seed", None, []),
    ],
)
def test_a_value_of_another_library_is_as_pythons(name: str, value: Any, words: list[str]) -> None:
    assert to_words(name, value) == words


@pytest.mark.parametrize(("name", "value", "said"), WRONG, ids=[f"{n}-{s}" for n, _, s in WRONG])
def test_all_else_is_refused_in_a_short_line(name: str, value: Any, said: str) -> None:
    with pytest.raises(unet_ddp.UserError) as caught:
        to_words(name, value)
    text = str(caught.value)
    assert text.startswith(f"{name}: ") and said in text and "\n" not in text and len(text) < 250


def test_the_signature_has_each_setting_with_its_default() -> None:
    """A notebook shows it, and completes by it; the stub of the same text is tested as a page."""
    parameters = inspect.signature(unet_ddp.train).parameters
    settings = settings_of(TrainConfig)
    assert {*parameters} == {*settings, "lr", "amp"}
    for name, setting in settings.items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == setting.default
        if setting.default not in (
            None,
            (),
        ):  # so a value of that type is one that the setting takes
            assert to_words(name, setting.default)
    assert parameters["crop_size"].annotation == Sequence[int] | None
    assert parameters["batch_size"].annotation == int | Literal["auto"]
    assert "epochs: int = 10" in pydoc.render_doc(unet_ddp.train, renderer=pydoc.plaintext)


def test_completion_offers_the_public_names() -> None:
    assert set(dir(unet_ddp)) == {*unet_ddp.__all__, "__version__"}
