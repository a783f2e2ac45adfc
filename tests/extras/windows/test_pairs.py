"""Windows as pairs: their scores are the scenes', and the sides of a split have a gap."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from tests.extras.windows.scenes import (
    TILED,
    check,
    config_of,
    draw_scene,
    find_windows,
    write_scenes,
)
from tests.maps import write_map
from unet_ddp.checks.check import prepare_data
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import read_mask
from unet_ddp.data.splits import Split, split_pairs
from unet_ddp.extras.windows.pairs import WindowPairs, find_unit, with_context
from unet_ddp.extras.windows.paths import split_window
from unet_ddp.network.unet import UNet
from unet_ddp.runs.same_data import measure_files

CLASSES = Labels((0, 1))


def count(
    pairs: Pairs,
    network: torch.nn.Module,
    scale: float = 1.0,
    form: ImageFormat = ImageFormat(3),  # noqa: B008  # frozen
) -> np.ndarray:
    """The confusion matrix (truth, predicted) of a network, in float64, over all pixels that count."""
    dataset = SegmentationDataset(pairs, CLASSES, form, scale=scale)
    table = np.zeros((2, 2), np.int64)
    for index in range(len(dataset)):
        sample = dataset[0, index]
        assert not isinstance(sample, Exception), sample
        images = sample.image.permute(2, 0, 1)[None].double() / 127 - 1
        with torch.no_grad():
            predicted = network(images).argmax(dim=1)[0].numpy()
        kept = sample.mask.numpy() != IGNORE_ID
        np.add.at(table, (sample.mask.numpy()[kept], predicted[kept]), 1)
    return table


def make_network(seed: int = 3) -> torch.nn.Module:
    """The classic U-Net, its batch norm with averages of its own."""
    torch.manual_seed(seed)
    network = UNet(3, 2, width=4).double()
    for name, buffer in network.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.1)
    network.eval()
    with torch.no_grad():  # as often one class as the other
        image, _ = draw_scene(0, 256, 256)
        logits = network(torch.from_numpy(image).permute(2, 0, 1)[None].double() / 127 - 1)
        [*network.parameters()][-1].sub_(logits.median(dim=3)[0].median(dim=2)[0][0])
    return network


@pytest.mark.parametrize(("scale", "window"), [(1.0, 64), (0.5, 128)])
def test_windows_are_scored_as_the_whole_scene_is(
    tmp_path: Path, scale: float, window: int
) -> None:
    """The sizes are no multiples of the window: the last ones are larger, or smaller."""
    folder = write_scenes(tmp_path, (520, 330), (200, 330))
    config = config_of(folder, window=window, scale=scale)
    windows, _ = find_windows(folder, window=window)
    scored = WindowPairs(with_context(pair, config) for pair in windows)
    assert len(scored) > 2
    network = make_network()
    whole = count(find_pairs(folder / "imgs", folder / "masks"), network, scale)
    assert whole.min() > 100  # each answer occurs
    np.testing.assert_array_equal(count(scored, network, scale), whole)
    if scale == 1:  # without context there is a difference
        assert (count(windows, network) != whole).any()


def test_a_unit_is_a_whole_number_of_strides() -> None:
    assert [find_unit(scale) for scale in (1, 0.5, 0.75, 0.1)] == [32, 64, 128, 320]
    assert find_unit(0.7003) == 1


def places(pairs: Pairs) -> list[tuple[str, int, int]]:
    found = []
    for pair in pairs:
        file, window = split_window(pair.mask)
        found.append((str(file), window.top, window.left))
    return found


def test_scenes_are_on_one_side_each(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path, (128, 128), (128, 192), (192, 128), (128, 128))
    data, report = check(folder, window=64, validation=25)
    assert not report.problems
    sides = [
        {file for file, *_ in places(side)} for side in (data.split.training, data.split.validation)
    ]
    assert sides[0].isdisjoint(sides[1]) and len(sides[0] | sides[1]) == 4 and sides[1]
    assert any("windows: 20 of 64x64 pixels in 4 scenes" in line for line in report.notes)
    assert any("4 groups of windows" in line for line in report.notes)


def test_one_group_is_said_as_one(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path, (128, 128))
    data, _ = check(folder, window=64, validation=0)
    assert data.split.how.startswith("1 group of windows")


def test_paths_are_kept_once_for_a_scene(tmp_path: Path) -> None:
    """That of a mask of polygons has the names of all classes; a reading process gets no copy for each window."""
    folder = write_scenes(tmp_path, (320, 320))
    found, _ = find_windows(folder, window=32, validation=0)
    long = folder / ("x" * 200) / "b.tif"
    pairs = WindowPairs(replace(pair, mask=split_window(pair.mask)[1].of(long)) for pair in found)
    pairs.share()
    assert pairs.rows.nbytes <= 72 * len(pairs) and pairs.scenes == [
        (folder / "imgs" / "a.tif", long)
    ]
    assert [pairs.to_read(k).mask for k in range(100)] == [pair.mask for pair in pairs]


def test_the_group_of_a_window_is_its_scenes(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path, *[(64, 64)] * 4)
    data, report = check(folder, window=64, validation=50, group_pattern="([ab])|([cd])")
    assert report.problems == []
    groups = {pair.name[0]: pair.group for pair in data.table.pairs}
    assert groups == {"a": "a", "b": "b", "c": "", "d": ""} or groups["c"] == groups["d"]


def test_blocks_have_a_gap_of_one_window(tmp_path: Path) -> None:
    """No training window, moved by half of its size, comes nearer to a block than half of a window."""
    folder = write_scenes(tmp_path, (640, 640))
    data, report = check(folder, window=64, blocks=2, validation=20)
    assert not report.problems
    training, validation = places(data.split.training), places(data.split.validation)
    assert len(validation) == 20 and training
    nearest = min(
        max(abs(top - other_top), abs(left - other_left))
        for _, top, left in training
        for _, other_top, other_left in validation
    )
    assert nearest == 128  # that is, a window between them
    assert any("next to those that validate left out" in line for line in report.notes)
    prepared = prepare_data(
        config_of(folder, window=64, blocks=2, validation=20), seed=1, parts=DATA_PARTS
    )
    prepared.split.training.share()
    held_out = np.zeros((640, 640), bool)
    for _, top, left in validation:
        held_out[max(0, top - 32) : top + 96, max(0, left - 32) : left + 96] = True
    assert prepared.draw is not None
    for index in range(len(prepared.split.training)):
        for epoch in range(5):
            own, _ = prepared.draw(epoch, index)
            _, window = split_window(prepared.split.training.to_read(own).image)
            assert not held_out[window.rows, window.columns].any()


def test_windows_are_the_same_again_and_in_another_process(tmp_path: Path) -> None:
    """A run that resumes, and evaluate, find the split by its names."""
    folder = write_scenes(tmp_path, (320, 320))
    splits = [check(folder, window=32, blocks=2, validation=20)[0].split for _ in range(2)]
    assert splits[0].fingerprint == splits[1].fingerprint
    assert splits[0].fingerprint != check(folder, window=32, blocks=1)[0].split.fingerprint


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"window": 64}, "--window 64: {0}/imgs/a.tif is the only scene or group, so none is left to train on; use --blocks 4"),
        ({"window": 512, "validation": 0}, "--window 512: larger than every scene; the largest, {0}/imgs/a.tif, is 320x256; use --window 256"),
    ],
)  # fmt: skip
def test_settings_that_do_not_suit_the_scenes(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    folder = write_scenes(tmp_path, (256, 320))
    _, report = check(folder, **settings)
    assert [problem[: len(said.format(folder))] for problem in report.problems] == [
        said.format(folder)
    ]


def test_blocks_and_groups_of_a_list_exclude_each_other(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path, (128, 128), (128, 128))
    rows = [f"imgs/{name}.tif,masks/{name}.tif,both" for name in "ab"]
    (folder / "list.csv").write_text("\n".join(["image,mask,group", *rows]))
    listed = {"images": None, "masks": None, "pairs_file": str(folder / "list.csv")}
    _, report = check(folder, **listed, window=32, blocks=2)
    assert [problem[:44] for problem in report.problems] == [
        "--blocks 2: the column group of " + str(folder)[:12]
    ]


def memorise(side: Any, fields: np.ndarray, mask: np.ndarray) -> float:
    """Share of the validation pixels that have the class of the training pixel that looks most like them."""
    pixels = []
    for pairs in (side.training, side.validation):
        chosen = np.zeros(mask.shape, bool)
        for _, top, left in places(pairs):
            chosen[top : top + 32, left : left + 32] = True
        rows, columns = (each[::3] for each in np.nonzero(chosen))
        pixels.append((fields[rows, columns], mask[rows, columns]))
    (known, classes), (asked, truth) = pixels
    looks = cv2.flann_Index(known, {"algorithm": 1, "trees": 4})
    nearest, _ = looks.knnSearch(asked, 1, params={"checks": 64})
    return float((classes[nearest[:, 0]] == truth).mean())


def test_neighbours_leak_and_blocks_do_not(tmp_path: Path) -> None:
    """Of smooth random fields that do not tell the mask, who remembers the training pixels knows their neighbours."""
    random = np.random.default_rng(2)
    smooth = [cv2.GaussianBlur(random.standard_normal((640, 640)), None, 24) for _ in range(7)]
    fields = np.stack([128 + 40 * each / each.std() for each in smooth[:6]], axis=-1)
    image, mask = fields.clip(0, 255).astype(np.uint8), (smooth[6] > 0).astype(np.uint8)
    for kind, pixels in (("imgs", image[..., :3]), ("masks", mask)):
        write_map(tmp_path / kind / "a.tif", pixels, **TILED)
    by_blocks = check(tmp_path, window=32, blocks=4, validation=20)[0].split
    windows, _ = find_windows(tmp_path, window=32, validation=0)
    single = split_pairs(
        WindowPairs(replace(pair, group=pair.name) for pair in windows), validation=20, seed=1
    )
    looks = fields.astype(np.float32)
    leaked, honest = (memorise(split, looks, mask) for split in (single, by_blocks))
    assert leaked > 0.75 and honest < 0.6  # 0.83 and 0.49; chance is 0.5


def test_the_surroundings_of_a_window_are_equally_large_for_the_network(tmp_path: Path) -> None:
    """At half the scale there are twice as many pixels of the scene."""
    folder = write_scenes(tmp_path, (2048, 64))
    (middle,) = (
        p for p in find_windows(folder, window=64, validation=0)[0] if "#001024+" in p.name
    )
    sizes = {}
    for scale in (1.0, 0.5, 0.25):
        larger = with_context(middle, config_of(folder, window=64, scale=scale))
        assert larger.inside is not None
        sizes[scale] = larger.inside[0] * scale
    assert len({*sizes.values()}) == 1 and sizes[1.0] > 64


@pytest.mark.parametrize(
    ("own", "wanted"), [(0.25, 0.3), (0.3, 0.75), (1, 1.2), (5, 6), (0.5, 0.5)]
)
def test_a_margin_is_a_whole_number_of_strides_at_any_quotient_of_resolutions(
    own: float, wanted: float
) -> None:
    unit, scale = find_unit(own / wanted), own / wanted
    assert unit > 1 and math.isclose(unit * scale / 32, round(unit * scale / 32), abs_tol=1e-9)


def test_scenes_without_data_are_said_to_be(tmp_path: Path) -> None:
    empty = np.zeros((128, 128, 3), np.uint8)
    write_map(tmp_path / "imgs" / "a.tif", empty, nodata=0, **TILED)
    write_map(tmp_path / "masks" / "a.tif", empty[..., 0], **TILED)
    pairs, report = find_windows(tmp_path, window=64, validation=0)
    assert len(pairs) == 0
    assert any(note.endswith("in 1 scene; 4 without data left out") for note in report.notes)


@pytest.mark.parametrize("bands", [1, 5])
def test_a_sampled_mask_of_a_window_is_measured(tmp_path: Path, bands: int) -> None:
    """By its pixels; one of several bands, which may overlap, by the size of its file."""
    folder = write_scenes(tmp_path, (128, 128))
    mask = folder / "masks" / "a.tif"
    found, _ = find_windows(folder, window=64, validation=0)
    write_map(mask, np.zeros((128, 128, bands), np.uint8), **TILED)
    measured = measure_files(Split(found, found[:0], ""))[:, 1].tolist()
    expected = mask.stat().st_size
    if bands == 1:
        expected = zlib.crc32(read_mask(found[0].mask).tobytes())
    assert measured == [expected] * 4
