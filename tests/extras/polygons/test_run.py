"""Runs on polygons: the same weights as on masks with their pixels, resumed, scored, and predicted as polygons."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.extras.polygons.labelled_maps import (
    KINDS,
    SIDE,
    box,
    corner,
    shapes_on,
    to_degrees,
    write_labels,
    write_scenes,
)
from tests.maps import at, write_map
from tests.prediction.models import noise
from tests.ranks import Ranks, call_main, call_train
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.config import DataConfig
from unet_ddp.data.labels import Labels
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.readers.read import read_mask

FLAGS = [
    "--images=imgs", "--scale=1", "--width=4", "--epochs=4", "--workers=0", "--validation=20",
    "--precision=float32", "--augmentation=overhead", "--learning-rate=0.03",
]  # fmt: skip
POLYGONS = ["--masks=labels.geojson", "--class-field=kind"]


@pytest.fixture(scope="module")
def trained(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, labels.geojson, masks of the same pixels, and a run on the polygons."""
    folder = write_scenes(tmp_path_factory.mktemp("maps"))
    shapes, kinds = shapes_on()
    write_labels(folder / "labels.geojson", to_degrees(shapes), "EPSG:4326", kind=kinds)
    write_labels(folder / "labels.gpkg", shapes, kind=kinds)
    (folder / "masks").mkdir()
    pairs = find_pairs(
        folder / "imgs", folder / "labels.gpkg", config=DataConfig(class_field="kind")
    )
    for k, pair in enumerate(pairs):
        mask = read_mask(pair.mask)
        Image.fromarray(mask).save(folder / "masks" / f"{pair.name}.png")
        picture = np.uint8(noise(SIDE, SIDE, k) // 8 + np.uint8(70) * mask[..., None])
        write_map(pair.image, picture, at(0.5, corner(k)))
    outcomes = ranks.run(2, call_train, [*FLAGS, *POLYGONS, "--batch-size=1"], str(folder))
    assert [status for status, *_ in outcomes] == [0, 0], outcomes
    return folder


def weights(folder: Path, name: str = "") -> dict[str, torch.Tensor]:
    return checkpoint.load(folder / "checkpoints" / name / "last.pt")["model"]


def test_weights_are_those_of_a_run_on_masks_with_the_same_pixels(
    ranks: Ranks, trained: Path
) -> None:
    argv = [*FLAGS, "--masks=masks", "--batch-size=1", "--exp-name=pixels"]
    assert all(status == 0 for status, *_ in ranks.run(2, call_train, argv, str(trained)))
    torch.testing.assert_close(weights(trained), weights(trained, "pixels"), rtol=0, atol=0)
    saved = checkpoint.load(trained / "checkpoints" / "best.pt")["labels"]
    assert Labels.from_dict(saved).names == ("background", *sorted(KINDS))


def test_a_run_is_resumed_and_scored(trained: Path) -> None:
    argv = [*FLAGS, *POLYGONS, "--batch-size=2", "--exp-name=more"]
    assert call_train(argv, str(trained))[0] == 0
    status, out, err = call_train([*argv, "--resume", "--epochs=5"], str(trained))
    assert status == 0 and "changed since: epochs 4 -> 5" in out, out + err
    assert "classes: 4, mask values background (0), building (1), road (2), water (3)" in out
    # Other labels, which lack a class: the values stay the network's.
    shapes, kinds = shapes_on()
    rows = [row for row, kind in enumerate(kinds) if kind != "building"]
    kept = [[each[row] for row in rows] for each in (shapes, kinds)]
    write_labels(trained / "fewer.gpkg", kept[0], kind=kept[1])
    for name, further in (("own", []), ("fewer", ["--images=imgs", "--masks=fewer.gpkg"])):
        flags = ["evaluate", "--model=checkpoints/more/best.pt", f"--output={name}", "--workers=0"]
        status, out, err = call_main("unet_ddp.__main__", [*flags, *further], str(trained))
        assert status == 0, out + err
    scores = json.loads((trained / "fewer" / "scores.json").read_text())
    pixels = {each["name"]: each["pixels"] for each in scores["classes"]}
    assert pixels["building"] == 0 < pixels["road"]


def test_a_run_is_resumed_if_few_of_its_masks_have_changed(trained: Path) -> None:
    """One file has the polygons of all images: what is on the images decides, as for masks that are images."""
    shapes, kinds = shapes_on()
    write_labels(trained / "corrected.gpkg", shapes, kind=kinds)
    argv = [*FLAGS, "--masks=corrected.gpkg", "--class-field=kind", "--batch-size=2"]
    argv += ["--exp-name=corrected", "--resume"]
    assert call_train([*argv[:-1], "--epochs=1"], str(trained))[0] == 0
    further = [box(30, 30, 40, 40, 1)] * 99  # in a larger file
    write_labels(trained / "corrected.gpkg", shapes + further, kind=[*kinds, *["road"] * 99])
    status, out, err = call_train([*argv, "--epochs=2"], str(trained))
    said = "warning: files have changed since the run started: 1 of 6 pairs, first corrected.gpkg"
    assert status == 0 and said in out + err, out + err
    write_labels(trained / "corrected.gpkg", shapes, kind=[*kinds[1:], kinds[0]])
    status, out, err = call_train([*argv, "--epochs=3"], str(trained))
    assert status == 2 and err.count("\n") == 1, err
    assert "names that the run started with (6 of 6 pairs, first corrected.gpkg); use its" in err
    assert "or start a new run with --load" in err


def test_predictions_are_polygons_of_the_named_classes_to_train_on(trained: Path) -> None:
    """The circle: polygons, a network, polygons, whose masks are the predicted ones."""
    argv = ["imgs/ax.tif", "--model=checkpoints/best.pt", "--polygons=found.geojson"]
    status, out, err = call_main("predict", argv, str(trained))
    assert status == 0, out + err
    features = json.loads((trained / "found.geojson").read_text())["features"]
    named = {each["properties"]["class"] for each in features}
    mask = read_mask(trained / "imgs" / "ax_mask.tif")
    names = ("background", *sorted(KINDS))
    assert named == {names[value] for value in np.unique(mask).tolist()} and len(named) > 2
    (trained / "one").mkdir()
    (trained / "one" / "ax.tif").hardlink_to(trained / "imgs" / "ax.tif")
    config = DataConfig(class_field="class")
    (pair,) = find_pairs(trained / "one", trained / "found.geojson", names=names, config=config)
    assert np.array_equal(read_mask(pair.mask), mask)
