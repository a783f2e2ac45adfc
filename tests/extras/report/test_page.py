"""The page: its parts, what is left out, and names with any characters."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from tests.browser import dump_page, open_browser
from tests.evaluation.examples import example_evaluation
from unet_ddp.data.labels import Labels
from unet_ddp.evaluation.boundary import BoundaryCounts
from unet_ddp.evaluation.results import ImageRecord
from unet_ddp.extras.report.gallery import Picture, draw_layer
from unet_ddp.extras.report.page import Page, render

STRANGE = "<b>&'\""
VOID = {"meta", "img", "input"}
URI = "data:image/png;base64,AA"
PICTURES = [
    Picture(STRANGE, 0.25, f"caption {STRANGE}", URI, 30, 20, {"truth": URI, "difference": URI}),
    Picture("good", float("nan"), "caption", URI, 30, 20, {"truth": URI}),
]
ROWS = [{"epoch": str(k), "loss": str(1 / k), "learning_rate": "0.1"} for k in (1, 2)]


class Parsed(HTMLParser):
    """Tags and texts of a page in which all that is opened must be closed."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.texts.append((self.open[-1], " ".join(data.split())))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    def texts_of(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


def full_page(labels: Labels | None = None) -> Parsed:
    return Parsed(
        render(
            Page(
                title=f"run {STRANGE}",
                facts=[("Dice", "0.6667"), (STRANGE, STRANGE)],
                evaluation=example_evaluation(labels),
                pictures=PICTURES,
                history=ROWS,
                settings={"epochs": 2, "encoder": None, "masks": STRANGE},
                notes=[f"note {STRANGE}"],
            )
        )
    )


@pytest.fixture(scope="module")
def page() -> Parsed:
    return full_page()


def test_a_page_has_all_its_parts_in_order(page: Parsed) -> None:
    titles = [
        "Worst images first", "Scores", "Epochs", "Probabilities", "Confusion", "Configuration",
    ]  # fmt: skip
    assert page.texts_of("h2") == titles
    assert [attrs.get("id") for attrs in page.all("section")] == [
        "worst", "scores", "epochs", "probabilities", "confusion", "configuration",
    ]  # fmt: skip
    assert len([attrs for attrs in page.all("svg") if "viewbox" in attrs]) == 4
    assert page.texts_of("summary") == ["All 2 by name"]
    assert "note <b>&'\"" in page.texts_of("p")
    assert page.texts_of("footer")[0].startswith("unet_ddp ")


def test_empty_parts_are_left_out() -> None:
    page = Parsed(render(Page(title="run")))
    assert not page.all("section") and not page.all("svg") and not page.all("p")
    assert page.all("html")[0]["style"] == "--opacity:50%"
    curves = Parsed(render(Page(title="run", history=ROWS)))
    assert curves.texts_of("h2") == ["Epochs"]
    assert curves.texts_of("h3") == ["Loss", "Learning rate at the epoch's end"]


def test_the_policy_admits_the_page_s_own_script_and_style_alone(page: Parsed) -> None:
    (policy,) = [
        str(attrs["content"])
        for attrs in page.all("meta")
        if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert (allowed["default-src"], allowed["img-src"]) == ("'none'", "data:")
    assert allowed["base-uri"] == allowed["form-action"] == "'none'"
    assert "unsafe-inline" not in allowed["script-src"] + allowed["style-src"]
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", page.source, re.DOTALL)  # no chart's
        assert allowed[f"{tag}-src"] == f"'{integrity(text)}'"
    assert page.source.index("Content-Security-Policy") < page.source.index("<style")


def integrity(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_it_needs_no_other_file(page: Parsed) -> None:
    for _, attrs in page.tags:
        for name in ("src", "href", "xlink:href"):
            if attrs.get(name):
                assert str(attrs[name]).startswith(("data:", "#")), attrs
    assert not re.search(r"https?://|@import", page.source)
    assert "prefers-color-scheme: dark" in page.source and "ArrowRight" in page.source


def test_names_are_escaped() -> None:
    page = full_page(Labels((0, 255), names=(STRANGE, "car")))
    assert (
        page.texts_of("h1") == [f"run {STRANGE}"] and page.texts_of("title")[0] == f"run {STRANGE}"
    )
    assert STRANGE in page.texts_of("h3") and STRANGE in page.texts_of("dt")
    assert page.texts_of("th").count(STRANGE) == 3  # scores, and twice in the confusion matrix
    assert page.source.count("<script") == 1
    assert [tag for tag, _ in page.tags if tag == "b"] == ["b"] * len(page.all("a"))


def test_pictures_lie_over_their_photos(page: Parsed) -> None:
    first, second = (attrs for attrs in page.all("li") if attrs.get("class") == "card")
    assert first["style"] == f"--photo:url({URI})"
    assert (first["id"], second["id"]) == ("image-1", "image-2")
    images = page.all("img")
    assert [image["alt"] for image in images] == [
        f"truth of {STRANGE}", f"difference of {STRANGE}", "truth of good",
    ]  # fmt: skip
    assert (images[0]["width"], images[0]["height"], images[0]["src"]) == ("30", "20", URI)
    switches = {str(attrs["id"]): "checked" in attrs for attrs in page.all("input")}
    assert switches == {"masks": True, "photos": True, "outlines": False, "opacity": False}
    assert page.texts_of("output") == ["1 of 2"] and page.texts_of("a") == ["0.2500", "-"]
    styles = [str(attrs.get("style")) for attrs in page.all("i")]
    assert "background:rgb(0, 255, 150)" in styles
    assert all({"in2", "operator"} <= attrs.keys() for attrs in page.all("fecomposite"))


def test_scores_and_confusion(page: Parsed) -> None:
    cells = page.texts_of("td")
    assert cells[:6] == ["0.8696", "0.7692", "0.9091", "0.8333", "-", "0.7500"]
    assert cells[6:12] == ["0.6667", "0.5000", "0.6000", "0.7500", "0.6667", "0.2500"]
    assert cells[12:16] == ["83.3%", "16.7%", "25.0%", "75.0%"]
    heat = [attrs for attrs in page.all("td") if attrs.get("class") == "heat"]
    assert [attrs["style"] for attrs in heat] == [
        "--share:0.458", "--share:0.092", "--share:0.138", "--share:0.413",
    ]  # fmt: skip
    assert heat[1]["title"] == "2 pixels of 0 predicted as 255"
    assert cells[16:] == ["2", STRANGE]  # the settings, without those that are None
    text = " ".join(page.texts_of("p"))
    assert "Over 2 images at the images' own size; foreground from probability 0.250 on." in text
    assert "error 0.1331. Dice 0.8571 at threshold 0.5; at best 0.8571, at 0.500." in text


def test_a_class_without_pixels_and_the_networks_scale() -> None:
    table = np.array([[4, 0], [0, 0]])
    records = [ImageRecord("a", 0, table, [BoundaryCounts()] * 2)]
    evaluation = replace(example_evaluation(threshold=None), records=records, full_size=False)
    page = Parsed(render(Page(title="run", evaluation=evaluation)))
    assert page.texts_of("td")[-4:] == ["100.0%", "0.0%", "-", "-"]
    assert any("at the network's scale; the most probable class" in t for t in page.texts_of("p"))


def test_many_classes_are_referred_to_confusion_csv() -> None:
    for count in (40, 41):
        table = np.eye(count, dtype=np.int64)
        records = [ImageRecord("a", 0, table, [BoundaryCounts()] * count)]
        evaluation = replace(
            example_evaluation(Labels(tuple(range(count)))), records=records, as_trained=table
        )
        page = Parsed(render(Page(title="run", evaluation=evaluation)))
        assert ("confusion.csv" in page.source) == (count == 41)
        assert (
            len([a for a in page.all("td") if a.get("class") == "heat"]) == (1600, 0)[count == 41]
        )


@pytest.mark.processes
def test_the_keyboard_and_the_controls_in_a_browser(tmp_path: Path) -> None:
    pictures = [PICTURES[0], *PICTURES]
    source = render(Page(title="run", evaluation=example_evaluation(), pictures=pictures))
    keys = ["ArrowRight", "ArrowRight", "ArrowLeft", "m", "o"]
    event = "new KeyboardEvent('keydown', {key: 'KEY', bubbles: true})"
    script = "".join(f"document.body.dispatchEvent({event.replace('KEY', k)});" for k in keys)
    script += """
    const slider = document.getElementById("opacity"), image = document.querySelector(".photo img");
    slider.value = 80;
    slider.dispatchEvent(new Event("input", {bubbles: true}));
    slider.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
    const style = getComputedStyle(image);
    document.body.dataset.seen = [style.visibility, style.opacity, style.filter].join();
    """
    file = tmp_path / "page.html"
    foreign = "document.body.dataset.foreign = 1"  # a script that the policy does not name
    source = source.replace("script-src ", f"script-src '{integrity(script)}' ")
    scripts = f"<script>{script}</script><script>{foreign}</script></body>"
    file.write_text(source.replace("</body>", scripts))
    dom = dump_page(file, tmp_path / "profile")
    assert '<output id="position">2 of 3</output>' in dom
    assert re.findall(r'<li class="card current" id="([^"]*)"', dom) == ["image-2"]
    seen = 'data-seen="hidden,0.8,url(&quot;#edges&quot;)"'
    assert f'<body class="bare outlined" {seen}>' in dom


@pytest.mark.thorough
@pytest.mark.processes
def test_outlines_are_where_classes_meet(tmp_path: Path) -> None:
    """On a square over the photo, and on two classes that cover it."""
    square, halves = np.zeros((60, 60), np.uint8), np.zeros((60, 60), np.uint8)
    square[20:40, 20:40] = halves[:, 30:] = 1
    layers = {
        "square": draw_layer(square, {1: (0, 255, 150)}),
        "halves": draw_layer(halves, {0: (192, 0, 0), 1: (0, 128, 0)}),  # nearly of one lightness
    }
    page = Page("run", evaluation=example_evaluation(),
                pictures=[Picture("a", 0.5, "", URI, 60, 60, layers)])  # fmt: skip
    (tmp_path / "page.html").write_text(render(page))
    address = (tmp_path / "page.html").as_uri()
    with open_browser(tmp_path, address, "--window-size=1200,1200") as browser:
        browser.click("//input[@id='photos']")
        for name, inside, meeting in (("square", [30], [20, 40]), ("halves", [15, 45], [30])):
            path = f"//div[@class='photo'][img[@alt='{name} of a']]"
            filled = browser.picture(path)
            browser.click("//input[@id='outlines']")
            lines = browser.picture(path)
            browser.click("//input[@id='outlines']")
            row, scale = len(filled) // 2, len(filled) / 60
            assert all(filled[row, round(k * scale)].any() for k in inside)
            assert not any(lines[row, round(k * scale)].any() for k in inside)
            found = np.flatnonzero(lines[row].any(axis=1)) / scale
            found = found[(found > 1) & (found < 59)]  # but for the image's own edge
            distances = np.abs(found[:, None] - np.array(meeting))
            assert (distances.min(axis=1) < 1).all() and (distances.min(axis=0) < 1).all()
