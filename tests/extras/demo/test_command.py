"""The page to try a network on: its work, and itself in a browser."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import numpy as np
import pytest
from PIL import Image

from tests.browser import Browser, find_program, open_browser
from tests.evaluation.examples import grey_predictor
from tests.prediction.models import write_model, write_photo
from tests.prediction.test_predict import run as run_predict
from tests.ranks import ROOT
from unet_ddp import Predictor
from unet_ddp.__main__ import main
from unet_ddp.data.drawing import TINT
from unet_ddp.data.labels import Labels
from unet_ddp.errors import how_to_install
from unet_ddp.extras.demo import command as module
from unet_ddp.extras.demo.command import build_page, show, try_image
from unet_ddp.extras.objects.borders import CLASS_NAMES
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.report.page import open_template

CAR = Labels((0, 255), names=("road", "<car>"))
PARTS: Any = open_template("overlay.html.jinja").module
GRADIO = SimpleNamespace(DownloadButton=lambda **button: button, Error=None)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "best.pt", CAR, threshold=0.5002)
    return tmp_path


def look(predictor: Predictor, tried: Any, threshold: float) -> tuple[str, Path]:
    html, button = show(GRADIO, predictor, PARTS, [tried], 0, threshold)
    return html, Path(button["value"])


def ignore(*args: Any, **options: Any) -> None:
    pass


@pytest.mark.parametrize("tile", [None, 32])
def test_the_mask_is_that_of_predict_at_any_threshold_by_one_run(
    here: Path, tile: int | None
) -> None:
    photo = write_photo(here / "a.png", (141, 167))
    predictor = Predictor.from_checkpoint("best.pt", tile=tile)
    progress: list[Any] = []
    tried = try_image(predictor, photo, lambda *args, **options: progress.append((*args, options)))
    count = (
        5 * 4 if tile else 1
    )  # at half its size, 83x70: windows of 32 begin at 0, 16, 32, 48, 52
    assert progress == [
        ((n, count), {"desc": "a.png", "unit": "windows"}) for n in range(count)
    ]  # fmt: skip
    flags, shares = ["--tile", "32"] if tile else [], []
    for threshold in (0.5, 0.499, 0.501, 0.5):  # the first is the checkpoint's, rounded
        html, mask = look(predictor, tried, threshold)
        given = [] if threshold == 0.5 else ["-t", str(threshold)]
        assert run_predict("a.png", "-m", "best.pt", *flags, *given, "--overwrite") == 0
        assert mask.name == "a_mask.png"
        assert mask.read_bytes() == (here / "a_mask.png").read_bytes()
        shares.append(float((np.asarray(Image.open(mask)) > 0).mean()))
        assert f"&lt;car&gt; {shares[-1]:.1%}" in html
    assert 1 > shares[1] > shares[0] == shares[3] > shares[2] > 0
    assert len(progress) == count


def layers(html: str) -> list[np.ndarray]:
    """Colours of the mask's pictures (H, W, 4): over the photo, and alone."""
    uris = re.findall(r'<img src="data:image/png;base64,([^"]*)"', html)
    images = [Image.open(io.BytesIO(base64.b64decode(uri))) for uri in uris]
    return [np.asarray(image.convert("RGBA")) for image in images]


@pytest.mark.parametrize(
    ("labels", "colours", "rows"),
    [
        (Labels((0, 255)), {"1": TINT}, ["00000000", "01100110", "01100110", "00000000"]),
        (
            Labels((0, 1, 2), palette=((9, 9, 9), (200, 0, 0), (0, 0, 250))),
            {"0": (9, 9, 9), "1": (200, 0, 0), "2": (0, 0, 250)},
            ["00000000", "01122110", "01122110", "00000000"],
        ),
        (  # outlines
            ObjectLabels((0, 1, 2), names=CLASS_NAMES, separation=(0.6, 0.5)),
            {"1": TINT},
            ["0000000000", "0111111110", "0100110010", "0111111110", "0000000000"],
        ),
    ],
    ids=["two", "three", "objects"],
)
def test_the_pictures_show_the_classes_in_their_colours(
    tmp_path: Path, labels: Labels, colours: dict[str, tuple[int, int, int]], rows: list[str]
) -> None:
    image = np.zeros((len(rows), len(rows[0])), np.uint8)
    image[1:-1, 1:-1] = 255
    middle = image.shape[1] // 2
    image[:, middle - 1 : middle + 1] //= 2  # a third class, or two objects
    Image.fromarray(image).save(tmp_path / "a.png")
    predictor = grey_predictor(labels)
    html, mask = look(predictor, try_image(predictor, tmp_path / "a.png", ignore), 0.5)
    expected = [[(*colours[k], 255) if k in colours else None for k in row] for row in rows]
    for picture in layers(html):
        assert [[tuple(p) if p[3] else None for p in row] for row in picture.tolist()] == expected
    assert np.array_equal(np.asarray(Image.open(mask)), predictor(tmp_path / "a.png").to_image())


def test_a_bad_file_is_predict_s_line_and_the_others_are_shown(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = write_photo(here / "good.png"), here / "<b>ad\n.png"
    bad.write_bytes(good.read_bytes()[:60])
    gradio: Any = MagicMock()
    build_page(gradio, Predictor.from_checkpoint("best.pt"))
    predict = gradio.File().change.call_args.args[0]
    (tried,), lines, *_ = predict([str(bad), str(good)], 0.5, ignore)
    assert tried[0].image == good
    assert gradio.Dropdown.call_args.args == ([("good.png", 0)],)
    assert capsys.readouterr() == ("", "")
    assert run_predict(bad.name, "-m", "best.pt") == 2
    line = capsys.readouterr().err
    assert line.startswith("error: <b>ad\\n.png: ") and line.count("\n") == 1
    assert lines.strip() == f"<p>{escape(line.strip())}</p>"
    assert predict(None, 0.5, ignore)[:2] == [[], ""]


@pytest.mark.parametrize(
    ("labels", "threshold", "shown"),
    [(CAR, 0.7004, 0.7), (CAR, None, 0.5), (Labels((0, 1, 2)), None, 0.5)],
)
def test_a_slider_changes_the_threshold_of_two_classes(
    here: Path, labels: Labels, threshold: float | None, shown: float
) -> None:
    gradio: Any = MagicMock()
    write_model(here / "best.pt", labels, threshold=threshold)
    build_page(gradio, Predictor.from_checkpoint("best.pt"))
    (slider,) = gradio.Slider.call_args_list
    assert slider == call(
        0.001, 0.999, shown, step=0.001, interactive=True,
        label=f"Threshold of {labels.class_names[1]}", visible=labels is CAR,
    )  # fmt: skip


def test_the_page_shows_the_image_that_is_chosen_at_its_threshold(here: Path) -> None:
    """The first, until the choice or the threshold is another; of many changes the last counts."""
    gradio: Any = MagicMock()
    predictor = Predictor.from_checkpoint("best.pt")
    _, picture, errors = gradio.HTML.side_effect = [MagicMock() for _ in range(3)]
    assert build_page(gradio, predictor) is gradio.Blocks().__enter__()
    ((panel_html,), panel_options), *_ = gradio.HTML.call_args_list
    assert "&lt;car&gt;" in panel_html and "<script>" in panel_options["head"]
    for made, expected in (
        (gradio.File, call(label="Images", file_count="multiple", height=160)),
        (gradio.Dropdown, call(label="Image", visible=False, interactive=True)),
        (gradio.DownloadButton, call("Download the mask", interactive=False)),
    ):
        assert made.call_args_list == [expected]
    tried, chosen, threshold = gradio.State(), gradio.Dropdown(), gradio.Slider()
    files, drawn = gradio.File(), [picture, gradio.DownloadButton()]
    predict, *ends = files.change.call_args.args
    assert ends == [[files, threshold], [tried, errors, chosen, *drawn]]
    assert files.change.call_args.kwargs == {"show_progress_on": picture}
    (triggers, update, *ends), options = gradio.on.call_args
    assert triggers == [chosen.input, threshold.input] and options == {
        "trigger_mode": "always_last"
    }
    assert ends == [[tried, chosen, threshold], drawn]

    photos = [str(write_photo(here / name)) for name in ("a.png", "bb.png")]
    found, said, _, html, _ = predict(photos, 0.499, ignore)
    assert [files.image.name for files, _, _ in found] == ["a.png", "bb.png"] and not said.strip()
    names = [("a.png", 0), ("bb.png", 1)]
    assert gradio.Dropdown.call_args == call(names, value=0, visible=True)
    shown = [update(found, *which)[0] for which in ((0, 0.499), (1, 0.499), (0, 0.501))]
    assert html == shown[0] and len({*shown}) == 3
    predict(photos[:1], 0.5, ignore)
    assert gradio.Dropdown.call_args == call([("a.png", 0)], value=0, visible=False)


def test_the_help_says_that_a_model_need_not_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    assert "demo [-h] [FILE ...]" in capsys.readouterr().out


def test_without_an_image_there_is_nothing_to_download() -> None:
    predictor = grey_predictor(CAR)
    assert show(GRADIO, predictor, PARTS, [], 0, 0.5) == ["", {"interactive": False}]


def test_a_mask_that_can_t_be_written_is_an_error_of_the_page(here: Path) -> None:
    predictor = Predictor.from_checkpoint("best.pt")
    tried = try_image(predictor, write_photo(here / "a.png"), ignore)
    (here / "0.25").touch()  # in the way
    gradio = SimpleNamespace(Error=MagicMock(side_effect=RuntimeError))
    with pytest.raises(RuntimeError):
        show(gradio, predictor, PARTS, [tried], 0, 0.25)
    (said,), options = gradio.Error.call_args
    assert "0.25" in said and "can't be written" in said and options == {"print_exception": False}


def test_the_page_is_served_to_this_computer_alone(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It asks no other for fonts or counts, and its files end with it."""
    for name in ("GRADIO_ANALYTICS_ENABLED", "GRADIO_TEMP_DIR"):
        monkeypatch.setenv(name, "")
    gradio, page, folders = MagicMock(), MagicMock(), []

    def launch(**options: Any) -> Any:
        folders.append(Path(os.environ["GRADIO_TEMP_DIR"]))
        assert folders[0].is_dir() and os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
        assert options == {
            "server_name": "127.0.0.1", "share": False, "quiet": True, "prevent_thread_lock": True,
            "ssr_mode": False, "footer_links": [], "run_history": False,
            "theme": gradio.themes.Default(),
        }  # fmt: skip
        return None, "http://127.0.0.1:7860/", None

    page.launch = launch
    page.block_thread = lambda: folders.append(capsys.readouterr().out)
    monkeypatch.setitem(sys.modules, "gradio", gradio)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(module, "build_page", lambda given, predictor: given is gradio and page)
    for argv in (["best.pt"], ["best.pt", "best.pt"]):
        folders.clear()
        assert main(["demo", *argv]) == 0
        assert folders[1] == f"{', '.join(argv)}: on http://127.0.0.1:7860/ until Ctrl-C\n"
        assert not folders[0].exists()
    assert gradio.themes.Default.call_args_list[0] == call(
        font=["system-ui"], font_mono=["monospace"]
    )


def test_without_gradio_a_line_says_how_to_install_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["demo", "best.pt"]) == 2
    assert capsys.readouterr().err == (
        f"error: demo: needs gradio, which is not installed; {how_to_install('demo')}\n"
    )


def answer(browser: Browser, change: str) -> str:
    """Make a change, and return the mask's picture as soon as it is another one."""
    source = "document.querySelector('.photo img')?.src"
    browser.run(f"window.before = {source}; {change}")
    return str(browser.wait_for(f"{source} !== window.before && {source}"))


def download(browser: Browser, folder: Path) -> bytes:
    """Click the button, once the page has settled, and return the file that arrives."""
    button = (
        "[...document.querySelectorAll('button')].find(b => b.innerText == 'Download the mask')"
    )
    browser.wait_for(f"!{button}.disabled")
    for _ in range(2):
        browser.run("return new Promise(requestAnimationFrame)")
    browser.click("//button[contains(., 'Download the mask')]")
    file, deadline = folder / "a_mask.png", time.monotonic() + 30
    while not file.exists() and time.monotonic() < deadline:
        browser.run("return new Promise(done => setTimeout(done, 20))")
    data = file.read_bytes()
    file.unlink()
    return data


PROGRAM = """
import sys

def report(event, args):
    if event in ("socket.connect", "socket.getaddrinfo"):
        host = args[1][0] if event == "socket.connect" else args[0]
        if host not in ("127.0.0.1", "localhost", None):
            print(event, host, file=sys.stderr)

sys.addaudithook(report)
from unet_ddp.__main__ import main
sys.exit(main(["demo", "best.pt"]))
"""


@contextmanager
def serve(here: Path) -> Iterator[str]:
    """Yield the address of the page, whose program must say nothing else and ask no other machine."""
    (here / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(here / "temporary"), "PYTHONPATH": str(ROOT)}
    argv, pipe = [sys.executable, "-c", PROGRAM], subprocess.PIPE
    process = subprocess.Popen(argv, env=environment, stdout=pipe, stderr=pipe, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.fullmatch(r"best\.pt: on (http://127\.0\.0\.1:\d+/) until Ctrl-C\n", said)
        assert found is not None, said or process.communicate()
        yield found[1]
        process.terminate()
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 128 + signal.SIGTERM
        assert not list((here / "temporary").iterdir())
    finally:
        process.kill()
        process.communicate()


@pytest.mark.thorough
@pytest.mark.processes
def test_the_page_in_a_browser(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gradio", reason="the extra demo is not installed")
    find_program("chromedriver")
    photo, bad = write_photo(here / "a.png", (141, 167)), here / "bad.png"
    bad.write_bytes(photo.read_bytes()[:60])
    assert run_predict("bad.png", "-m", "best.pt") == 2
    line = capsys.readouterr().err.strip()
    with serve(here) as address, open_browser(here / "got", address) as browser:
        browser.wait_for("document.querySelector('input[type=file]')")
        try_the_page(browser, here, line)
        found = browser.run("return performance.getEntries().map(entry => entry.name)")
        assert not [name for name in found if "://" in name and not name.startswith(address)]


def try_the_page(browser: Browser, here: Path, line: str) -> None:
    """Drop an image and a bad file, and change the threshold; `line` is predict.py's error."""
    browser.type_into("//input[@type='file']", str(here / "a.png"))
    first = str(browser.wait_for("document.querySelector('.photo img')?.src"))
    masks = [download(browser, here / "got")]
    over = "(//div[@class='photo'])[1]"
    pictures = [browser.picture(over)]
    for switch in ("outlines", "outlines", "masks", "photos"):
        browser.click(f"//input[@id='{switch}']")
        pictures.append(browser.picture(over))
    assert np.array_equal(pictures[0], pictures[2])
    assert not np.array_equal(pictures[0], pictures[1])
    assert not np.array_equal(pictures[0], pictures[3]) and pictures[3].any()
    assert not pictures[4].any()  # neither
    browser.click("//input[@id='masks']")
    slider = "document.querySelector('input[type=range]:not(#opacity)')"
    event = "new Event('input', {bubbles: true})"
    second = answer(browser, f"{slider}.value = 0.501; {slider}.dispatchEvent({event})")
    assert layers(f'<img src="{second}"')[0].sum() < layers(f'<img src="{first}"')[0].sum()
    masks.append(download(browser, here / "got"))
    for mask, flags in zip(masks, ([], ["-t", "0.501"]), strict=True):
        assert run_predict("a.png", "-m", "best.pt", "--overwrite", *flags) == 0
        assert mask == (here / "a_mask.png").read_bytes()
    assert masks[0] != masks[1]
    browser.type_into("//input[@type='file']", str(here / "bad.png"))
    browser.wait_for(f"document.body.innerText.includes({json.dumps(line)})")
    assert browser.run("return document.querySelectorAll('.photo img').length") == 2
