"""`python -m unet_ddp report`: a run's page, written again."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.conftest import data_flags, make_pair, make_set
from tests.extras.report.test_compare import write_run
from tests.extras.report.test_page import STRANGE, Parsed
from tests.ranks import Ranks, call_main
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.cli import parse
from unet_ddp.commands.evaluate import EvaluateConfig
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.pairs import Pair
from unet_ddp.data.splits import split_pairs
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.extras.report import command as module
from unet_ddp.extras.report.command import main

FLAGS = ["--width", "2", "--epochs", "2", "--batch-size", "1", "--workers", "0", "--lr", "0.01"]


@pytest.fixture(scope="module")
def trained(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a strange name among its validation images."""
    folder = make_set(tmp_path_factory.mktemp("run"), 5)
    make_pair(folder, STRANGE)
    argv = [*data_flags(folder), *FLAGS, "--validation", "90", "--group-pattern", "(ax|bx)"]
    status, out, err = ranks.run(1, call_main, "train", argv, str(folder))[0]
    assert (status, err) == (0, "")
    assert "checkpoints/report.html" in out and "checkpoints/samples.png" in out
    return folder


def test_a_page_written_again_has_the_same_bytes(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained)
    path = trained / "checkpoints" / "report.html"
    before = path.read_bytes()
    page = Parsed(before.decode())
    assert (
        STRANGE in page.texts_of("h3") and len([a for a in page.all("svg") if "viewbox" in a]) == 5
    )
    for argv in ([], ["checkpoints"], ["checkpoints/best.pt"]):
        path.unlink()
        assert main(argv) == 0
        assert capsys.readouterr().out == "wrote checkpoints/report.html\n"
        assert path.read_bytes() == before


def copy_without_images(trained: Path, place: Path, *, names: str | None = "nowhere") -> Path:
    """A copy of the run's folder on another machine: with its page, and without best.pt if no images are named."""
    shutil.copytree(trained / "checkpoints", place)
    best = place / "best.pt"
    content = checkpoint.load(best)
    content["config"]["images"] = names
    best.unlink()
    if names is not None:
        checkpoint.save(best, content)
    return place


def test_a_run_whose_images_are_gone_has_a_page_of_its_curves(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And may have it again: it loses nothing."""
    moved = copy_without_images(trained, tmp_path / "moved")
    (moved / "report.html").unlink()
    for _ in range(2):
        assert main([str(moved)]) == 0
        out = capsys.readouterr().out
        assert out.startswith("warning: no scores and images: ") and "nowhere" in out
        page = Parsed((moved / "report.html").read_text(encoding="utf-8"))
        assert len([a for a in page.all("svg") if "viewbox" in a]) == 3 and not page.all("img")
        assert any("nowhere" in text for text in page.texts_of("p"))


def test_a_folder_in_the_place_of_the_page_is_named(trained: Path, tmp_path: Path) -> None:
    moved = copy_without_images(trained, tmp_path / "moved")
    (moved / "report.html").unlink()
    (moved / "report.html").mkdir()
    with pytest.raises(UserError, match=r"report\.html: "):
        main([str(moved)])


@pytest.mark.parametrize("names", ["nowhere", None], ids=["images", "best.pt"])
def test_a_full_page_is_not_replaced_by_one_without_scores_and_images(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], names: str | None
) -> None:
    """The advice can be typed: the command has these flags, and the folder is quoted."""
    moved = copy_without_images(trained, tmp_path / "my run", names=names)
    before = (moved / "report.html").read_bytes()
    assert b"<img" in before
    with pytest.raises(UserError) as caught:
        main([str(moved)])
    text = str(caught.value)
    assert text.startswith(f"{moved}/report.html: kept, as a new one would have no scores and")
    assert (moved / "report.html").read_bytes() == before and capsys.readouterr().out == ""
    if names is not None:
        assert text.count("--images") == text.count("nowhere: not found") == 1
        command = re.search(r"python -m unet_ddp evaluate (.*?);", text)
        assert command is not None
        argv = shlex.split(command[1])
        assert parse(EvaluateConfig, argv, prog="evaluate").model == str(moved)


@pytest.mark.parametrize("given", [True, False])
def test_the_network_is_scored_on_the_validation_images_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: bool
) -> None:
    """Of the newest run, if none is given; it may have no metrics."""
    monkeypatch.chdir(make_set(tmp_path, 10))
    folder = Path("checkpoints", "one")
    write_run(folder, [], images="imgs", masks="masks", validation=30.0, seed=5)
    (folder / "metrics.csv").unlink()
    written = []

    def write(
        folder: Path, pairs: Sequence[Pair], world: World, *, notes: list[str], **how: object
    ) -> Path:
        assert how == {"rare": [], "network": None}
        written.append((folder, [pair.name for pair in pairs], world.device.type, notes))
        return folder / "report.html"

    monkeypatch.setattr(module, "write_report", write)
    assert main([str(folder)] * given) == 0
    expected = split_pairs(find_pairs(Path("imgs"), Path("masks")), validation=30, seed=5)
    names = [pair.name for pair in expected.validation]
    assert written == [(folder, names, "cpu", [])] and len(names) == 3
    assert capsys.readouterr().out == f"wrote {folder}/report.html\n"
    best, mask = folder / "best.pt", Path("masks", f"{names[0]}.png")
    Image.new("L", (32, 24), 7).save(mask)  # a class that the run had not
    pairs, rare, (note,) = module.find_validation(best)
    assert not rare
    assert not pairs and note.startswith(
        f"no scores and images: {best}: the data of its run can't be read ("
    )
    assert "7" in note


def test_a_checkpoint_that_does_not_describe_its_network_is_named(tmp_path: Path) -> None:
    best = tmp_path / "best.pt"
    torch.save({"outc.conv.weight": torch.ones(3)}, best)
    with pytest.raises(UserError, match=f"^{best}: neither a checkpoint of ours nor"):
        module.find_validation(best)


def test_a_folder_with_metrics_alone_has_a_page_and_one_without_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"best\.pt and metrics\.csv not found"):
        main([str(tmp_path)])
    (tmp_path / "metrics.csv").write_text("epoch,loss\n1,0.5\n", encoding="utf-8")
    assert main([str(tmp_path)]) == 0
    best = tmp_path / "best.pt"
    assert capsys.readouterr().out == (
        f"warning: no scores and images: {best} not found\nwrote {tmp_path / 'report.html'}\n"
    )


def test_a_run_without_validation_has_a_report_of_its_curves(ranks: Ranks, tmp_path: Path) -> None:
    make_set(tmp_path, 4)
    argv = [*data_flags(tmp_path), *FLAGS, "--validation", "0"]
    assert ranks.run(1, call_main, "train", argv, str(tmp_path))[0][0] == 0
    page = Parsed((tmp_path / "checkpoints" / "report.html").read_text(encoding="utf-8"))
    assert len([a for a in page.all("svg") if "viewbox" in a]) == 2 and not page.all("img")
