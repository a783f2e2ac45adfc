"""The validation pairs of a run, found again from its checkpoint."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.checks.catalogue import CASES, make_case
from tests.conftest import data_flags, make_set
from unet_ddp.checks.check import prepare_data
from unet_ddp.cli import parse_train
from unet_ddp.commands.evaluate import EvaluateConfig
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pair
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.data.readers.read import use_own_readers
from unet_ddp.errors import UserError
from unet_ddp.evaluation.validation_split import find_given, rebuild, resizes_masks
from unet_ddp.extras.onnx.settings import ExportConfig
from unet_ddp.settings import settings_of

LABELS = Labels((0, 255))


def find(content: dict[str, Any]) -> list[Pair]:
    return list(rebuild(content, Path("best.pt"), LABELS).split.validation)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_set(tmp_path, 10)


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    paths = {"images": str(folder / "imgs"), "masks": str(folder / "masks")}
    return {**paths, "validation": 30.0, "seed": 5, "wandb": True, **changes}


def test_pairs_are_those_of_the_run(folder: Path) -> None:
    argv = [*data_flags(folder), "--validation", "30", "--seed", "5"]
    data = prepare_data(parse_train(argv).data, parts=DATA_PARTS, seed=5)
    content = {"config": settings(folder), "names": data.split.fingerprint}
    assert find(content) == list(data.split.validation) and len(data.split.validation) == 3
    del content["names"]  # as in the first version's checkpoints
    assert find(content) == list(data.split.validation)
    other = {**content, "config": settings(folder, seed=6)}
    assert find(other) != list(data.split.validation)


def test_a_reader_that_nobody_has_named_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that it alone reads are no images without it; with it, the cause is another one."""
    for path in [*(folder / "imgs").iterdir(), *(folder / "masks").iterdir()]:
        path.rename(path.with_suffix(".xyz"))
    monkeypatch.syspath_prepend(folder)
    (folder / "xyz_reader.py").write_text(
        "from unet_ddp.data.readers.base import OpenFile\nclass Xyz(OpenFile):\n    suffixes = ('.zzz',)\n"
    )
    reader = "xyz_reader:Xyz"
    content = {"config": settings(folder, reader=[reader])}
    given = str(folder / "imgs"), str(folder / "masks"), content, LABELS
    for ask in (lambda: find(content), lambda: find_given(*given)):
        with pytest.raises(
            UserError, match=f"starts no code: if you trust it, type --reader {reader}, too"
        ):
            ask()
    gone = {"config": {**content["config"], "images": str(folder / "gone")}}
    for ask in (lambda: find(gone), lambda: find_given(str(folder / "gone"), *given[1:])):
        with pytest.raises(UserError, match="gone: not found") as caught:
            ask()
        assert "--reader" not in str(caught.value)
    use_own_readers([reader])
    try:
        for ask in (lambda: find(content), lambda: find_given(*given)):
            with pytest.raises(UserError, match=r"imgs: contains no images \(") as caught:
                ask()
            assert "starts no code" not in str(caught.value)
    finally:
        use_own_readers([])


def test_what_the_run_left_out_by_skip_bad_files_is_left_out_again(folder: Path) -> None:
    """The names that it trained on and validated on say whether these are the same."""
    for name in ("bx", "cx"):
        (folder / "imgs" / f"{name}.png").write_bytes(b"no image")
    argv = [*data_flags(folder), "--validation", "30", "--seed", "5"]
    data = prepare_data(parse_train(argv).data, parts=DATA_PARTS, seed=5, skip_bad=2)
    assert find({"config": settings(folder), "names": data.split.fingerprint}) == list(
        data.split.validation
    )


def test_what_cannot_be_rebuilt_is_an_error_that_names_the_flags(folder: Path) -> None:
    def message(content: dict[str, Any]) -> str:
        with pytest.raises(UserError) as caught:
            find(content)
        assert str(caught.value).startswith("best.pt") and "--images and --masks" in str(
            caught.value
        )
        return str(caught.value)

    network_only = {"config": {"precision": "float32", "epochs": 3, "seed": 5}}
    for content in ({}, {"config": None}, {"config": "unet.yaml"}, network_only):
        assert "does not say" in message(content)
        assert not resizes_masks(content)
    assert "no validation" in message({"config": settings(folder, validation=0.0)})
    assert "have changed" in message({"config": settings(folder), "names": "others"})
    bad = folder / "imgs" / "bx.png"
    kept = bad.read_bytes()
    bad.write_bytes(b"no image")
    assert "imgs/bx.png" in message({"config": settings(folder), "names": "of all"})
    assert "imgs/bx.png" in message({"config": settings(folder)})
    bad.write_bytes(kept)
    mask = folder / "masks" / "ax.png"
    Image.fromarray(np.full((24, 32), 7, np.uint8)).save(mask)  # a class that the run had not
    assert "7" in message({"config": settings(folder)})
    shutil.rmtree(folder / "imgs")
    assert "imgs" in message({"config": settings(folder)})


def test_a_run_whose_paths_are_relative_says_so_in_another_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "elsewhere").mkdir()
    relative = {"config": settings(folder, images="imgs", masks="masks")}
    monkeypatch.chdir(folder)
    assert len(find(relative)) == 3
    monkeypatch.chdir("elsewhere")
    said = "imgs: not found.; start in the folder where it was trained, or use --images and --masks"
    with pytest.raises(UserError, match=said):
        find(relative)
    absolute = {"config": settings(folder, images=str(folder / "gone"))}
    with pytest.raises(UserError, match=r"not found.; use --images and --masks"):
        find(absolute)


def test_a_run_that_resized_masks_says_so() -> None:
    assert resizes_masks({"config": {"resize_masks": True}})
    assert not resizes_masks({"config": {"resize_masks": False}})
    assert not resizes_masks({"config": {}}) and not resizes_masks({})


def test_addresses_in_a_checkpoint_are_not_contacted(folder: Path) -> None:
    """Nothing answers there: to ask would take seconds, and end in another line."""
    content = {"config": settings(folder, images="s3://elsewhere/i", masks="s3://elsewhere/m")}
    with pytest.raises(UserError, match=r"s3://elsewhere/.'; a checkpoint opens no address"):
        find(content)


@pytest.mark.parametrize("config", [None, "unet.yaml", {"scale": "any", "window": None}])
def test_other_images_need_no_settings_of_another_program(folder: Path, config: Any) -> None:
    places = str(folder / "imgs"), str(folder / "masks")
    assert len(find_given(*places, {"config": config}, LABELS)) == 10


def test_other_scenes_are_divided_as_the_run_s_were_wherever_these_are(folder: Path) -> None:
    """The run's own place is not opened."""
    config = settings(folder, images="s3://bucket/imgs", window=32, scale=0.5)
    places = str(folder / "imgs"), str(folder / "masks")
    pairs = find_given(*places, {"config": config}, LABELS)
    assert {pair.image.suffix for pair in pairs} == {".window"} and len(pairs) >= 10


def messages(*asks: Callable[[], object]) -> list[str]:
    found = []
    for ask in asks:
        try:
            ask()
        except UserError as error:
            found.append(str(error))
    return found


@pytest.mark.filterwarnings("ignore:Image size")  # as by data/formats, which pytest undoes
def test_no_mistake_in_data_advises_a_flag_that_evaluate_or_export_lacks(tmp_path: Path) -> None:
    """They read data as train.py does, whose checks know its flags; a whole command to type is one."""
    ours = {each.flag for each in settings_of(EvaluateConfig).values()}
    ours &= {each.flag for each in settings_of(ExportConfig).values()}
    pixels = Preprocessing.for_images(3, scale=1.0).format
    said = []
    for number, case in enumerate(CASES):
        folder = tmp_path / str(number)
        folder.mkdir()
        make_case(number, folder)
        content = {"config": settings(folder)}
        with suppress(UserError):  # a case's flags may be its mistake
            content = {"config": parse_train(case.argv(folder)).to_dict()}
        places = str(folder / "imgs"), str(folder / "masks")

        def read(content: dict[str, Any] = content, places: tuple[str, str] = places) -> None:
            data = SegmentationDataset(
                find_given(*places, content, LABELS), LABELS, pixels, scale=1
            )
            for index in range(len(data)):
                data.read_truth(index)

        said += messages(lambda content=content: find(content), read)
    assert len(said) > len(CASES)
    advice = [
        re.sub(r"(-m unet_ddp|train with) [^;)]*|(^|[;:] |[(])--[\w-]+[^;:]*:", "", text)
        for text in said
    ]
    wrong = [text for text in advice if not {*re.findall(r"--[a-z][\w-]*", text)} <= ours]
    assert wrong == []
