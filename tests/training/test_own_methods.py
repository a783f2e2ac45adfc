"""A network or a loss of the user's own that overrides torch's methods of its state."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import data_flags, make_set
from tests.ranks import call_train

SOURCE = """
from torch import nn
from torch.nn import functional as F


class Methods(nn.Module):
    METHOD


class Network(BASE):
    stride = 1

    def __init__(self, channels, num_classes):
        super().__init__()
        self.body, self.inner = nn.Conv2d(channels, num_classes, 1), INNER()

    def forward(self, images):
        return self.body(images)


class Loss(BASE):
    def __init__(self):
        super().__init__()
        self.weight, self.inner = nn.Linear(1, 1), INNER()

    def forward(self, logits, masks):
        return F.cross_entropy(logits * self.weight.weight.mean(), masks, ignore_index=255)
"""
STATE = "def state_dict(self): return super().state_dict()"
LOADED = "def load_state_dict(self, state): return super().load_state_dict(state)"
BEFORE_ASSIGN = """
    def load_state_dict(self, state_dict, strict=True): return super().load_state_dict(state_dict, strict)
"""
PASSED = """
    def state_dict(self, *args, **kwargs): return super().state_dict(*args, **kwargs)
    def load_state_dict(self, state, strict=True, **more): return super().load_state_dict(state, strict, **more)
"""


@pytest.mark.parametrize("flag", ["--model", "--loss"])
@pytest.mark.parametrize(
    ("method", "is_inner", "refused"),
    [
        (STATE, False, {"--model", "--loss"}),
        (STATE, True, {"--model", "--loss"}),
        (LOADED, False, {"--model"}),  # a part's own is not called
        (LOADED, True, set()),
        (BEFORE_ASSIGN, False, set()),  # torch's before 2.1; nothing here assigns
        (PASSED, False, set()),
        (PASSED, True, set()),
    ],
)
def test_one_without_torch_s_arguments_is_a_line(
    flag: str,
    method: str,
    is_inner: bool,
    refused: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Issue: a traceback of an unexpected keyword argument."""
    base, inner = ("nn.Module", "Methods") if is_inner else ("Methods", "nn.Identity")
    text = SOURCE.replace("METHOD", method).replace("BASE", base).replace("INNER", inner)
    (tmp_path / "my_methods.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_methods", raising=False)
    make_set(tmp_path, 4)
    part = f"my_methods:{'Network' if flag == '--model' else 'Loss'}"
    argv = [
        *data_flags(tmp_path),
        "--width",
        "2",
        "--epochs",
        "1",
        "--workers",
        "0",
        "--stop-after",
        "1",
    ]
    status, _, err = call_train([*argv, "--batch-size", "2", flag, part], str(tmp_path))
    assert status == (2 if flag in refused else 0), err
    if flag in refused:
        name = "state_dict" if method == STATE else "load_state_dict"
        assert err.startswith(f"error: {flag} {part}: {name} of ") and err.count("\n") == 1, err
        assert "does not take torch's arguments" in err and f"super().{name}" in err
        assert not (tmp_path / "checkpoints").exists()
