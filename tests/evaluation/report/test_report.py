"""report.html: one file that needs nothing beside it."""

from __future__ import annotations

import base64
import io
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import data_flags, make_pair, make_set
from tests.ranks import Ranks, call_main
from unet_ddp.data.labels import IGNORE_ID
from unet_ddp.evaluation.report.charts import Series, line_chart, ticks
from unet_ddp.evaluation.report.gallery import difference

FLAGS = ["--width", "2", "--epochs", "2", "--batch-size", "1", "--workers", "0", "--lr", "0.01"]
STRANGE = "<b>&'\""
VOID = {"meta", "img", "input", "line", "polyline", "circle"}


class Page(HTMLParser):
    """What is in a page; anything that is opened must be closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID or (tag in ("line", "circle", "polyline") and not self._closes_itself()):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.texts.append((self.open[-1], data))

    def _closes_itself(self) -> bool:
        return (self.get_starttag_text() or "").endswith("/>")

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def folder(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a strange name among its validation images, and one whose label is wrong."""
    folder = make_set(tmp_path_factory.mktemp("run"), 8)
    make_pair(folder, STRANGE)
    for number, path in enumerate(sorted((folder / "masks").iterdir())):
        mask = np.array(Image.open(path))
        mask[24 - number :] = 255  # so that even a network that has learnt nothing has worst images
        Image.fromarray(mask).save(path)
    words = [*data_flags(folder), *FLAGS, "--validation", "90", "--group-pattern", "(ax|bx)"]
    status, out, err = ranks.run(1, call_main, "train", words, str(folder))[0]
    assert (status, err) == (0, "")
    assert "checkpoints/report.html" in out and "checkpoints/samples.png" in out
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page(folder / "checkpoints" / "report.html")


def test_it_needs_nothing_beside_it(page: Page) -> None:
    for _, attrs in page.tags:
        for name in ("src", "href"):
            if attrs.get(name):
                assert str(attrs[name]).startswith(("data:", "#")), attrs
    assert not re.search(r"https?://|@import", page.source)
    assert len(page.source) < 2_000_000


def test_names_are_escaped(page: Page) -> None:
    assert ("h3", STRANGE) in page.texts
    assert not page.all("script")[0] and page.source.count("<script") == 1
    assert [tag for tag, _ in page.tags if tag == "b"] == ["b"] * len(page.all("a"))


def test_the_worst_image_stands_first(page: Page) -> None:
    dice = [float(found) for found in re.findall(r"<p>Dice ([\d.]+), IoU", page.source)]
    assert len(dice) == len([1 for attrs in page.all("li") if attrs.get("class") == "card"]) >= 7
    assert dice == sorted(dice) and dice[0] < dice[-1]


def test_it_shows_what_a_run_has(page: Page) -> None:
    text = " ".join(data for _, data in page.texts)
    for words in ("Loss", "Learning rate", "Scores by threshold", "Calibration", "Confusion",
                  "boundary F", "batch_size", "false positive", "validation Dice", "255"):  # fmt: skip
        assert words in text, words
    assert len(page.all("svg")) == 5


def test_pictures_lie_over_their_photographs(page: Page, folder: Path) -> None:
    image = page.all("img")[0]
    layer = decoded(str(image["src"]))
    photo = decoded(re.findall(r"--photo:url\((data:[^)]*)\)", page.source)[0])
    assert layer.size == photo.size == (int(str(image["width"])), int(str(image["height"])))
    name = next(data for tag, data in page.texts if tag == "h3")
    truth = np.asarray(Image.open(folder / "masks" / f"{name}.png")) == 255
    opacity = np.asarray(layer.convert("RGBA"))[..., 3]
    assert ((opacity > 0) == truth).all()  # at scale 1 and below 640 pixels nothing is reduced


def decoded(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))


def test_differences() -> None:
    truth = np.array([[0, 0, 1, 1, IGNORE_ID]], np.uint8)
    predicted = np.array([[0, 1, 0, 1, 1]], np.uint8)
    assert difference(truth, predicted, 2).tolist() == [[0, 1, 2, 0, IGNORE_ID]]
    assert difference(truth, predicted, 3).tolist() == [[0, 1, 1, 0, IGNORE_ID]]


def test_charts() -> None:
    assert ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(1, 4, least=1) == [1, 2, 3, 4]
    assert ticks(0.00093, 0.0041) == [0.001, 0.002, 0.003, 0.004]
    assert line_chart("empty", [Series("a", [(1, float("nan"))])], across="x") == ""
    one = line_chart("one <point>", [Series("a&b", [(1, 0.5)])], across="x")
    assert "a&amp;b" in one and "one &lt;point&gt;" in one and "nan" not in one


def test_report_writes_it_anew(ranks: Ranks, folder: Path) -> None:
    path = folder / "checkpoints" / "report.html"
    before = path.read_bytes()
    path.unlink()
    status, out, err = ranks.run(1, call_main, "unet_ddp.__main__", ["report"], str(folder))[0]
    assert (status, err) == (0, "") and "report.html" in out
    assert path.read_bytes() == before


def test_report_of_a_run_whose_images_are_gone(ranks: Ranks, folder: Path, tmp_path: Path) -> None:
    from unet_ddp.runs import checkpoint

    shutil.copytree(folder / "checkpoints", tmp_path / "moved")
    content = checkpoint.load(tmp_path / "moved" / "best.pt")
    content["config"]["images"] = "nowhere"
    checkpoint.save(tmp_path / "moved" / "best.pt", content)
    words = ["report", "moved"]
    status, out, err = ranks.run(1, call_main, "unet_ddp.__main__", words, str(tmp_path))[0]
    assert (status, err) == (0, "")
    assert "warning: no scores and images" in out and "nowhere" in out
    page = Page(tmp_path / "moved" / "report.html")
    assert len(page.all("svg")) == 3 and not page.all("img")
    status, _, err = ranks.run(1, call_main, "unet_ddp.__main__", ["report", "imgs"], str(folder))[
        0
    ]
    assert status == 2 and err.startswith("error: imgs: holds no run")


def test_a_report_that_cannot_be_written_does_not_fail_the_run(
    ranks: Ranks, tmp_path: Path
) -> None:
    make_set(tmp_path, 5)
    words = [*data_flags(tmp_path), *FLAGS]
    assert ranks.run(2, call_main, "train", [*words, "--max-steps", "1"], str(tmp_path))[0][0] == 0
    (tmp_path / "checkpoints" / "report.html").mkdir()  # in the way
    outcomes = ranks.run(2, call_main, "train", ["--resume", "--workers", "0"], str(tmp_path))
    assert [(status, err) for status, _, err in outcomes] == [(0, "")] * 2
    warnings = [line for line in outcomes[0][1].splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1 and "report.html" in warnings[0] and outcomes[1][1] == ""


def test_a_run_without_validation_has_a_report_of_its_curves(ranks: Ranks, tmp_path: Path) -> None:
    make_set(tmp_path, 4)
    words = [*data_flags(tmp_path), *FLAGS, "--validation", "0"]
    assert ranks.run(1, call_main, "train", words, str(tmp_path))[0][0] == 0
    page = Page(tmp_path / "checkpoints" / "report.html")
    assert len(page.all("svg")) == 2 and not page.all("img")


def test_the_keyboard_in_a_browser(folder: Path, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on this machine: the page's keys are not tried")
    press = "dispatchEvent(new KeyboardEvent('keydown', {key: 'KEY', bubbles: true}))"
    keys = ["ArrowRight", "ArrowRight", "ArrowLeft", "m"]
    script = "".join(f"document.body.{press.replace('KEY', key)};" for key in keys)
    source = (folder / "checkpoints" / "report.html").read_text(encoding="utf-8")
    tried = tmp_path / "tried.html"
    tried.write_text(
        source.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8"
    )
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000",
               f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", tried.as_uri()]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    count = source.count('<li class="card"')
    assert f'<output id="position">2 of {count}</output>' in dom
    current = re.findall(r'<li class="card current" id="([^"]*)"', dom)
    assert current == ["image-2"]
    assert re.search(r'<body class="bare"', dom)
