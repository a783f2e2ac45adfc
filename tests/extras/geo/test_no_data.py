"""Pixels of a map without data: one mask, and the same outputs, by every way to predict it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.maps import CORNER, at, write_map
from tests.prediction.models import noise, write_model
from tests.prediction.test_predict import run
from unet_ddp.data.labels import Labels
from unet_ddp.extras.objects.borders import CLASS_NAMES
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.overlap.labels import OverlapLabels
from unet_ddp.plugins.built_in.of_prediction import OUTPUTS
from unet_ddp.prediction.predictor import Predictor

TWO = Labels((0, 255), names=("ground", "roof"))
NUMBERED = ObjectLabels((0, 1, 2), names=CLASS_NAMES, separation=(0.38, 0.6))
KINDS = [
    TWO,
    Labels((0, 1), names=("ground", "roof")),
    Labels((0, 1, 2), names=("ground", "roof", "road")),
    Labels((0xFF0000, 0x00FF00), rgb=True, names=("ground", "roof")),
    NUMBERED,
    OverlapLabels((1, 2), names=("roof", "shade")),
]
VALUES = {
    "overlay": [],
    "probabilities": ["npy"],
    "annotations": ["a.json"],
    "label_studio": ["l.json"],
    "polygons": ["p.geojson"],
}
"""Of the flags of outputs; of all others, the name of a table."""


def scene(path: Path, size: tuple[int, int] = (90, 70), **options: Any) -> Path:
    """A map of which the upper left corner is without data."""
    image = noise(*size, seed=len(path.name))
    image[:30, :40] = 0
    return write_map(path, image, **{"nodata": 0, **options})


@pytest.mark.parametrize("labels", KINDS, ids=repr)
def test_python_has_the_mask_of_the_command(
    here: Path, labels: Labels, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(here / "m.pt", labels)
    path = scene(here / "a.tif")
    assert run("a.tif", "-m", "m.pt") == 0
    found = Predictor.from_checkpoint("m.pt", device="cpu")(path)
    assert (found.mask[:30, :40] == (0 if labels.objects else 255)).all()
    assert found.nodata == 30 * 40 and not found.mask.flags.writeable
    assert not found.masks[1, :30, :40].any()
    if not labels.may_overlap:
        assert sum(found.shares) == pytest.approx(1)
        assert found.shares[1] == (found.ids == 1).sum() / (90 * 70 - 30 * 40)
        assert np.array_equal(np.asarray(found.to_image()), _values("a_mask.tif"))
    shares = zip(labels.class_names, found.shares, strict=True)
    shown = ", ".join(f"{name} {share:.1%}" for name, share in shares if share)
    assert shown in capsys.readouterr().out


def _values(path: str) -> np.ndarray:
    image = Image.open(path)
    return np.asarray(image.convert("RGB") if len(image.getbands()) > 1 else image)


@pytest.mark.parametrize("labels", KINDS, ids=repr)
def test_the_format_of_the_mask_decides_nothing_else(
    here: Path, labels: Labels, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(here / "m.pt", labels)
    scene(here / "a.tif")
    scene(here / "bb.tif", transform=at(0.5, (CORNER[0], CORNER[1] - 60)))
    flags = [word for name in _outputs_of(labels) for word in (_flag(name), *_value(name))]
    lines, written = {}, {}
    for kind in ("tif", "png", "none"):
        folder = here / kind
        folder.mkdir()
        lists = [f"{kind}/{word}" if "." in word else word for word in flags]
        argv = ["a.tif", "bb.tif", "-m", "m.pt", "-o", kind, "--mask-format", kind]
        assert run(*argv, *lists) == 0
        ends = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()]
        lines[kind] = [line for line in ends if "%" in line]
        masks = {*folder.glob("*_mask*")}
        written[kind] = {
            path.name: path.read_bytes() for path in folder.iterdir() if path not in masks
        }
        assert bool(masks) == (kind != "none")
    assert written["png"] == written["tif"] == written["none"] and len(written["png"]) >= 3
    assert lines["png"] == lines["tif"] == lines["none"] and len(lines["png"]) == 2
    if not labels.may_overlap:
        assert np.array_equal(_values("png/a_mask.png"), _values("tif/a_mask.tif"))
    for kind in ("tif", "png"):  # of the masks of a job before
        argv = ["a.tif", "bb.tif", "-m", "m.pt", "-o", kind, "--mask-format", kind]
        assert run(*argv, "--skip-existing", "--polygons", f"{kind}.geojson") == 0
        assert Path(f"{kind}.geojson").read_bytes() == written["tif"]["p.geojson"]


def _outputs_of(labels: Labels) -> list[str]:
    """The outputs that can be had of these labels, masks aside."""
    lacking = {"mask", "no_mask", "class_masks"}
    if not labels.is_binary:
        lacking.add("rle")
    if not labels.objects:
        lacking |= {"objects", "counts"}
    if labels.may_overlap:
        lacking.add("rank")
    return [name for name in OUTPUTS if name not in lacking]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _value(name: str) -> list[str]:
    return VALUES.get(name, [f"{name}.csv"])
