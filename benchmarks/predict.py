"""What prediction costs beside the network itself, in time and in memory.

    python -m benchmarks.predict [one] [folder] [large]

Random weights, drawn images, this machine's CPU. Times are medians of runs that take turns, so
that a noisy machine disturbs both sides of a ratio alike.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

import predict
from benchmarks.timing import draw
from unet_ddp.data.formats.read import read_image
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.network.architecture import Architecture, build_network
from unet_ddp.prediction.parallel import in_threads, one_core_each
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.runs import checkpoint

PREDICT = str(Path(__file__).parent.parent / "predict.py")
WIDTH, HEIGHT, IMAGES = 1918, 1280, 200  # Carvana's


def main(chosen: list[str]) -> None:
    """One table."""
    parts = {"one": one_image, "folder": many_images, "large": large_images}
    print(f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print("| what | took | beside it | ratio |\n|---|---|---|---|")
    for name in chosen or parts:
        with tempfile.TemporaryDirectory() as folder:
            parts[name](Path(folder))


def write_model(
    path: Path, *, width: int, scale: float, values: tuple[int, int] = (0, 255)
) -> None:
    """An untrained network, whose two classes both occur."""
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


class Took(NamedTuple):
    """Medians of one work's turns."""

    seconds: float
    cpu: float
    """Seconds of all cores, which other programs disturb less."""


def measure(works: list[Callable[[], object]], times: int) -> list[Took]:
    """What each takes."""
    took: list[list[Took]] = [[] for _ in works]
    for _ in range(times):
        for work, turns in zip(works, took, strict=True):
            began, cpu = time.perf_counter(), time.process_time()
            work()
            turns.append(Took(time.perf_counter() - began, time.process_time() - cpu))
    return [Took(*map(statistics.median, zip(*turns, strict=True))) for turns in took]


def bare_network(model: Path, image: Path) -> Callable[[], object]:
    """The network as it was trained, on the image in memory."""
    content = checkpoint.load(model)
    network = build_network(Architecture.from_dict(content["architecture"])).eval()
    network.load_state_dict(content["model"])
    pixels = Preprocessing.from_dict(content["preprocessing"])
    wanted = Predictor.from_checkpoint(model).format
    batch = torch.from_numpy(np.array(read_image(image, wanted, scale=pixels.scale)))[None]

    def forward() -> object:
        with torch.inference_mode():
            return network(pixels(batch))

    forward()
    return forward


def one_image(folder: Path) -> None:
    """`predict.py one.jpg` as a process, beside importing torch and the bare forward pass."""
    image, model = folder / "one.jpg", folder / "best.pt"
    Image.fromarray(draw(HEIGHT, WIDTH)).save(image, quality=90)
    words = [PREDICT, str(image), "-m", str(model), "--overwrite"]
    for scale in (0.125, 0.5):
        write_model(model, width=32, scale=scale)
        works = [
            lambda: run(words),
            lambda: run(["-c", "import torch"]),
            bare_network(model, image),
        ]
        whole, importing, forward = (took.seconds for took in measure(works, 7))
        print(
            f"| predict.py one.jpg, width 32, scale {scale} | {whole:.2f} s | import torch "
            f"{importing:.2f} s, forward {forward:.2f} s | {whole / (importing + forward):.2f} |"
        )


def run(words: list[str]) -> None:
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)


def many_images(folder: Path) -> None:
    """A folder of photographs, beside the bare forward passes of as many."""
    photos, model = folder / "photos", folder / "best.pt"
    photos.mkdir()
    for number in range(IMAGES):
        Image.fromarray(draw(HEIGHT, WIDTH, number % 8)).save(
            photos / f"{number:03}.jpg", quality=90
        )
    write_model(model, width=16, scale=0.125, values=(0, 1))  # Carvana's
    forward = bare_network(model, photos / "000.jpg")
    words = [str(photos), "-m", str(model), "-o", str(folder / "masks"), "--overwrite"]

    def whole() -> None:
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123
            before, sys.stdout = sys.stdout, nowhere
            try:
                predict.main(words)
            except SystemExit as end:
                assert end.code == 0
            finally:
                sys.stdout = before

    def on_each_core() -> None:
        cores = os.cpu_count() or 1
        with one_core_each(cores):
            list(in_threads(lambda _: forward(), range(IMAGES), cores))

    works = [whole, lambda: [forward() for _ in range(IMAGES)], on_each_core]
    took, *others = measure(works, 3)
    for how, bare in zip(("with torch's threads", "one on each core"), others, strict=True):
        print(
            f"| {IMAGES} photographs, width 16, scale 0.125 | {IMAGES / took.seconds:.1f} images/s, "
            f"{took.cpu / IMAGES * 1000:.1f} ms of a core each | forward passes {how} "
            f"{IMAGES / bare.seconds:.1f} images/s, {bare.cpu / IMAGES * 1000:.1f} ms | "
            f"{bare.seconds / took.seconds:.2f}; of cores' time {bare.cpu / took.cpu:.2f} |"
        )


def large_images(folder: Path) -> None:
    """The most memory that a process takes for an image of 12000 x 12000."""
    import tifffile

    band = draw(1000, 12000)
    pixels = np.concatenate([band] * 12)
    tifffile.imwrite(folder / "plain.tif", pixels, photometric="rgb")
    tifffile.imwrite(
        folder / "tiled.tif", pixels, photometric="rgb", tile=(512, 512), compression="zlib"
    )
    Image.fromarray(pixels).save(folder / "plain.png", compress_level=1)
    del pixels
    for name, width, scale in (
        ("plain.tif", 2, 1.0),
        ("tiled.tif", 16, 0.25),
        ("plain.png", 32, 1.0),
    ):
        write_model(folder / "best.pt", width=width, scale=scale)
        output = str(folder / f"mask{Path(name).suffix}")
        words = [PREDICT, str(folder / name), "-m", str(folder / "best.pt"), "-o", output]
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *words, "--tile", "1024", "--overwrite"], stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        most = usage.ru_maxrss * 1024 / 1e9
        took = time.perf_counter() - began
        print(
            f"| {name}, 12000 x 12000, width {width}, scale {scale} | {took:.0f} s | | {most:.2f} GB |"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
