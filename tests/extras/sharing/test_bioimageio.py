"""Packages for bioimage.io: their test passes, here and in bioimageio.core, and they predict as the checkpoint does.

bioimageio.core is in no requirement: its releases and pydantic's newest do not go together.
"""

from __future__ import annotations

import hashlib
import io
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.prediction.models import noise, write_model
from unet_ddp import Predictor
from unet_ddp.__main__ import main
from unet_ddp.data.labels import Labels
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.overlap.labels import OverlapLabels

SIZE = (60, 90)
KINDS: dict[str, tuple[Labels, dict[str, Any]]] = {
    "binary": (Labels((0, 200), names=("road", "car")), {"threshold": 0.5001}),
    "grey": (Labels((0, 7, 9)), {"channels": 1, "max_value": 65535, "scale": 1.0}),
    "names": (Labels((0, 1, 2), names=("a b", "träe", "1")), {"channels": 5, "scale": 0.3}),
    "objects": (ObjectLabels.of(("cell",)), {"scale": 1.0}),
    "overlap": (OverlapLabels((1, 2), names=("cell", "nucleus"), thresholds=(0.4, 0.6)), {}),
}
STRANGE = ("𠮷", "3", "a\n## b", "b\udce4", "None", "6 ", "6")
THOROUGH = [
    pytest.param(kind, marks=[pytest.mark.thorough] + [pytest.mark.release] * (kind != "binary"))
    for kind in KINDS
]


def draw(kind: str, seed: int = 0) -> np.ndarray:
    """Return an image (H, W, C) for a kind of network."""
    _, how = KINDS[kind]
    channels = how.get("channels", 3)
    blocks = [noise(SIZE[0] // 4, SIZE[1] // 4 + 1, seed + k) for k in range(2)]
    image = np.concatenate(blocks, 2)[..., :channels].repeat(4, 0).repeat(4, 1)[:, : SIZE[1]]
    return image.astype(np.uint16) * 257 if how.get("max_value") else image


def write_image(path: Path, image: np.ndarray) -> Path:
    import tifffile

    config = "contig" if image.shape[2] > 1 else None
    values = image if config else image[..., 0]
    tifffile.imwrite(path, values, photometric="minisblack", planarconfig=config)
    return path


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"": tmp_path_factory.mktemp("packages")}


@pytest.fixture(params=THOROUGH)
def package(
    request: pytest.FixtureRequest, packages: dict[str, Path], traced_once: None
) -> tuple[str, Path, dict[str, bytes]]:
    """Return a kind of network, its package, and what is in that."""
    for name in ("onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason="the extra onnx is not installed")
    kind, here = request.param, packages[""] / request.param
    path = here / "my net.zip"
    if not path.exists():
        labels, how = KINDS[kind]
        write_model(here / "a.pt", labels, **how)
        for folder in ("imgs", "masks"):
            (here / folder).mkdir()
        image = write_image(here / "imgs/0.tif", draw(kind))
        codes = np.zeros(SIZE, np.uint8) + labels.values[0]
        codes[20:40, 30:60] = labels.values[1]
        Image.fromarray(codes).save(here / "masks/0.png")
        argv = ["export", str(here / "a.pt"), "--bioimageio", str(path), "--license", "cc-by-4.0"]
        argv += ["--images", str(here / "imgs"), "--masks", str(here / "masks")]
        argv += ["--sample", str(image), "--authors", "Jane Doe", "Jö Roe", "--cite", "10.1234/x"]
        assert main([*argv, "--tolerance", "0.001"]) == 0
    with zipfile.ZipFile(path) as archive:
        return kind, path, {name: archive.read(name) for name in archive.namelist()}


def test_the_package_s_network_gives_the_test_s_output(package: Any) -> None:
    import onnxruntime

    kind, _, files = package
    labels, how = KINDS[kind]
    rdf = yaml.safe_load(files["rdf.yaml"])
    (taken,), (given,) = rdf["inputs"], rdf["outputs"]
    for described in (taken["test_tensor"], given["test_tensor"], rdf["weights"]["onnx"]):
        content = files[described["source"]]
        assert described["sha256"] == hashlib.sha256(content).hexdigest()
    arrays = [np.load(io.BytesIO(files[f"test_{end}.npy"])) for end in ("input", "output")]
    side = 2 * taken["axes"][2]["size"]["min"]
    channels = how.get("channels", 3)
    assert arrays[0].shape == (1, channels, side, side) and arrays[0].dtype == taken["data"]["type"]
    assert arrays[1].shape == (1, labels.num_classes, side, side)
    assert np.array_equal(arrays[0][0, :, :50, :80], draw(kind).transpose(2, 0, 1)[:, :50, :80])
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(files["model.onnx"], providers=providers)
    (name,) = (each.name for each in session.get_inputs())
    (found,) = session.run(None, {name: arrays[0]})
    assert np.allclose(found, arrays[1], atol=1e-6)
    predictor = Predictor.from_checkpoint(package[1].parent / "a.pt", device="cpu")
    other = draw(kind, seed=5)
    (found,) = session.run(None, {name: other.transpose(2, 0, 1)[None]})
    assert np.abs(found[0] - predictor(other).probabilities).max() < 0.02  # it resizes by itself
    assert (found[0].argmax(0) == predictor(other).probabilities.argmax(0)).mean() > 0.99


def test_the_description_says_what_the_format_requires(package: Any) -> None:
    kind, _, files = package
    labels, how = KINDS[kind]
    rdf = yaml.safe_load(files["rdf.yaml"])
    assert rdf["name"] == "my net (unet_ddp)" and rdf["license"] == "CC-BY-4.0"
    assert rdf["authors"] == [{"name": "Jane Doe"}, {"name": "Jö Roe"}]
    assert rdf["cite"][0]["doi"] == "10.1234/x" and rdf["documentation"] == "README.md"
    (taken,), (given,) = rdf["inputs"], rdf["outputs"]
    step = {1.0: 16, 0.5: 32, 0.3: 54}[how.get("scale", 0.5)]  # the stride of 16 at this scale
    assert [axis.get("size") for axis in taken["axes"][2:]] == [{"min": 3 * step, "step": step}] * 2
    assert [axis["halo"] for axis in given["axes"][2:]] == [step] * 2
    names = given["axes"][1]["channel_names"]
    assert len(names) == labels.num_classes and all(name.isidentifier() for name in names)
    card = files["README.md"].decode()
    assert "## Validation" in card and all(f": {name}\n" in card for name in labels.class_names)
    assert "model.safetensors" not in card and "config.json" not in card
    expected = {"binary": "probability 0.500 on", "overlap": "may overlap", "objects": "a border"}
    assert expected.get(kind, "(value - mean) / deviation") in rdf["description"]


def check_by_core(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        core = pytest.importorskip("bioimageio.core", reason="bioimageio.core is not installed")
        summary = core.test_description(path)
    assert summary.status == "passed", summary.format()


def test_bioimageio_core_passes_it(package: Any) -> None:
    check_by_core(package[1])


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory, traced_once: None) -> Path:
    """Return a package whose names are hard to write: not in the BMP, no text, of two lines, equal."""
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    here = tmp_path_factory.mktemp("strange")
    write_model(here / "a.pt", Labels((*range(7),), names=STRANGE))
    for folder in ("imgs", "masks"):
        (here / folder).mkdir()
    Image.fromarray(draw("binary")).save(here / "imgs/0.png")
    Image.fromarray(np.zeros(SIZE, np.uint8)).save(here / "masks/0.png")
    path = here / "n𠮷.zip"
    argv = ["export", str(here / "a.pt"), "--bioimageio", str(path), "--license", "mit"]
    argv += ["--images", str(here / "imgs"), "--masks", str(here / "masks"), "--tolerance", "1"]
    assert main([*argv, "--authors", "𠮷野 太郎"]) == 0
    return path


@pytest.mark.thorough
@pytest.mark.release
def test_any_name_is_written_in_one_line_of_text(strange: Path) -> None:
    with zipfile.ZipFile(strange) as archive:
        files = {name: archive.read(name).decode() for name in ("rdf.yaml", "README.md")}
    rdf = yaml.safe_load(files["rdf.yaml"])
    assert rdf["authors"] == [{"name": "𠮷野 太郎"}] and rdf["name"] == "n_ (unet_ddp)"
    assert r"Classes: 𠮷, 3, a\n## b, b\udce4, None" in rdf["description"]
    card = files["README.md"].splitlines()
    assert "  - 0: 𠮷" in card and r"  - 3: b\udce4" in card and r"  - 2: a\n## b" in card
    assert "# n𠮷" in card and "## b" not in card


@pytest.mark.thorough
@pytest.mark.release
def test_channels_have_different_names_that_are_identifiers(strange: Path) -> None:
    with zipfile.ZipFile(strange) as archive:
        (given,) = yaml.safe_load(archive.read("rdf.yaml"))["outputs"]
    names = given["axes"][1]["channel_names"]
    assert names == ["𠮷", "class_3", "class_2", "class_3_2", "class_None", "class_5", "class_6"]


@pytest.mark.thorough
@pytest.mark.release
def test_bioimageio_core_passes_strange_names(strange: Path) -> None:
    check_by_core(strange)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["b.onnx", "--bioimageio", "--license", "mit"], "b.onnx: the name must end in .zip"),
        (["--bioimageio", "there.zip", "--license", "mit"], "there.zip: already exists; use --over"),
        (["--bioimageio", "b.zip"], "--license unknown: --bioimageio needs an identifier of spdx.org"),
        (["--bioimageio", "b.zip", "--license", "MIT OR Zlib"], "--license MIT OR Zlib: "),
        (["--bioimageio", "b.zip", "--license", "mit", "--cite", "me"], "--cite me: is no DOI"),
        (["--bioimageio", "b.zip", "--license", "mit", "--sample", "no.png"], "no.png: not found"),
        (["--bioimageio", "b.zip", "--license", "mit"], "use --images and --masks"),
        (["--bioimageio", "b.zip", "--qgis"], "--bioimageio and --qgis: use one of them"),
        (["b.onnx", "--authors", "Me"], "--authors, --cite, --sample: are for --bioimageio"),
        (["--bioimageio"], "nothing to write; name a FILE.onnx, or FILE.zip with --bioimageio"),
        (["--bioimageio", "--card", "net"], "--bioimageio: no file is named; name a FILE.zip"),
        (["n\udcff.zip", "--bioimageio"], r"n\udcff.zip: a name that is no text, as ONNX needs; use"),
        (["--whole", "--card", "net"], "--whole: no file is named; name a FILE.onnx"),
        (["--precision", "int8", "--card", "net"], "--precision: no file is named; name a FILE.o"),
        (["--tolerance", "0.1", "--card", "net"], "--tolerance: no file is named; name a FILE.onnx"),
        (["--bioimageio", "b.zip", "--license", "mit", "--authors", "Me", "A/B"], "--authors A/B: "),
        (["--bioimageio", "b.zip", "--license", "mit", "--authors", "A\\B"], "--authors A\\B: "),
        (["--bioimageio", "b.zip", "--license", "mit", "--authors", "A\nB"], "--authors A\\nB: "),
        (["--bioimageio", "b.zip", "--license", "mit", "--authors", " "], "--authors  : expected"),
    ],
)  # fmt: skip
def test_mistakes(
    argv: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "a.pt", KINDS["binary"][0])
    (tmp_path / "there.zip").write_bytes(b"mine")
    assert main(["export", "a.pt", *argv]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error
    assert {path.name for path in tmp_path.iterdir()} == {"a.pt", "there.zip"}
