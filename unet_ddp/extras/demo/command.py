"""``python -m unet_ddp demo``: a local page to try a network on images."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any
from warnings import catch_warnings, simplefilter

import tyro
from PIL import Image

from unet_ddp.checkpoints.weights import find_model
from unet_ddp.cli import parse
from unet_ddp.data.drawing import class_colours
from unet_ddp.data.readers.resize import resize_nearest
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, check_installed, one_line, print_lines
from unet_ddp.extras.report.gallery import draw_layer, draw_photo, name_colours, to_uri
from unet_ddp.extras.report.page import open_template
from unet_ddp.files import ended_by_sigterm, temporary_folder
from unet_ddp.prediction.changed_code import ChangedCode
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.load import mark_masks
from unet_ddp.prediction.outputs.base import ImageFiles, open_outputs
from unet_ddp.prediction.paths import name_outputs
from unet_ddp.prediction.pipeline import Job, summarise, write_outputs
from unet_ddp.prediction.prediction import Prediction
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.settings import flag

_LONGEST = 1280  # pixels of a picture's longer side
Tried = tuple[ImageFiles, Prediction, Image.Image]  # of an image, and itself as a picture


@dataclass(frozen=True)
class PageConfig:
    """Serve a page, to this computer alone, to try a network on images."""

    model: Annotated[tuple[str, ...], tyro.conf.Positional, flag("[FILE ...]")] = ()
    """Checkpoint or exported network, or its address; several are averaged (default: as predict.py)."""
    network: Annotated[str | None, flag("MODULE:FUNCTION")] = None
    """The network of your own that the checkpoint was trained with: a checkpoint starts no code."""


def main(argv: Sequence[str]) -> int:
    """Serve the page until Ctrl-C, and return the exit status."""
    config = parse(PageConfig, argv, prog="python -m unet_ddp demo")
    check_installed("gradio", "demo", "demo")
    with (
        ended_by_sigterm(),
        TemporaryDirectory(prefix="unet_ddp-", dir=temporary_folder()) as folder,
    ):
        os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_TEMP_DIR": folder}
        import gradio  # reads the environment

        models = [find_model(name, typed="demo {}") for name in config.model or [None]]
        with catch_warnings():
            simplefilter("ignore", ChangedCode)  # a note says it
            predictor = Predictor.from_checkpoint(*models, network=config.network)
        page = build_page(gradio, predictor)
        _, url, _ = page.launch(
            server_name="127.0.0.1", share=False, quiet=True, prevent_thread_lock=True,
            ssr_mode=False, footer_links=[], run_history=False,
            theme=gradio.themes.Default(font=["system-ui"], font_mono=["monospace"]),
        )  # fmt: skip
        print_lines(*predictor.notes, f"{', '.join(map(str, models))}: on {url} until Ctrl-C")
        page.block_thread()
    return 0


def try_image(predictor: Predictor, path: Path, progress: Callable[..., object]) -> Tried:
    """Return an image's prediction, or raise a UserError; gradio's `progress` hears of windows."""
    config, wanted = PredictConfig((), overwrite=True), predictor.format
    outputs = open_outputs(config, predictor.labels, wanted)
    resolution = wanted.ground_resolution
    (files,) = name_outputs([path], config, predictor.labels, outputs, ground_resolution=resolution)
    image = predictor.open(files.source)
    is_whole, has_threshold = predictor.fits(image.input_size), predictor.labels.is_binary
    done, total = count(), 1
    if not is_whole:
        total = math.prod(len(predictor.tiling.along(side)) for side in image.input_size)
    predictor.on_window = lambda: progress((next(done), total), desc=path.name, unit="windows")
    if has_threshold and not is_whole:
        prediction = predictor.in_windows(image)
    else:
        prediction = predictor.predict(image)
    if has_threshold:  # another one does not run the network
        prediction.scores = list(prediction.scores)
    return files, prediction, draw_photo(path, wanted, _LONGEST)


def show(
    gradio: Any, predictor: Predictor, parts: Any, tried: list[Tried], chosen: int, threshold: float
) -> list[Any]:
    """Write a mask at a threshold; return HTML about the image, and the button for the mask."""
    if not tried:
        return ["", gradio.DownloadButton(interactive=False)]
    files, prediction, photo = tried[chosen]
    labels = predictor.labels
    if labels.is_binary and threshold != round(prediction.threshold or 0.5, 3):
        prediction = replace(prediction, threshold=threshold)
    place = files.image.parent / str(threshold)  # browsers keep a file by its address
    mark = mark_masks(predictor, prediction.threshold)
    files = replace(files, mask=place / files.mask.name, mark=mark)
    try:
        config = PredictConfig(())
        outputs = open_outputs(config, labels, predictor.format)
        write_outputs(Job(config, World(), [], predictor, outputs), files, prediction)
    except UserError as error:
        raise gradio.Error(one_line(error), print_exception=False) from None
    mask = resize_nearest(prediction.mask, (photo.height, photo.width))
    layer = draw_layer(labels.layer(mask), class_colours(labels))
    line = one_line(summarise(prediction))
    html = parts.shown(to_uri(photo, "JPEG", quality=85), layer, photo.size, line)
    return [html, gradio.DownloadButton(value=str(files.mask), interactive=True)]


def build_page(gradio: Any, predictor: Predictor) -> Any:
    """Return the page, of gradio's components."""
    labels = predictor.labels
    parts = open_template("overlay.html.jinja").module
    watch = gradio.Progress()
    update = partial(show, gradio, predictor, parts)

    def predict(paths: list[str] | None, threshold: float, progress: Any = watch) -> list[Any]:
        tried, errors = [], []
        for path in map(Path, paths or []):
            try:
                tried.append(try_image(predictor, path, progress))
            except UserError as error:
                message = str(error).replace(f"{path.parent}{os.sep}", "")
                errors.append(one_line(f"error: {message}"))
        names = [(files.image.name, index) for index, (files, *_) in enumerate(tried)]
        choice = gradio.Dropdown(names, value=0, visible=len(names) > 1)
        return [tried, parts.errors(errors), choice, *update(tried, 0, threshold)]

    with gradio.Blocks(title="unet_ddp") as page, gradio.Row():
        tried = gradio.State([])
        with gradio.Column(min_width=300):
            files = gradio.File(label="Images", file_count="multiple", height=160)
            chosen = gradio.Dropdown(label="Image", visible=False, interactive=True)
            threshold = gradio.Slider(
                0.001, 0.999, round(predictor.threshold or 0.5, 3), step=0.001, interactive=True,
                label=f"Threshold of {labels.class_names[1]}", visible=labels.is_binary,
            )  # fmt: skip
            gradio.HTML(parts.panel(labels, name_colours(labels)), head=parts.scripts(labels))
            download = gradio.DownloadButton("Download the mask", interactive=False)
        with gradio.Column(scale=3):
            picture, errors = gradio.HTML(), gradio.HTML()
        given, drawn = [tried, chosen, threshold], [picture, download]
        listed = [tried, errors, chosen, *drawn]
        files.change(predict, [files, threshold], listed, show_progress_on=picture)
        gradio.on([chosen.input, threshold.input], update, given, drawn, trigger_mode="always_last")
    return page
