"""The stub unet_ddp/train_stub.pyi: the settings of `train` for type checkers and editors; see reference.py."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from benchmarks.reference_python import show_type
from unet_ddp.cli.help import describe
from unet_ddp.cli.signature import sign
from unet_ddp.commands.trained_run import TrainedRun
from unet_ddp.config import TrainConfig
from unet_ddp.settings import settings_of

_STUB = """# Made by `python -m benchmarks.reference` from the settings: edit them, and run it again.
from collections.abc import Sequence
from os import PathLike
from typing import Literal

from unet_ddp.cli.signature import Items
from unet_ddp.commands.trained_run import TrainedRun

def train(
    *,
"""
_WIDEST = 100  # characters of a line


def format_stub() -> str:
    """Return the text of the stub."""
    return _STUB + "".join(f"{line}\n" for line in _format_lines())


def _format_lines() -> Iterator[str]:
    signature = sign(TrainedRun)
    for each in signature.parameters.values():
        hint = show_type(each.annotation).replace("'", '"')
        default = repr(each.default).replace("'", '"')
        yield f"    {each.name}: {hint} = {default},"
    yield ") -> TrainedRun:"
    yield '    """Train a U-Net, as train.py does, and return its run.'
    yield ""
    yield "    Args:"
    settings = settings_of(TrainConfig)
    alias = {other: name for name, each in settings.items() for other in each.names[1:]}
    for name in signature.parameters:
        text = "False for --precision float32."
        if name in settings:
            text = describe(TrainConfig, settings[name])
        elif name in alias:
            text = f"The same as {alias[name]}."
        yield from textwrap.wrap(
            f"{name}: {text}", _WIDEST, initial_indent=" " * 8, subsequent_indent=" " * 12,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    yield '    """'
