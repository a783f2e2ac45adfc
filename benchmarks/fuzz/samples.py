"""The valid files that are mutated: a small data set, the run that trained on it, and models."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.fuzz.images import KINDS
from unet_ddp.__main__ import main as command
from unet_ddp.commands import train
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.network.architecture import Architecture, build_network

HEIGHT, WIDTH, PAIRS = 24, 32, 8
TRAIN = ["--width", "1", "--epochs", "2", "--batch-size", "2", "--workers", "0", "--device", "cpu"]


@dataclass(frozen=True)
class Samples:
    """The folder of the valid files."""

    home: Path

    @property
    def data_flags(self) -> list[str]:
        """The flags that name the data set."""
        return ["--images", str(self.home / "imgs"), "--masks", str(self.home / "masks")]

    @property
    def run(self) -> Path:
        """The folder of a run that has done one of two epochs."""
        return self.home / "run"

    @property
    def pack(self) -> Path:
        """The data set as a pack."""
        return self.home / "pack"

    @property
    def cache(self) -> Path:
        """The user's cache folder after that run."""
        return self.home / "cache"

    def image(self, kind: str, n: int) -> Path:
        """Return the n-th image of a format; `masks/N.png` is its mask."""
        return self.home / kind / f"{n}{KINDS[kind].ending}"

    def mask(self, n: int) -> Path:
        """Return the n-th mask."""
        return self.home / "masks" / f"{n}.png"

    def model(self, kind: str) -> Path:
        """Return a checkpoint for images of a format."""
        return self.home / f"{KINDS[kind].channels}-{KINDS[kind].dtype}.pt"


def make_samples(home: Path) -> Samples:
    """Write all valid files into the folder `home`."""
    samples = Samples(home)
    random = np.random.default_rng(0)
    for n in range(PAIRS):
        mask = np.zeros((HEIGHT, WIDTH), np.uint8)
        mask[n % 5 + 2 : n % 5 + 12, n + 1 : n + 14] = 255
        (home / "masks").mkdir(exist_ok=True)
        Image.fromarray(mask).save(samples.mask(n))
        for kind, (_, channels, dtype, encode) in KINDS.items():
            pixels = random.integers(0, 90, (HEIGHT, WIDTH, channels)) + 150 * (mask[..., None] > 0)
            pixels = pixels.astype(dtype) * (257 if dtype == "uint16" else 1)
            samples.image(kind, n).parent.mkdir(exist_ok=True)
            samples.image(kind, n).write_bytes(encode(pixels))
    (home / "imgs").symlink_to("png")
    for path in (*(home / "png").iterdir(), *(home / "masks").iterdir()):
        os.utime(path, (0, 10**9))  # the cache contains it
    _train(samples)
    _remove_chance(samples)
    content = torch.load(samples.run / "best.pt", weights_only=True)
    for kind in KINDS:
        torch.save(_for_images(content, kind), samples.model(kind))
    (home / "model.onnx").write_bytes(_export(content))
    return samples


def _train(samples: Samples) -> None:
    """Train in a process of its own: this one is forked later, and must have no threads."""
    argv = [*samples.data_flags, *TRAIN, "--checkpoints", str(samples.run), "--stop-after", "3"]
    process = os.fork()
    if process == 0:
        os.environ["XDG_CACHE_HOME"] = str(samples.cache)
        try:
            with (samples.home / "train.txt").open("w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                command(["pack", *samples.data_flags, "--output", str(samples.pack)])
                train.main([*argv, "--cache", "--ema", "0.9"])
        finally:
            os._exit(0)
    os.waitpid(process, 0)
    if not (samples.run / "best.pt").exists():
        raise RuntimeError((samples.home / "train.txt").read_text())


def _remove_chance(samples: Samples) -> None:
    """Remove times, and the order of threads, from the run's files: a case's seed must repeat it."""
    path = samples.run / "metrics.csv"
    names, row = path.read_text().splitlines()
    measured = ("seconds", "images_per_second", "data_wait")
    cells = zip(names.split(","), row.split(","), strict=True)
    row = ",".join("1.5" if name in measured else cell for name, cell in cells)
    path.write_text(f"{names}\n{row}\n")
    path = samples.run / "run.json"  # dates, a folder, versions
    record = json.loads(path.read_text())
    start = {name: "x" for name, value in record["starts"][0].items() if isinstance(value, str)}
    record |= {"settings": {}, "metrics": {}}
    record["starts"][0] |= {**start, "packages": {"numpy": "x"}, "end": {"state": "running"}}
    path.write_text(json.dumps(record, indent=2))
    for path in samples.cache.rglob("scan-*.json"):
        scan = json.loads(path.read_text().split("\n", 1)[1])
        if scan["headers"][0][2] != 3:  # the masks' came first
            scan["headers"].reverse()
            scan["entries"] = {key: [1 - n, *rest] for key, (n, *rest) in scan["entries"].items()}
        scan["entries"] = dict(sorted(scan["entries"].items()))
        text = json.dumps(scan)
        path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")


def _for_images(content: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a checkpoint's content with a network for images of a format."""
    _, channels, dtype, _ = KINDS[kind]
    architecture = Architecture("unet", channels, 2, width=1)
    pixels = Preprocessing.for_images(channels, 255.0 if dtype != "uint16" else 65535.0, scale=1.0)
    return copy.deepcopy(content) | {
        "architecture": architecture.to_dict(),
        "preprocessing": pixels.to_dict() | {"dtype": dtype},
        "model": build_network(architecture).state_dict(),
    }


def foreign(content: dict[str, Any], kind: int) -> dict[str, Any]:
    """Return the weights of a checkpoint as other programs save them."""
    state: dict[str, Any] = dict(content["model"])
    state = {f"module.{key}": value for key, value in state.items()} if kind % 2 else state
    if kind < 2:
        return {**state, "mask_values": [0, 255]}
    return {"epoch": 3, ("state_dict", "model")[kind % 2]: state, "mask_values": [0, 255]}


def _export(content: dict[str, Any]) -> bytes:
    """Return a file as `python -m unet_ddp export` writes it, with a network of one convolution."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(0).normal(0, 0.01, (2, 3, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["pixels"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["float"], ["images"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["images", "weight"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    pixels = helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["n", "h", "w", 3])
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2, "h", "w"])
        for name in ("logits", "probabilities")
    ]
    weights = [numpy_helper.from_array(weight, "weight")]
    graph = helper.make_graph(nodes, "unet", [pixels], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    facts = {name: content[name] for name in ("labels", "preprocessing", "threshold")}
    names = {"classes": ["0", "255"], "colours": [[0, 0, 0], [255, 255, 255]]}
    text = json.dumps({**facts, **names, "stride": 16, "bytes_per_pixel": 24})
    model.metadata_props.add(key="unet_ddp", value=text)
    onnx.checker.check_model(model)
    file = io.BytesIO()
    onnx.save(model, file)
    return file.getvalue()
