"""A resumed run continues with the data that it began with."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import PIXELS, make_data, make_pairs
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.splits import Split, write_split
from unet_ddp.errors import UserError
from unet_ddp.runs.same_data import check_same_data, measure_files

COUNT = 40
NAMES = "".join(chr(ord("A") + n) for n in range(COUNT))


def write_set(folder: Path, content: bytes, names: str = NAMES) -> Any:
    folder.mkdir(exist_ok=True)
    pairs = make_pairs(names, folder)
    for pair in pairs:
        for path in (pair.image, pair.mask):
            path.write_bytes(content + path.name.encode())
    return make_data(split=Split(pairs[:-4], pairs[-4:], "by name"))


def saved(data: Any) -> dict[str, Any]:
    return {
        "names": data.split.fingerprint,
        "files": measure_files(data.split),
        "crop_size": list(data.crop_size) if data.crop_size else None,
        "preprocessing": PIXELS.to_dict(),
    }


@pytest.mark.parametrize(("content", "found"), [(b"longer ones", COUNT), (b"others", 16)])
def test_other_images_under_the_same_names_are_refused(
    tmp_path: Path, content: bytes, found: int
) -> None:
    """Issue: started in another folder, --resume went on with what it found there."""
    then = saved(write_set(tmp_path / "a", b"images"))
    assert check_same_data(then, write_set(tmp_path / "moved", b"images"), tmp_path / "x.pt") == []
    with pytest.raises(UserError, match=rf"other images .* names .*\({found} of {COUNT} pairs"):
        check_same_data(then, write_set(tmp_path / "b", content), tmp_path / "x.pt")


@pytest.mark.parametrize("k", [0, 1, COUNT - 1])
def test_a_repaired_file_is_a_line(tmp_path: Path, k: int) -> None:
    """The contents of the second are not read: its size tells."""
    data = write_set(tmp_path, b"images")
    then, pairs = saved(data), [*data.split.training, *data.split.validation]
    pairs[k].mask.write_bytes(b"corrected by hand")
    (line,) = check_same_data(then, data, tmp_path / "last.pt")
    assert line == (
        f"warning: files have changed since the run started: 1 of {COUNT} pairs, first {pairs[k].mask}"
    )


@pytest.mark.parametrize(("changed", "is_refused"), [(8, False), (9, True)])
def test_more_than_half_of_the_sampled_files_make_another_set(
    tmp_path: Path, changed: int, is_refused: bool
) -> None:
    """Of a small set all 16 are sampled."""
    data = write_set(tmp_path, b"images", NAMES[:16])
    then, pairs = saved(data), [*data.split.training, *data.split.validation]
    for pair in pairs[:changed]:
        pair.image.write_bytes(b"another")
    with pytest.raises(UserError, match="other images") if is_refused else nullcontext():
        (line,) = check_same_data(then, data, tmp_path / "last.pt")
        assert f": {changed} of 16 pairs" in line


def test_an_image_of_another_size_makes_no_crops_of_whole_images(tmp_path: Path) -> None:
    data = write_set(tmp_path, b"images")
    then = saved(data)
    with pytest.raises(UserError, match="it would train on crops of 64x32, not on whole images"):
        check_same_data(then, replace(data, crop_size=(32, 64)), tmp_path / "last.pt")


def test_the_flag_that_has_changed_the_data_is_named(tmp_path: Path) -> None:
    data = write_set(tmp_path, b"images")
    then = saved(data)
    cropped = replace(data, crop_size=(32, 64))
    line = "--crop-size: is not the run's, leave it out: it would train on crops of 64x32, not on whole images"
    with pytest.raises(UserError, match=line):
        check_same_data(then, cropped, tmp_path / "last.pt", {"crop_size", "seed"})
    other = write_set(tmp_path / "other", b"images", NAMES[1:])
    with pytest.raises(
        UserError,
        match=r"the images or the split differ .*; leave --validation out, leave --seed out, or start",
    ):
        check_same_data(then, other, tmp_path / "last.pt", {"seed", "validation", "images"})


@pytest.mark.parametrize(("names", "said"), [(NAMES + "z", "z.png is new"), (NAMES[1:], "A.png is missing")])  # fmt: skip
def test_an_added_or_removed_image_is_named(tmp_path: Path, names: str, said: str) -> None:
    data = write_set(tmp_path, b"images")
    write_split(data.split, {}, tmp_path / "split.csv")
    now = write_set(tmp_path, b"images", names)
    with pytest.raises(UserError, match=said):
        check_same_data(saved(data), now, tmp_path / "last.pt")


def test_a_size_that_is_known_is_not_asked_for_again(tmp_path: Path) -> None:
    """Of files that are not read: their folder's listing, or the scan, had it."""
    data = write_set(tmp_path, b"images")
    sizes = measure_files(data.split)
    pairs = [
        replace(pair, stamps=((70 + k, 0), (80 + k, 0)))
        for k, pair in enumerate(data.split.training)
    ]
    known = measure_files(replace(data.split, training=Pairs(pairs)))
    assert known[1].tolist() == [71, 81] and sizes[1].tolist() != [71, 81]
    assert known[0].tolist() == sizes[0].tolist()  # checksums
