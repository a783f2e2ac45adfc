"""Seeded mutations: of bytes, of text, of nested values, and files that are not regular."""

from __future__ import annotations

import io
import math
import os
import random
import re
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

NUMBERS = (0, 1, 2, 7, 0x7F, 0xFF, 0x100, 0x7FFF, 0xFFFF, 0x10000, 2**31 - 1, 2**31, 2**32 - 1)
WORDS = (
    "", "nan", "inf", "-1", "1e23", "1e400", "²", "0x10", "#ff", "9" * 5000, "true", "null", "x" * 70_000,
    "a/b", "../../x", "/dev/zero", "fifo", "=1+1", '"', "'", "a\0b", "\x1b[2J", "\ufeff", "é\u202e",
    "tu-hf-hub:somebody/payload", "--overwrite", "-1e9", "65536", "#ff0000", "1_0", "0.5", "ignore",
)  # fmt: skip
YAML = (
    "!!python/object/apply:os.system [id]", "[" * 3000, "{a: &a [1, *a]}", "*nothing", "2026-11-22",
    "[1, 1, --checkpoints, x]", "{}", "[]", "[[]]", ".nan", "-.inf", "1e23", "~", "!!binary aGk=", "? x",
    "0o17", "1:30", "|\n  a\n  b", "'\n", "&a [*a]", "!!set {a}", "[nan]", "[0, 0]", "[true, false]",
)  # fmt: skip


class Dice(random.Random):
    """Random choices of one case; with `is_calm`, files stay as they are."""

    is_calm = False


def mutate_bytes(data: bytes, dice: Dice) -> bytes:
    """Return `data` cut, flipped, or with pieces added, removed or replaced by odd numbers."""
    if dice.is_calm:
        return data
    if dice.random() < 0.1:
        return data[: dice.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 20))):
        reach = dice.choice((32, 200, len(changed)))
        at = dice.randrange(min(reach, len(changed)) or 1)
        kind = dice.randrange(6)
        if kind == 0:
            changed[at : at + 1] = bytes([dice.randrange(256)])
        elif kind == 1:
            changed[at : at + 1] = bytes([(changed[at] if changed else 0) ^ 1 << dice.randrange(8)])
        elif kind == 2:
            del changed[at : at + dice.choice((1, 4, 100))]
        elif kind == 3:
            changed[at:at] = changed[at : at + dice.choice((1, 4, 100))]
        else:
            size, order = dice.choice((2, 4)), dice.choice(("little", "big"))
            number = dice.choice(NUMBERS) & (1 << 8 * size) - 1
            changed[at : at + size] = number.to_bytes(size, order)  # type: ignore[arg-type]
    return bytes(changed)


def mutate_text(text: str, dice: Dice, words: tuple[str, ...] = WORDS) -> bytes:
    """Return `text` with odd words in its cells, lines moved, or another encoding."""
    if dice.is_calm:
        return text.encode()
    if dice.random() < 0.3:
        return mutate_bytes(text.encode(), dice)
    lines = text.splitlines() or [""]
    for _ in range(dice.choice((1, 1, 2, 5))):
        at = dice.randrange(len(lines))
        kind = dice.randrange(8)
        if kind < 5:
            cells = re.split(r"([,:])", lines[at], maxsplit=40)
            place = dice.randrange(0, len(cells), 2)
            cells[place] = dice.choice(words)
            lines[at] = "".join(cells)
        elif kind == 5:
            lines[at:at] = [dice.choice(lines)] * dice.choice((1, 1, 1000))
        elif kind == 6:
            lines[at] += dice.choice((",", ":", "\r", " ", ",,,,", ": ", "\0"))
        else:
            lines[at] = dice.choice(
                ("", "#", "%", "---", lines[at][::-1], "," * 1000, lines[at] * 50)
            )
    encoding = dice.choice(("utf-8",) * 9 + ("utf-16", "utf-8-sig", "latin-1"))
    return "\n".join(lines).encode(encoding, "replace")


def write_special(path: Path, dice: Dice) -> bool:
    """Now and then make `path` something that is no regular file, or one of other content."""
    if dice.is_calm or dice.random() > 0.08:
        return False
    kind = dice.randrange(9)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        os.chdir(path.parent)  # a socket's name is at most 107 bytes
        socket.socket(socket.AF_UNIX).bind(path.name)
    elif kind == 2:
        path.symlink_to(dice.choice(("/dev/zero", "/dev/null", "/dev/full", path.name, "missing")))
    elif kind == 3:
        path.mkdir()
    elif kind == 4:
        (path.parent / "pipe").symlink_to(path.name)
        os.mkfifo(path)
    else:
        other = (b"", b"\0" * 5000, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 24\nshowpage\n",
                 b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"PK\3\4" + b"\0" * 60)  # fmt: skip
        path.write_bytes(dice.choice(other))
    return True


# -- values ---------------------------------------------------------------------------------


def odd_plain(dice: Dice) -> Any:
    """Return a plain value that few fields can have."""
    numbers: tuple[Any, ...] = (
        None, True, False, 0, -1, 1, 2, 3, 255, 256, 65536, 2**31, 2**53, 2**63, 2**70, -(2**63), 0.5,
        1.5, -0.5, 50.0, 1e-30, 1e23, 1e308, math.nan, math.inf, -math.inf,
    )  # fmt: skip
    lists: tuple[Any, ...] = (
        [], [[]], [0], [1, 1], ["a"], [math.nan], [-1, 300], [[1, 2, 3]], [0] * 100_000, {}, {"a": 1},
        {"values": [0]}, [1, 1, "--checkpoints", "x"], [0, 2**40], [0.5, 0.5], [None, None],
    )  # fmt: skip
    return dice.choice((*numbers, *numbers, *lists, *WORDS))


def odd_value(dice: Dice) -> Any:
    """Return a value that few fields of a checkpoint can have."""
    made: tuple[Callable[[], Any], ...] = (
        lambda: torch.tensor(math.nan), lambda: torch.tensor([1.0, 2.0]), lambda: torch.empty(0),
        lambda: torch.zeros(1).expand(10**6, 10**6), lambda: torch.tensor(True), lambda: (1, 2), _nested,
        lambda: b"bytes", lambda: {1: 2}, lambda: 1j, _shared, lambda: torch.zeros(2, 2).to_sparse(),
        lambda: {0, 255}, lambda: "\udc80",
    )  # fmt: skip
    return dice.choice(made)() if dice.random() < 0.3 else odd_plain(dice)


def _nested() -> list[Any]:
    inner: list[Any] = []
    for _ in range(150):
        inner = [inner]
    return inner


def _shared() -> list[Any]:
    """Return a list whose text would have 2^28 numbers."""
    inner: list[Any] = [1, 2]
    for _ in range(27):
        inner = [inner, inner]
    return inner


def mutate_tensor(tensor: Tensor, dice: Dice) -> Any:
    """Return the tensor with other values, of another type, or of an odd shape."""
    if tensor.layout != torch.strided or tensor.numel() > 10**6:  # mutated before
        return odd_value(dice)
    spoilt = tensor.clone(memory_format=torch.contiguous_format)
    if spoilt.numel():
        numbers = [math.nan, math.inf, -1.0, 6e4] if spoilt.is_floating_point() else [-1, 7, 100]
        spoilt.view(-1)[dice.randrange(spoilt.numel())] = dice.choice(numbers)
    made: tuple[Callable[[], Any], ...] = (
        lambda: spoilt, lambda: spoilt, lambda: spoilt, lambda: tensor * -1, lambda: tensor.double(),
        lambda: tensor.to(torch.complex64), lambda: tensor.to(torch.int8), lambda: tensor.half(),
        lambda: tensor.reshape(-1), lambda: tensor[None], lambda: tensor.reshape(-1)[:0], lambda: torch.empty(0),
        lambda: torch.zeros(()).expand(tensor.shape), lambda: tensor.to_sparse(),
        lambda: torch.zeros(1).expand(2**20, 2**20), lambda: torch.zeros(()).expand(2**14, *tensor.shape[1:]),
        lambda: tensor.new_zeros(1).expand(2**16, 3, 3, 3), lambda: odd_value(dice), lambda: tensor * 1e30,
    )  # fmt: skip
    return dice.choice(made)()


def mutate_values(content: Any, dice: Dice, odd: Callable[[Dice], Any] = odd_value) -> Any:
    """Return nested values of which one to three have changed, gone, or come from elsewhere."""
    if dice.is_calm:
        return content
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        level, key = content, dice.choice(list(content))
        while isinstance(level[key], (dict, list)) and level[key] and dice.random() < 0.75:
            level = level[key]
            key = (
                dice.choice(list(level)) if isinstance(level, dict) else dice.randrange(len(level))
            )
        value = level[key]
        if dice.random() < 0.1:
            del level[key]
        elif isinstance(value, Tensor) and dice.random() < 0.9:
            level[key] = mutate_tensor(value, dice)
        elif isinstance(value, (int, float)) and dice.random() < 0.3:
            level[key] = dice.choice((-value, value * 10, value + 1, float(value), value / 3))
        elif dice.random() < 0.05 and isinstance(level, dict):
            level[dice.choice(("x", 7, "module.a", None))] = odd(dice)
        else:
            level[key] = odd(dice)
        if not content:
            return content
    return content


def mutate_archive(data: bytes, dice: Dice) -> bytes:
    """Return a checkpoint file with changed bytes: in a record whose checksum is right, or anywhere."""
    if dice.is_calm or dice.random() < 0.4 or not zipfile.is_zipfile(io.BytesIO(data)):
        return mutate_bytes(data, dice)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        names = old.namelist()
        chosen = dice.choice([*[name for name in names if name.endswith(".pkl")] * 4, *names])
        for name in names:
            record = old.read(name)
            new.writestr(name, mutate_bytes(record, dice) if name == chosen and record else record)
    return out.getvalue()
