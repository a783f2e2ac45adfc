"""Predict the masks of images with a trained network.

python predict.py image.jpg [more.jpg folder/ ...]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from unet_ddp.checkpoint import find_model
from unet_ddp.config import PredictConfig, parse
from unet_ddp.data.reading import SUFFIXES, read_image
from unet_ddp.errors import UserError, one_line
from unet_ddp.inference import Prediction, Predictor


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1 where some images of several could not be predicted; 2 after a mistake."""
    try:
        words = sys.argv[1:] if argv is None else argv
        return predict(parse(PredictConfig, words, prog="predict.py"))
    except UserError as mistake:
        print(f"error: {one_line(mistake)}", file=sys.stderr)
        return 2


def predict(config: PredictConfig) -> int:
    """Load, then read, predict and write one image after the other."""
    images = find_images(config.inputs)
    outputs = name_outputs(images, config)
    path = find_model(config.model)
    predictor = Predictor.from_checkpoint(path, device=config.device, scale=config.scale)
    print(f"model: {path}")
    for note in predictor.notes:
        print(f"  {note}")
    failed = 0
    for image, output in tqdm(
        list(zip(images, outputs, strict=True)),
        unit="image",
        disable=None if len(images) > 1 else True,
    ):
        try:
            prediction = predictor(image)
            write(prediction, image, output, config, predictor)
        except UserError as mistake:
            if len(images) == 1:
                raise
            failed += 1
            tqdm.write(f"error: {one_line(mistake)}", file=sys.stderr)
            continue
        tqdm.write(f"{image} -> {output}: {describe(prediction)}")
    if failed:
        print(f"{failed} of {len(images)} images could not be predicted", file=sys.stderr)
    return 1 if failed else 0


def find_images(inputs: Sequence[str]) -> list[Path]:
    """The images among files and folders, each once.

    Masks and overlays that an earlier prediction left beside their images are passed over.

    Raises:
        UserError: a path that is not there, or a folder without images.
    """
    if not inputs:
        raise UserError("no inputs: give images, or folders of images")
    found: dict[Path, None] = {}
    for name in inputs:
        path = Path(name)
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        if not path.is_dir():
            found[path] = None
            continue
        inside = sorted(p for p in path.iterdir() if is_image(p))
        stems = {p.stem for p in inside}
        kept = [p for p in inside if not is_made_from(p.stem, stems)]
        if not kept:
            raise UserError(f"{path}: no images in it ({', '.join(sorted(SUFFIXES))})")
        found.update(dict.fromkeys(kept))
    return list(found)


def is_image(path: Path) -> bool:
    """By its name; hidden files are none."""
    return path.is_file() and path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def is_made_from(stem: str, stems: set[str]) -> bool:
    """Whether a file is the mask or overlay of another image there."""
    return any(
        stem.endswith(end) and stem.removesuffix(end) in stems for end in ("_mask", "_overlay")
    )


def name_outputs(images: list[Path], config: PredictConfig) -> list[Path]:
    """The mask file of each image.

    Raises:
        UserError: two images would share one, or one is there already.
    """
    given = Path(config.output) if config.output else None
    if given is not None and len(images) == 1 and given.suffix and not given.is_dir():
        if given.suffix.lower() not in (".png", ".tif", ".tiff"):
            raise UserError(f"--output {given}: masks keep their values in .png and .tif")
        outputs = [given]
    else:
        outputs = [(given or image.parent) / f"{image.stem}_mask.png" for image in images]
    for number, (image, output) in enumerate(zip(images, outputs, strict=True)):
        if output in outputs[:number]:
            raise UserError(
                f"{image}: its mask {output} would be another image's too; predict apart"
            )
        if output.exists() and any(output.samefile(other) for other in images):
            raise UserError(f"--output {output}: is one of the images; name another file")
        written = [output, name_overlay(output)] if config.overlay else [output]
        for path in written:
            if path.exists() and not config.overwrite:
                raise UserError(
                    f"{path}: is there already; give --overwrite, or --output elsewhere"
                )
    return outputs


def name_overlay(output: Path) -> Path:
    """Where the overlay goes, beside the mask."""
    return output.with_name(f"{output.stem.removesuffix('_mask')}_overlay.png")


def write(
    prediction: Prediction, image: Path, output: Path, config: PredictConfig, predictor: Predictor
) -> None:
    """The mask, and the overlay where it is asked for."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        prediction.to_image().save(output)
        if config.overlay:
            save_overlay(prediction, image, output, predictor)
    except OSError as error:
        raise UserError(f"{output}: can't be written: {error.strerror or error}") from None


def save_overlay(prediction: Prediction, image: Path, output: Path, predictor: Predictor) -> None:
    """`image` with its mask over it, beside the mask."""
    from unet_ddp.drawing import draw_mask, save_picture

    drawn = draw_mask(read_image(image, predictor.format), prediction.ids, prediction.labels)
    save_picture(drawn, name_overlay(output))


def describe(prediction: Prediction) -> str:
    """The share of each class, and a warning where there is only one."""
    labels = prediction.labels
    shares = [
        (name, share)
        for name, share in zip(labels.class_names, prediction.shares, strict=True)
        if share > 0
    ]
    line = ", ".join(f"{name} {share:.1%}" for name, share in shares)
    if len(shares) == 1:
        line += f"; warning: nothing but {shares[0][0]} was found in it"
    return line


if __name__ == "__main__":
    sys.exit(main())
