"""Speed and Dice of networks on a CPU: torch, torch.compile, onnxruntime and OpenVINO.

    python -m benchmarks.runtimes checkpoints/one checkpoints/other [--sizes 512x512] [--turns 3]

Each network runs in float32, bfloat16 where the CPU has it, and int8. The libraries take turns. Dice is that of the
validation images of the checkpoint's run, at their own size; pixels are random.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import Turns, machine, new_parser, print_table, take_turns
from unet_ddp.checkpoints.weights import SavedModel, find_model, read_model
from unet_ddp.distributed.device import predicts_in_bfloat16
from unet_ddp.extras.onnx.backend import OnnxBackend, describe_network
from unet_ddp.extras.onnx.export_data import find_scored, read_calibration
from unet_ddp.extras.onnx.gate import judge, with_network
from unet_ddp.extras.onnx.quantisation import quantise
from unet_ddp.extras.onnx.runtimes import list_installed, open_openvino
from unet_ddp.extras.onnx.tracing import Exported, noise, trace_network, write_graph
from unet_ddp.prediction.backends import LoadedModel, TorchBackend, build_model

CPU = torch.device("cpu")
Row = tuple[str, ...]


def main(argv: list[str] | None = None) -> None:
    """Print one table."""
    parser = new_parser(__doc__)
    parser.add_argument("checkpoints", nargs="+", help="checkpoints, or folders of runs")
    parser.add_argument("--sizes", nargs="+", default=["512x512", "1918x1280"], help="of tiles")
    parser.add_argument("--turns", type=int, default=3, help="after one to warm up (default: 3)")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    chosen = parser.parse_args(argv)
    sizes = [tuple(map(int, size.split("x"))) for size in chosen.sizes]

    def rows() -> Iterator[Row]:
        for name in chosen.checkpoints:
            with tempfile.TemporaryDirectory() as folder:
                yield from measure(find_model(name), sizes, chosen, Path(folder))

    print(machine())
    columns = (f"{size}: images/s" for size in chosen.sizes)
    print_table(("network", "run by", *columns, "Dice", "change"), rows())


def measure(source: Path, sizes: list[Any], chosen: Any, folder: Path) -> Iterator[Row]:
    """Yield the rows of one checkpoint."""
    saved = read_model(source)
    model = build_model(saved, source, CPU)
    backends = open_backends(saved, source, model, folder, compiles=not chosen.no_compile)
    took: list[dict[str, Turns]] = []
    for width, height in sizes:
        pixels = noise(model.preprocessing, (1, height, width))
        works: dict[str, Callable[[], object]] = {
            name: partial(backend, pixels) for name, backend in backends.items()
        }
        took.append(take_turns(works, chosen.turns))
    scored = find_scored(None, None, saved, source, model)
    networks = {
        name: with_network(replace(model, backend=backend)) for name, backend in backends.items()
    }
    verdicts = judge(networks, with_network(model), scored.pairs)
    for name, verdict in verdicts.items():
        speeds = (
            f"{1 / turns[name].median:.2f} ({turns['torch float32'].median / turns[name].median:.2f})"
            for turns in took
        )
        dice = verdict.dice[1]
        yield str(saved.architecture), name, *speeds, f"{dice:.4f}", f"{-verdict.fall:+.4f}"


def open_backends(
    saved: SavedModel, source: Path, model: LoadedModel, folder: Path, *, compiles: bool
) -> dict[str, Any]:
    """Return the network in each library and precision."""
    pixels, network = model.preprocessing, build_model(saved, source, CPU, fold=False).backend
    assert isinstance(network, TorchBackend)
    has_half = predicts_in_bfloat16("auto")
    backends: dict[str, Any] = {"torch float32": TorchBackend(network.network, pixels, CPU)}
    if has_half:
        half = TorchBackend(network.network, pixels, CPU, dtype=torch.bfloat16)
        backends["torch bfloat16"] = half
    if compiles:
        compiled = TorchBackend(network.network, pixels, CPU)
        compiled.network.compile(dynamic=False)
        backends["torch.compile float32"] = compiled
    folded = build_model(saved, source, CPU).backend
    assert isinstance(folded, TorchBackend)
    graph = trace_network(
        Exported(folded.network.to(memory_format=torch.contiguous_format), pixels), pixels
    )
    integers = quantise(graph, read_calibration(None, saved, source, model))
    for precision, each in (("float32", graph), ("int8", integers)):
        path = folder / f"{precision}.onnx"
        write_graph(each, describe_network(model), path)
        for runtime in list_installed():
            backends[f"{runtime} {precision}"] = OnnxBackend(path, CPU, runtime)
            if (runtime, precision, has_half) == ("openvino", "float32", True):
                backends["openvino bfloat16"] = OnnxBackend(path, CPU)
                backends["openvino bfloat16"].run = open_openvino(path, "bf16")
    return backends


if __name__ == "__main__":
    main()
