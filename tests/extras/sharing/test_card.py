"""Folders to give to others: checked by huggingface_hub, and used again by predict.py."""

from __future__ import annotations

import json
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results
from safetensors.torch import load_file, save_file

from tests.conftest import make_set
from tests.prediction.models import write_model, write_photo
from unet_ddp import Predictor
from unet_ddp.__main__ import main
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.checkpoints.weights import read_model
from unet_ddp.data.labels import Labels
from unet_ddp.data.readers.read import read_mask
from unet_ddp.errors import UserError
from unet_ddp.evaluation.validation_split import find_given, resizes_masks
from unet_ddp.extras.objects.labels import ObjectLabels

LABELS = Labels((0, 7, 9), names=("nothing", "car", "träe"))


def write_run(folder: Path) -> Path:
    """Write a run's folder, whose second epoch was the best, and return its checkpoint."""
    folder.mkdir()
    write_model(folder / "best.pt", LABELS)
    content = checkpoint.load(folder / "best.pt")
    config = {
        "epochs": 2,
        "loss": "dice_ce",
        "learning_rate": 0.01,
        "images": "/mnt/me/secret",
        "encoder_weights": "/mnt/me/secret.pt",
        "augmentation": "secret:Own",
    }
    best = {"score": 0.625, "name": "Dice", "dice": 0.625, "epoch": 1, "improved": 1}
    checkpoint.save(folder / "best.pt", {**content, "config": config, "best": best})
    columns = ["epoch", "validation_dice", "validation_score", "validation_iou"]
    columns += [f"{kind}_{name}" for kind in ("dice", "iou") for name in LABELS.class_names]
    rows = ["1" + ",0.1" * 9, "2,0.625,0.625,0.5,0.9,0.75,0.5,0.8,0.6,0.4375", "3" + ",0.2" * 9]
    (folder / "metrics.csv").write_text("\n".join([",".join(columns), *rows]) + "\n")
    parts = ["training"] * 3 + ["validation"] * 2
    lines = [f'"/mnt/me/secret/{number}.png","m","g","{part}"' for number, part in enumerate(parts)]
    (folder / "split.csv").write_text("\n".join(['"image","mask","group","split"', *lines]) + "\n")
    return folder / "best.pt"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a checkpoint and the folder that was exported from it."""
    here = tmp_path_factory.mktemp("shared")
    source = write_run(here / "run")
    assert main(["export", str(source), "--card", str(here / "my-net"), "--license", "mit"]) == 0
    return source, here / "my-net"


def test_huggingface_hub_reads_the_card(shared: tuple[Path, Path]) -> None:
    card = ModelCard.load(shared[1] / "README.md")
    assert card.data.license == "mit"
    assert card.data.pipeline_tag == "image-segmentation"
    assert card.data.model_name == "my-net"
    found = {each.metric_type: each.metric_value for each in card.data.eval_results or ()}
    assert found == {"dice": 0.625, "mean_iou": 0.5}
    assert [each.metric_name for each in card.data.eval_results or ()] == ["Mean Dice", "Mean IoU"]
    name, results = model_index_to_eval_results(card.data.to_dict()["model-index"])
    assert (name, len(results)) == ("my-net", 2)


def test_the_card_has_scores_and_data_but_no_paths(shared: tuple[Path, Path]) -> None:
    text = (shared[1] / "README.md").read_text(encoding="utf-8")
    for fact in (
        "Dice and IoU are means of the classes that occur.",
        "| car | 0.7500 | 0.6000 |",
        "- training: 3 images",
        "- validation: 2 images",
        "- loss: dice_ce",
        "  - 9: träe",
        "## Limits",
    ):
        assert fact in text
    assert "secret" not in text
    assert not any(b"secret" in path.read_bytes() for path in shared[1].iterdir())


def test_the_folder_predicts_as_the_checkpoint_does(
    shared: tuple[Path, Path], tmp_path: Path
) -> None:
    photo = write_photo(tmp_path / "x.png")
    source, folder = shared
    expected, found = (
        Predictor.from_checkpoint(path, device="cpu")(str(photo))
        for path in (source, folder / "model.safetensors")
    )
    assert np.array_equal(found.probabilities, expected.probabilities)
    assert found.labels == LABELS
    description = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert description["architecture"]["model"] == "unet"
    state = load_file(folder / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {
        name: tuple(tensor.shape) for name, tensor in read_model(source).state.items()
    }


def test_the_folder_itself_names_the_network(shared: tuple[Path, Path], tmp_path: Path) -> None:
    """Issue: its best.pt was not found."""
    photo = write_photo(tmp_path / "photo.png")
    found, expected = (
        Predictor.from_checkpoint(path)(photo).mask
        for path in (shared[1], shared[1] / "model.safetensors")
    )
    assert np.array_equal(found, expected)


def test_a_folder_is_exported_again_from_itself(shared: tuple[Path, Path], tmp_path: Path) -> None:
    argv = [str(shared[1] / "model.safetensors"), "--card", str(tmp_path / "again")]
    assert main(["export", *argv]) == 0
    assert (tmp_path / "again" / "config.json").read_bytes() == (
        shared[1] / "config.json"
    ).read_bytes()
    assert "Dice: 0.6250" in (tmp_path / "again" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "more"),
    [
        ("evaluate --device cpu --model CARD", ""),
        ("export CARD a.onnx --precision float16", ""),
        (
            "export CARD a.onnx --precision int8 --images data/imgs --masks data/masks",
            "; int8 needs --calibration, too",
        ),
    ],
)
def test_images_in_the_usual_folder_are_not_those_of_the_folder_s_run(
    shared: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    more: str,
) -> None:
    """Issue: it does not name its data, and data/imgs was scored as its validation set."""
    monkeypatch.setattr("unet_ddp.extras.onnx.export.import_extra", lambda *_: None)
    make_set(tmp_path / "data", 10, values=LABELS.values)
    monkeypatch.chdir(tmp_path)
    argv = words.replace("CARD", str(shared[1])).split()
    with suppress(SystemExit):
        main(argv)
    said = (
        "model.safetensors does not say which images it was validated on; use --images and --masks"
    )
    assert capsys.readouterr().err == f"error: {shared[1]}/{said}{more}\n"


def test_the_folder_reads_other_masks_as_its_run_read_its_own(tmp_path: Path) -> None:
    """Issue: of polygons with a class each, a folder without its run's --class-field had one class."""

    class Asked(dict[str, Any]):
        names: ClassVar[set[str]] = set()

        def get(self, name: str, default: Any = None) -> Any:
            self.names.add(name)
            return super().get(name, default)

    place = make_set(tmp_path, 10, values=LABELS.values)
    used = {"window": 32, "class_field": "kind", "scale": 0.5, "nodata": 7.0, "resize_masks": True}
    asked = {"config": Asked(used)}
    find_given(str(place / "imgs"), str(place / "masks"), asked, LABELS)
    assert resizes_masks(asked)
    assert Asked.names - {"reader"} == used.keys()  # a reader is code, which --reader names
    source = write_run(tmp_path / "run")
    content = checkpoint.load(source)
    content["config"].update(used)
    checkpoint.save(source, content)
    assert main(["export", str(source), "--card", str(tmp_path / "net")]) == 0
    saved = read_model(tmp_path / "net/model.safetensors").run["config"]
    assert {name: saved.get(name) for name in used} == used


def test_existing_files_are_kept(
    shared: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    source, folder = shared
    argv = ["export", str(source), "--card", str(folder), "--license", "mit"]
    assert main(argv) == 2
    assert "my-net/model.safetensors: already exists; use --overwrite" in capsys.readouterr().err
    (folder / "notes.txt").write_text("mine")
    assert main([*argv, "--overwrite"]) == 0
    assert (folder / "notes.txt").read_text() == "mine"


def test_nothing_to_write_is_an_error(
    shared: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(shared[0])]) == 2
    assert (
        "name a FILE.onnx, or FILE.zip with --bioimageio, or use --card DIR"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "its description is damaged; export it again"),
        ("[1]", "its description is damaged; export it again"),
        ('{"format": 1}', "architecture: missing"),
    ],
)
def test_damaged_descriptions_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(1)}, path, metadata={"unet_ddp": text})
    with pytest.raises(UserError, match=message):
        read_model(path)


def test_a_checkpoint_without_scores_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "a.pt", LABELS)
    assert main(["export", str(tmp_path / "a.pt"), "--card", str(tmp_path / "net")]) == 0
    output = capsys.readouterr().out
    assert "the card has no scores" in output
    assert "the card's licence is unknown" in output
    data: Any = ModelCard.load(tmp_path / "net" / "README.md").data
    assert data.eval_results is None


def test_scores_of_another_run_are_not_the_card_s(tmp_path: Path) -> None:
    best = write_run(tmp_path / "run")
    rows = (tmp_path / "run/metrics.csv").read_text().replace("0.625", "0.9")
    (tmp_path / "run/metrics.csv").write_text(rows)
    assert main(["export", str(best), "--card", str(tmp_path / "net")]) == 0
    text = (tmp_path / "net/README.md").read_text()
    assert "- Dice: 0.6250" in text and "0.9000" not in text and "numbers of images are not" in text


@pytest.mark.parametrize("has_metrics", [True, False])
def test_the_scores_of_two_classes_are_those_at_the_threshold(
    has_metrics: bool, tmp_path: Path
) -> None:
    """The card that predicts from 0.3 on had the scores at 0.5, and called its class weak."""
    write_model(tmp_path / "best.pt", Labels((0, 255), names=("nothing", "car")), threshold=0.3)
    best = {"score": 0.8, "name": "Dice", "dice": 0.25, "epoch": 0, "improved": 0}
    content = checkpoint.load(tmp_path / "best.pt")
    checkpoint.save(tmp_path / "best.pt", {**content, "best": best})
    columns = "epoch,validation_dice,validation_iou,threshold,validation_score,dice_nothing,dice_car,iou_nothing,iou_car\n"
    if has_metrics:
        text = f"{columns}1,0.25,0.15,0.3,0.8,0.9,0.25,0.85,0.15\n"
        (tmp_path / "metrics.csv").write_text(text)
    assert main(["export", str(tmp_path / "best.pt"), "--card", str(tmp_path / "net")]) == 0
    text = (tmp_path / "net/README.md").read_text()
    assert "- Dice: 0.8000\n- IoU: 0.6667\n" in text and "with a Dice below" not in text
    assert ("| car | 0.8000 | 0.6667 |" in text) == has_metrics
    assert not {"0.2500", "0.1500", "| nothing |"} & {*text.split(), *text.splitlines()}
    found = ModelCard.load(tmp_path / "net/README.md").data.eval_results or ()
    assert [(each.metric_type, each.metric_name, each.metric_value) for each in found] == [
        ("dice", "Dice of car", 0.8),
        ("iou", "IoU of car", 0.6667),
    ]
    assert "Dice and IoU are those of car." in text and "at least 0.3." in text


def test_the_card_of_objects_has_the_score_that_chose_the_epoch(tmp_path: Path) -> None:
    write_model(tmp_path / "best.pt", ObjectLabels.of(("cell",)))
    best = {"score": 0.375, "name": "mean AP", "dice": 0.75, "epoch": 0, "improved": 0}
    content = checkpoint.load(tmp_path / "best.pt")
    checkpoint.save(tmp_path / "best.pt", {**content, "best": best})
    text = "epoch,validation_dice,validation_iou,validation_score\n1,0.75,0.6,0.375\n"
    (tmp_path / "metrics.csv").write_text(text)
    assert main(["export", str(tmp_path / "best.pt"), "--card", str(tmp_path / "net")]) == 0
    said = (tmp_path / "net/README.md").read_text()
    assert "- mean AP: 0.3750\n- Dice: 0.7500\n- IoU: 0.6000\n" in said
    found = ModelCard.load(tmp_path / "net/README.md").data.eval_results or ()
    assert [each.metric_type for each in found] == ["mean_average_precision", "dice", "mean_iou"]


def test_files_of_other_programs_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best, folder = write_run(tmp_path / "run"), tmp_path / "project"
    folder.mkdir()
    (folder / "README.md").write_text("# mine")
    assert main(["export", str(best), "--card", str(folder), "--overwrite"]) == 2
    assert "README.md: is of another program" in capsys.readouterr().err
    assert (folder / "README.md").read_text() == "# mine"


def test_a_class_is_told_in_one_line_of_text(tmp_path: Path) -> None:
    write_model(tmp_path / "a.pt", Labels((0, 7, 9), names=("nothing", "a\n## b", "b\udce4")))
    assert main(["export", str(tmp_path / "a.pt"), "--card", str(tmp_path / "net")]) == 0
    text = (tmp_path / "net/README.md").read_text(encoding="utf-8")
    assert r"  - 7: a\n## b" in text and r"  - 9: b\udce4" in text and "\n## b" not in text


def test_a_class_is_one_cell_of_the_table(tmp_path: Path) -> None:
    best = write_run(tmp_path / "run")
    content, metrics = checkpoint.load(best), tmp_path / "run/metrics.csv"
    content["labels"]["names"] = ["nothing", "car|van", "träe"]
    checkpoint.save(best, content)
    metrics.write_text(metrics.read_text().replace("_car", "_car|van"))
    assert main(["export", str(best), "--card", str(tmp_path / "net")]) == 0
    text = (tmp_path / "net/README.md").read_text(encoding="utf-8")
    assert r"| car\|van | 0.7500 | 0.6000 |" in text and "  - 7: car|van" in text


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "README.md"])
def test_a_folder_in_place_of_a_file_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = write_run(tmp_path / "run")
    (tmp_path / "net" / name).mkdir(parents=True)
    assert main(["export", str(best), "--card", str(tmp_path / "net"), "--overwrite"]) == 2
    assert capsys.readouterr().err.endswith("Is a directory; use another --card\n")


@pytest.mark.parametrize(
    ("classes", "told"), [(("cell",), "the number of an object"), (("car", "tree"), "  - 2: tree")]
)
def test_the_card_of_objects_tells_their_masks_and_how_to_save_one(
    classes: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "a.pt", ObjectLabels.of(classes))
    assert main(["export", str(tmp_path / "a.pt"), "--card", str(tmp_path / "net")]) == 0
    text = (tmp_path / "net/README.md").read_text(encoding="utf-8")
    assert told in text
    monkeypatch.chdir(tmp_path / "net")
    write_photo(Path("image.jpg"))
    exec(textwrap.dedent(text.partition("In Python:\n")[2].partition("\n`")[0]), {})
    mask = read_mask(next(Path().glob("mask.*")))
    assert np.array_equal(mask, Predictor.from_checkpoint("model.safetensors")("image.jpg").mask)


def test_only_a_best_pt_that_is_there_is_advised_and_no_scores_are_spoken_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "last.pt", LABELS)
    argv = ["export", str(tmp_path / "last.pt"), "--card", str(tmp_path / "net")]
    assert main(argv) == 0
    assert "the card has no scores" in (output := capsys.readouterr().out)
    assert "best.pt" not in output
    assert "scores are of images" not in (tmp_path / "net/README.md").read_text(encoding="utf-8")
    (tmp_path / "best.pt").touch()
    assert main([*argv, "--overwrite"]) == 0
    assert "does not say them; export best.pt" in capsys.readouterr().out


def test_a_licence_of_neither_card_nor_package_is_refused(
    shared: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["export", str(shared[0]), str(tmp_path / "a.onnx"), "--license", "mit"]
    assert main(argv) == 2
    said = "error: --license: is for --card and --bioimageio; leave it out\n"
    assert capsys.readouterr().err == said
