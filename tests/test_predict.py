"""predict.py as people use it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import predict
from unet_ddp import checkpoint
from unet_ddp.data.labels import Labels
from unet_ddp.network.build import Architecture
from unet_ddp.network.unet import UNet
from unet_ddp.preprocessing import Preprocessing


def write_model(path: Path, labels: Labels, *, channels: int = 3, max_value: int = 255) -> None:
    """A network that has learnt nothing but is of several minds."""
    torch.manual_seed(3)
    network = UNet(channels, labels.num_classes, width=4).eval()
    with torch.no_grad():
        logits = network(torch.randn(1, channels, 64, 64))
        network.outc.conv.bias -= logits.flatten(2).median(2).values[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(
        path,
        {
            "model": network.state_dict(),
            "architecture": Architecture("unet", channels, labels.num_classes, None, 4).to_plain(),
            "labels": labels.to_plain(),
            "preprocessing": Preprocessing.for_images(channels, max_value, scale=0.5).to_plain(),
        },
    )


def write_photo(path: Path, size: tuple[int, int] = (41, 67)) -> Path:
    pixels = np.random.default_rng(len(path.name)).integers(0, 256, (*size, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "checkpoints" / "best.pt", Labels((0, 255)))
    return tmp_path


def test_one_image_needs_no_flag(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_photo(here / "image.png")
    assert predict.main(["image.png"]) == 0
    mask = np.asarray(Image.open("image_mask.png"))
    assert mask.shape == (41, 67)
    assert set(np.unique(mask)) == {0, 255}
    out = capsys.readouterr().out
    assert "checkpoints/best.pt" in out and "image_mask.png" in out
    assert f"255 {(mask == 255).mean():.1%}" in out


@pytest.mark.parametrize(
    "labels",
    [Labels((0, 1)), Labels((0, 3, 7), ignore=9), Labels((0xFF0000, 0x00FF00, 0x0000FF), rgb=True)],
    ids=str,
)
def test_masks_have_the_training_masks_values(here: Path, labels: Labels) -> None:
    from unet_ddp.data.reading import read_mask

    write_model(here / "m.pt", labels)
    write_photo(here / "a.jpg")
    assert predict.main(["a.jpg", "-m", "m.pt", "-o", "out.png"]) == 0
    found = set(np.unique(read_mask(here / "out.png")).tolist())
    assert found <= set(labels.values) and len(found) > 1


def test_folders_and_overlays(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.png", "b.jpg", "c.tif"):
        write_photo(here / "photos" / name)
    assert predict.main(["photos", "--overlay"]) == 0
    names = {p.name for p in (here / "photos").iterdir()}
    assert names >= {"a_mask.png", "b_mask.png", "c_mask.png", "a_overlay.png"}
    overlay = np.asarray(Image.open("photos/a_overlay.png")).astype(int)
    mask = np.asarray(Image.open("photos/a_mask.png"))
    photo = np.asarray(Image.open("photos/a.png")).astype(int)
    assert (overlay[mask == 0] == photo[mask == 0]).all()
    assert (overlay[mask == 255] != photo[mask == 255]).any()
    # masks and overlays of the first time are not taken for images the second time
    assert predict.main(["photos", "-o", "elsewhere"]) == 0
    assert {p.name for p in Path("elsewhere").iterdir()} == {
        "a_mask.png",
        "b_mask.png",
        "c_mask.png",
    }


def test_nothing_is_overwritten_untold(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_photo(here / "a.png")
    Path("a_mask.png").write_bytes(b"by hand")
    assert predict.main(["a.png"]) == 2
    assert Path("a_mask.png").read_bytes() == b"by hand"
    assert "--overwrite" in capsys.readouterr().err
    assert predict.main(["a.png", "--overwrite"]) == 0
    assert Path("a_mask.png").read_bytes() != b"by hand"


def test_a_bad_image_among_many_is_skipped_and_counted(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_photo(here / "p" / "a.png")
    (here / "p" / "b.png").write_bytes(b"no image")
    write_photo(here / "p" / "c.png")
    assert predict.main(["p"]) == 1
    err = capsys.readouterr().err
    assert "b.png" in err and "1 of 3 images" in err
    assert Path("p/c_mask.png").exists() and not Path("p/b_mask.png").exists()


def test_one_class_only_is_a_warning(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = checkpoint.load(here / "checkpoints" / "best.pt")
    content["model"]["outc.conv.bias"][0] += 1e6
    checkpoint.save(here / "checkpoints" / "best.pt", content)
    write_photo(here / "a.png")
    assert predict.main(["a.png"]) == 0
    assert "warning: nothing but 0" in capsys.readouterr().out


def test_the_newest_run_is_found(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import os

    (here / "checkpoints" / "best.pt").unlink()
    for age, name in ((20, "old"), (10, "new"), (30, "oldest")):
        path = here / "checkpoints" / name / "best.pt"
        write_model(path, Labels((0, 255)))
        os.utime(path, (1e9 - age, 1e9 - age))
    write_photo(here / "a.png")
    assert predict.main(["a.png"]) == 0
    assert "checkpoints/new/best.pt" in capsys.readouterr().out


def test_16_bit_images(here: Path) -> None:
    write_model(here / "m.pt", Labels((0, 1)), channels=1, max_value=65535)
    pixels = np.random.default_rng(0).integers(0, 65536, (40, 50)).astype(np.uint16)
    Image.fromarray(pixels).save(here / "a.png")
    assert predict.main(["a.png", "-m", "m.pt"]) == 0
    assert np.asarray(Image.open("a_mask.png")).shape == (40, 50)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.jpg"], "nowhere.jpg: no such file"),
        (["empty"], "empty: no images"),
        (["a.png", "-m", "nowhere.pt"], "nowhere.pt"),
        (["a.png", "-m", "a.png"], "a.png: no checkpoint"),
        (["a.png", "-o", "out.jpg"], "out.jpg"),
        (["a.png", "-o", "out.gif"], "out.gif"),
        (["a.png", "-o", "a.png", "--overwrite"], "is one of the images"),
        (["a.png", "--overlay"], "a_overlay.png: is there already"),
        (["a.png", "--scale", "0.3"], "knows its scale"),
        (["a.png", "sub/a.png", "-o", "out"], "another image's"),
        (["deep.png"], "16 bit"),
        ([], "inputs"),
        (["a.png", "--tta"], "--tta"),
        (["a.png", "-o", "a.png/x/y.png"], "can't be written"),
    ],
)
def test_mistakes(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    write_photo(here / "a.png")
    write_photo(here / "sub" / "a.png")
    (here / "empty").mkdir()
    Image.fromarray(np.zeros((20, 20), np.uint16)).save(here / "deep.png")
    (here / "a_overlay.png").write_bytes(b"by hand")
    assert predict.main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1
    assert said.lower() in err.lower()


def test_prediction_imports_nothing_that_only_training_needs() -> None:
    import subprocess
    import sys

    heavy = "{'albumentations', 'segmentation_models_pytorch', 'timm', 'torchvision', 'tensorboard', 'cv2'}"
    program = f"import sys, predict; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
