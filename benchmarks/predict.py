"""The cost of prediction over the network itself, in time and in memory.

    python -m benchmarks.predict [one] [folder] [large]

Random weights, drawn images, this machine's CPU. Times are medians of runs that take turns.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image

from benchmarks.images import draw
from benchmarks.timing import machine, new_parser, print_table, take_turns
from tests.reading import read_image
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.commands import predict
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.world import World
from unet_ddp.errors import from_plain
from unet_ddp.network.architecture import Architecture, build_network
from unet_ddp.prediction.config import parse_predict
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.threads import in_threads, one_core_each

PREDICT = str(Path(__file__).parent.parent / "predict.py")
WIDTH, HEIGHT, IMAGES = 1918, 1280, 200  # Carvana's

Row = tuple[str, str, str, str]


def main(argv: list[str] | None = None) -> None:
    """Print one table."""
    parts = {"one": one_image, "folder": many_images, "large": large_images}
    parser = new_parser(__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(parts)} (default: all)")
    chosen = parser.parse_args(argv).parts
    if not parts.keys() >= {*chosen}:
        parser.error(f"parts are {', '.join(parts)}")

    def rows() -> Iterator[Row]:
        for name in chosen or parts:
            with tempfile.TemporaryDirectory() as folder:
                yield from parts[name](Path(folder))

    print(machine())
    print_table(("what", "took", "over", "ratio"), rows())


def write_model(
    path: Path, *, width: int, scale: float, values: tuple[int, int] = (0, 255)
) -> None:
    """Write an untrained network, whose two classes both occur."""
    torch.manual_seed(0)
    architecture = Architecture("unet", 3, 2, None, width)
    checkpoint.save(
        path,
        {
            "model": build_network(architecture).state_dict(),
            "architecture": architecture.to_dict(),
            "labels": Labels(values).to_dict(),
            "preprocessing": Preprocessing.for_images(3, 255, scale=scale).to_dict(),
        },
    )


def bare_network(model: Path, image: Path) -> Callable[[], object]:
    """Return a forward pass of the network as it was trained, on the image in memory."""
    content = checkpoint.load(model)
    network = build_network(from_plain(Architecture, content["architecture"])).eval()
    network.load_state_dict(content["model"])
    pixels = Preprocessing.from_dict(content["preprocessing"])
    wanted = Predictor.from_checkpoint(model).format
    batch = torch.from_numpy(np.array(read_image(image, wanted, scale=pixels.scale)))[None]

    def forward() -> object:
        with torch.inference_mode():
            return network(pixels(batch))

    forward()
    return forward


def one_image(folder: Path) -> Iterator[Row]:
    """Run `predict.py one.jpg` as a process, over importing torch and the bare forward pass."""
    image, model = folder / "one.jpg", folder / "best.pt"
    Image.fromarray(draw(HEIGHT, WIDTH)).save(image, quality=90)
    for scale in (0.125, 0.5):
        write_model(model, width=32, scale=scale)
        took = take_turns(
            {
                "whole": lambda: run(PREDICT, str(image), "-m", str(model), "--overwrite"),
                "import": lambda: run("-c", "import torch"),
                "forward": bare_network(model, image),
            },
            7,
            warm_up=False,
        )
        whole, importing, forward = (turns.median for turns in took.values())
        yield (
            f"predict.py one.jpg, width 32, scale {scale}",
            f"{whole:.2f} s",
            f"import torch {importing:.2f} s, forward {forward:.2f} s",
            f"{whole / (importing + forward):.2f}",
        )


def run(*argv: str) -> None:
    """Run Python on `argv` and wait for it."""
    subprocess.run([sys.executable, *argv], check=True, stdout=subprocess.DEVNULL)


def many_images(folder: Path) -> Iterator[Row]:
    """Predict a folder of photographs, over the bare forward passes of as many."""
    photos, model = folder / "photos", folder / "best.pt"
    photos.mkdir()
    for n in range(IMAGES):
        Image.fromarray(draw(HEIGHT, WIDTH, n % 8)).save(photos / f"{n:03}.jpg", quality=90)
    write_model(model, width=16, scale=0.125, values=(0, 1))  # Carvana's
    forward = bare_network(model, photos / "000.jpg")
    argv = [str(photos), "-m", str(model), "-o", str(folder / "masks"), "--overwrite"]
    config = parse_predict(argv)

    def whole() -> None:
        with redirect_stdout(io.StringIO()):
            assert predict.predict(config, World()) == 0

    def on_each_core() -> None:
        cores = os.cpu_count() or 1
        with one_core_each(cores):
            list(in_threads(lambda _: forward(), range(IMAGES), cores))

    works = {
        "whole": whole,
        "with torch's threads": lambda: [forward() for _ in range(IMAGES)],
        "one on each core": on_each_core,
    }
    took = take_turns(works, 3, warm_up=False)
    seconds, cpu = took["whole"].median, median(took["whole"].cpu)
    for how in ("with torch's threads", "one on each core"):
        bare, bare_cpu = took[how].median, median(took[how].cpu)
        yield (
            f"{IMAGES} photographs, width 16, scale 0.125",
            f"{IMAGES / seconds:.1f} images/s, {cpu / IMAGES * 1000:.1f} ms of a core each",
            f"forward passes {how} {IMAGES / bare:.1f} images/s, {bare_cpu / IMAGES * 1000:.1f} ms",
            f"{bare / seconds:.2f}; of cores' time {bare_cpu / cpu:.2f}",
        )


def large_images(folder: Path) -> Iterator[Row]:
    """Measure the most memory that a process takes for an image of 12000 x 12000."""
    import tifffile

    pixels = np.concatenate([draw(1000, 12000)] * 12)
    tifffile.imwrite(folder / "plain.tif", pixels, photometric="rgb")
    tiles = {"tile": (512, 512), "compression": "zlib"}
    tifffile.imwrite(folder / "tiled.tif", pixels, photometric="rgb", **tiles)
    Image.fromarray(pixels).save(folder / "plain.png", compress_level=1)
    del pixels
    for name, width, scale in (
        ("plain.tif", 2, 1.0),
        ("tiled.tif", 16, 0.25),
        ("plain.png", 32, 1.0),
    ):
        write_model(folder / "best.pt", width=width, scale=scale)
        output = str(folder / f"mask{Path(name).suffix}")
        argv = [PREDICT, str(folder / name), "-m", str(folder / "best.pt"), "-o", output]
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *argv, "--tile", "1024", "--overwrite"], stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        took = f"{time.perf_counter() - began:.0f} s"
        what = f"{name}, 12000 x 12000, width {width}, scale {scale}"
        yield what, took, "", f"{usage.ru_maxrss * 1024 / 1e9:.2f} GB"


if __name__ == "__main__":
    main()
