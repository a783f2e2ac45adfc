"""The files that stand for others: the index of a pack, and the pointer of a run in storage."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.fuzz.child import Case
from benchmarks.fuzz.mutations import (
    Dice,
    mutate_bytes,
    mutate_text,
    mutate_values,
    odd_plain,
    write_special,
)
from benchmarks.fuzz.samples import TRAIN, Samples
from unet_ddp.__main__ import main as command
from unet_ddp.commands import predict, train
from unet_ddp.extras.cloud import clients, mirror, pointer, put
from unet_ddp.extras.cloud.pointer import Saved
from unet_ddp.extras.packs.pack_files import INDEX

_SIZE = 64  # digits of a SHA-256


def build_pack(samples: Samples, folder: Path, dice: Dice) -> Case:
    """Give a pack whose index is mutated, with the right digest mostly, to doctor and train."""
    valid = (samples.pack / INDEX).read_bytes()
    (folder / "pack").mkdir()
    for path in samples.pack.glob("*.tar"):
        (folder / "pack" / path.name).symlink_to(path)
    head, columns = valid[_SIZE + 1 :].split(b"\n", 1)

    def mutated() -> bytes:
        if dice.random() < 0.15:
            return mutate_bytes(valid, dice)
        parts = [head, b"\n", columns]
        if dice.random() < 0.3:
            parts[2] = mutate_bytes(columns, dice)
        else:
            parts[0] = json.dumps(mutate_values(json.loads(head), dice, odd_plain)).encode()
        content = b"".join(parts)
        return hashlib.sha256(content).hexdigest().encode() + b"\n" + content

    if not write_special(folder / "pack" / INDEX, dice):
        (folder / "pack" / INDEX).write_bytes(mutated())
    if dice.random() < 0.5:
        return Case(command, ["doctor", "--images", "pack", "--batch-size", "2"])
    one_step = ["--stop-after", "1", "--timeout", "5", "--checkpoints", "new"]
    return Case(train.main, ["--images", "pack", *TRAIN, *one_step])


def build_pointer(samples: Samples, folder: Path, dice: Dice) -> Case:
    """Give the mutated pointer of a run in storage, a folder here, to predict and to --resume."""
    bucket = folder / "bucket"
    shutil.copytree(samples.run, bucket / "run", ignore=shutil.ignore_patterns("last*.pt"))
    (bucket / "run" / "last").mkdir()
    saves = []
    for generation, name in ((2, "last.pt"), (1, "last.1.pt")):
        content = (samples.run / name).read_bytes()
        place = f"{generation:06d}-1a2b3c4d.pt"
        (bucket / "run" / "last" / place).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        saves.append(asdict(Saved(place, generation, digest, len(content))))
    best = (bucket / "run" / "best.pt").read_bytes()
    place = "000002-5e6f7a8b.best.pt"
    (bucket / "run" / "last" / place).write_bytes(best)
    named = asdict(Saved(place, 2, hashlib.sha256(best).hexdigest(), len(best)))
    files = [path.name for path in (bucket / "run").iterdir() if path.is_file()]
    about = {"token": "1a2b3c4d", "launch": "", "saves": saves, "best": named, "files": files}
    text = json.dumps(about)
    if dice.random() < 0.3:
        changed = mutate_text(text, dice)
    else:
        changed = json.dumps(mutate_values(json.loads(text), dice, odd_plain)).encode()
    (bucket / "run" / "last.json").write_bytes(changed)
    model = f"s3://bucket/run/{dice.choice(('last', 'best'))}.pt"
    if dice.random() < 0.5:
        image = str(samples.image("png", 0))
        argv = [image, "--model", model, "-o", "a.png", "--device", "cpu"]
        return Case(lambda argv: predict.main(_in_folder(bucket, argv)), argv)
    flags = ["--resume", "--checkpoints", "s3://bucket/run", "--workers", "0", "--device", "cpu"]
    flags += ["--timeout", "5", "--stop-after", "4"]
    return Case(lambda argv: train.main(_in_folder(bucket, argv)), flags)


def _in_folder(bucket: Path, argv: list[str]) -> list[str]:
    """Make a folder the storage of this process, which knows no versions; return `argv`."""
    from obstore.store import LocalStore

    def connect(*place: Any) -> Any:
        return LocalStore(bucket)

    def put_any(path: Any, content: Any, *, replaces: Any = True) -> Any:
        return put(path, content)

    vars(clients)["connect"] = connect
    for module in (pointer, mirror):
        vars(module)["put"] = put_any
    return argv
