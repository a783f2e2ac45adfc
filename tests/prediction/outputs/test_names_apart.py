"""Images of one name in several folders are told apart in the files of all images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests.prediction.models import noise, write_model
from tests.prediction.test_predict import run as predict
from unet_ddp.__main__ import main as command
from unet_ddp.data.labels import Labels
from unet_ddp.data.names import tell_apart
from unet_ddp.data.readers.read import read_mask
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.files import as_path
from unet_ddp.plugins.built_in import BUILT_IN


@pytest.mark.parametrize(
    ("images", "names"),
    [
        (["a/x.png", "b/y.png"], ["x.png", "y.png"]),
        (["a/x.png", "b/x.png"], ["a/x.png", "b/x.png"]),
        (["r/a/x.png", "r/b/x.png", "r/b/y.png"], ["a/x.png", "b/x.png", "b/y.png"]),
        (["x.png", "b/x.png"], ["x.png", "b/x.png"]),
        (["/d/p1/s/x.png", "/d/p2/s/x.png"], ["p1/s/x.png", "p2/s/x.png"]),
        (["s3://b/p1/x.png", "s3://b/p2/x.png"], ["p1/x.png", "p2/x.png"]),
        (["only/x.png"], ["x.png"]),
        ([], []),
    ],
)
def test_names_are_paths_where_they_repeat(images: list[str], names: list[str]) -> None:
    assert tell_apart([as_path(image) for image in images]) == names


ONE_FILE = {
    "annotations": "json", "label_studio": "json", "polygons": "geojson",
    "rle": "csv", "rank": "csv", "objects": "csv", "counts": "csv",
}  # fmt: skip
"""Outputs that put all images into one file."""
OWN_FILES = {"mask", "no_mask", "class_masks", "overlay", "probabilities"}
"""Outputs of a file for each image, or of none."""


def test_an_output_of_all_images_is_in_the_table() -> None:
    assert {*BUILT_IN["outputs"]} == OWN_FILES | {*ONE_FILE, "no_mask"}


@pytest.mark.parametrize("kind", ["classes", "objects"])
def test_each_file_tells_images_of_one_name_apart_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    is_numbered = kind == "objects"
    cells = replace(ObjectLabels.of(("cell",)), separation=(0.3, 0.2))
    labels = cells if is_numbered else Labels((0, 255))
    write_model(tmp_path / "best.pt", labels)
    for seed, name in enumerate(("p1", "p2")):
        (tmp_path / "new" / name).mkdir(parents=True)
        Image.fromarray(noise(30, 40, seed)).save(tmp_path / "new" / name / "x.png")
    wanted = {
        k: end for k, end in ONE_FILE.items() if is_numbered or k not in {"objects", "counts"}
    }
    wanted = {k: end for k, end in wanted.items() if not (is_numbered and k == "rle")}
    flags = [f"--{k.replace('_', '-')}={k}.{end}" for k, end in wanted.items()]
    assert predict("new/p1", "new/p2", "-m", "best.pt", *flags) == 0
    for k, end in wanted.items():
        text = (tmp_path / f"{k}.{end}").read_text()
        assert "p1/x.png" in text and "p2/x.png" in text, k
    if is_numbered:
        return
    assert command(["import", "rle.csv", "--images", "new", "-o", "back"]) == 0
    for name in ("p1", "p2"):
        back, mask = (
            read_mask(tmp_path / each / name / file) != 0
            for each, file in (("back", "x.png"), ("new", "x_mask.png"))
        )
        assert (back == mask).all()
