"""predict.py as people use it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import predict
from tests.ranks import Ranks, call_main
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.network.architecture import Architecture
from unet_ddp.network.unet import UNet
from unet_ddp.runs import checkpoint


def write_model(
    path: Path,
    labels: Labels,
    *,
    channels: int = 3,
    max_value: int = 255,
    scale: float = 0.5,
    threshold: float | None = None,
    seed: int = 3,
) -> None:
    """A network that has learnt nothing but is of several minds."""
    torch.manual_seed(seed)
    network = UNet(channels, labels.num_classes, width=4).eval()
    with torch.no_grad():
        logits = network(torch.randn(1, channels, 64, 64))
        network.outc.conv.bias -= logits.flatten(2).median(2).values[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(
        path,
        {
            "model": network.state_dict(),
            "architecture": Architecture("unet", channels, labels.num_classes, None, 4).to_dict(),
            "labels": labels.to_dict(),
            "preprocessing": Preprocessing.for_images(channels, max_value, scale=scale).to_dict(),
            "threshold": threshold,
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
    from unet_ddp.data.formats.read import read_mask

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


def test_patterns_and_lists(here: Path) -> None:
    for name in ("p/a.png", "p/q/b.jpg", "p/q/c.txt.png"):
        write_photo(here / name)
    assert predict.main(["p/**/*.*", "-o", "one"]) == 0
    assert len(list(Path("one").iterdir())) == 3
    (here / "p" / "list.txt").write_text("# mine\nq/b.jpg\n\np/a.png\n")  # from the list, from here
    assert predict.main(["p/list.txt", "-o", "two", "--mask-format", "tif"]) == 0
    assert {path.name for path in Path("two").iterdir()} == {"a_mask.tif", "b_mask.tif"}


def test_an_interrupted_job_goes_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "abcd":
        write_photo(here / "p" / f"{name}.png")
    words = ["p", "-o", "out", "--rle"]
    assert predict.main([*words, "whole.csv"]) == 0
    Path("out/c_mask.png").unlink()
    before = Path("out/a_mask.png").stat().st_mtime_ns
    assert predict.main([*words, "b.csv"]) == 2  # not untold
    assert predict.main([*words, "b.csv", "--skip-existing"]) == 0
    assert Path("out/c_mask.png").exists()
    assert Path("out/a_mask.png").stat().st_mtime_ns == before
    assert Path("b.csv").read_text() == Path("whole.csv").read_text()
    assert "3 images left out" in capsys.readouterr().out
    assert not [path for path in here.rglob(".*") if path.name != ".lock"]


def test_lists_of_several_images(here: Path) -> None:
    import csv
    import json

    from tests.prediction.outputs.test_masks import by_hand

    for name in "ba":
        write_photo(here / f"{name}.png")
    (here / "c.png").write_bytes(b"no image")
    words = ["b.png", "c.png", "a.png", "--rle", "l.csv", "--polygons", "l.geojson"]
    assert predict.main([*words, "--rle-order", "columns"]) == 1
    rows = list(csv.DictReader(Path("l.csv").read_text().splitlines()))
    assert [row["img"] for row in rows] == ["b.png", "a.png"]
    features = json.loads(Path("l.geojson").read_text())["features"]
    for row in rows:
        mask = np.asarray(Image.open(row["img"].replace(".png", "_mask.png")))
        assert np.array_equal(by_hand(row["rle_mask"], mask.shape, "columns") * 255, mask)
        of_it = [f["properties"] for f in features if f["properties"]["image"] == row["img"]]
        assert sum(about["area"] for about in of_it) == (mask == 255).sum()
        assert {about["class"] for about in of_it} == {"255"}


def test_probabilities_are_written(here: Path) -> None:
    from unet_ddp import Predictor

    write_photo(here / "a.png")
    expected = Predictor.from_checkpoint("checkpoints/best.pt")("a.png").probabilities
    for flags in ([], ["--tile", "16", "--overlap", "0.5"]):
        assert predict.main(["a.png", "--probabilities", "npy", "--overwrite", *flags]) == 0
        assert predict.main(["a.png", "--probabilities", "png", "--overwrite", *flags]) == 0
        stored = np.load("a_probabilities.npy")
        assert stored.shape == (2, 41, 67) and stored.dtype == np.float32
        assert flags or np.abs(stored - expected).max() < 1e-6
        for k, name in enumerate(("0", "255")):
            picture = np.asarray(Image.open(f"a_probability_{name}.png"))
            assert picture.dtype == np.uint16
            assert np.abs(picture / 65535 - stored[k]).max() < 1e-4
    assert predict.main([".", "-o", "x"]) == 0  # none of these is taken for an image
    assert {path.name for path in Path("x").iterdir()} == {"a_mask.png"}


def test_the_checkpoints_threshold_is_used(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(here / "t.pt", Labels((0, 255)), threshold=0.502)
    write_photo(here / "a.png")
    shares = []
    for flags in (["-m", "t.pt"], ["-m", "t.pt", "-t", "0.498"], ["-t", "0.502"], []):
        assert predict.main(["a.png", "--overwrite", *flags]) == 0
        shares.append((np.asarray(Image.open("a_mask.png")) == 255).mean())
    assert shares[0] == shares[2] < shares[3] < shares[1]
    assert "threshold: 255 where its probability is 0.502 or more" in capsys.readouterr().out


def test_models_before_the_image(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_photo(here / "a.png")
    write_model(here / "b.pt", Labels((0, 255)), seed=5)
    assert predict.main(["-m", "checkpoints", "b.pt", "a.png", "--tta", "d4"]) == 0
    assert "model: checkpoints/best.pt, b.pt" in capsys.readouterr().out


@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_number_of_processes_writes_the_same(here: Path, ranks: Ranks, size: int) -> None:
    for number in range(7):
        write_photo(here / "p" / f"{number}.png", (30 + number % 2, 40))
    (here / "p" / "5.png").write_bytes(b"no image")
    words = ["p", "-o", "out", "--rle", "out.csv", "--polygons", "out.geojson", "--device", "cpu"]
    outcomes = ranks.run(size, call_main, "predict", words, str(here))
    assert [status for status, _, _ in outcomes] == [1] * size
    said = "".join(err for _, _, err in outcomes)
    assert said.count("error: ") == 1 and said.count("1 of 7 images could not") == 1
    assert sum(out.count("model: ") for _, out, _ in outcomes) == 1
    assert predict.main([*words[:2], "alone", "--rle", "alone.csv", "--polygons", "a.geojson"]) == 1
    assert Path("out.csv").read_bytes() == Path("alone.csv").read_bytes()
    assert Path("out.geojson").read_bytes() == Path("a.geojson").read_bytes()
    for path in Path("alone").iterdir():
        assert (Path("out") / path.name).read_bytes() == path.read_bytes()
    assert len(list(Path("out").iterdir())) == 6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a.png", "-m", "grey.pt"], None),
        (["bands.tif"], "5 channels"),
        (["a.png", "--tile", "8"], "--tile 8: smaller than the network's stride of 16"),
        (["a.png", "--overlap", "1"], "--overlap 1"),
        (["a.png", "--overlap", "-0.1"], "--overlap -0.1"),
        (["a.png", "-t", "1.5"], "--threshold 1.5"),
        (["a.png", "-m", "three.pt", "-t", "0.4"], "this network has 3"),
        (["a.png", "-m", "three.pt", "--rle", "x.csv"], "--rle: its format has two classes"),
        (["a.png", "-m", "checkpoints", "three.pt"], "three.pt: its classes"),
        (["a.png", "-m", "checkpoints", "grey.pt"], "grey.pt: its channels"),
        (["a.png", "-m", "checkpoints", "half.pt"], "half.pt: its scale"),
        (["a.png", "-o", "a_overlay.png/x"], "a_overlay.png is a file"),
        (["a.png", "--rle", "there.csv"], "there.csv: is there already"),
        (["a.png", "--rle", "empty"], "empty: is a folder"),
        (["a.png", "--rle", "a_overlay.png/x.csv"], "can't be written"),
        (["empty/*.png"], "no image matches"),
        (["none.txt"], "none.txt: no images"),
        (["a.png", "--batch-size", "0"], "--batch-size 0"),
        (["a.png", "--overwrite", "--skip-existing"], "use one of them"),
        (["a.png", "--tta", "cubes"], "--tta"),
    ],
)
def test_more_mistakes(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str | None
) -> None:
    import tifffile

    write_photo(here / "a.png")
    (here / "empty").mkdir()
    (here / "none.txt").write_text("# nothing\n")
    for name in ("a_overlay.png", "there.csv"):
        (here / name).write_bytes(b"by hand")
    write_model(here / "grey.pt", Labels((0, 255)), channels=1)
    write_model(here / "three.pt", Labels((0, 1, 2)))
    write_model(here / "half.pt", Labels((0, 255)), scale=0.25)
    tifffile.imwrite(here / "bands.tif", np.zeros((20, 20, 5), np.uint8), planarconfig="contig")
    before = set(here.rglob("*"))
    status = predict.main(words)
    if said is None:  # colour is made grey
        assert status == 0
        return
    err = capsys.readouterr().err
    assert status == 2 and said in err
    assert err.startswith("error: ") and err.count("\n") == 1
    assert set(here.rglob("*")) == before


def test_the_package_itself_is_light() -> None:
    import subprocess
    import sys

    program = "import sys, unet_ddp; print('torch' in sys.modules); from unet_ddp import Predictor"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


STOPPED = """
import os, signal, sys
sys.path.insert(0, {root!r})
import predict
from unet_ddp.prediction.outputs.files import remove_on_signals, replacing

def write_mask(prediction, path):
    with replacing(path) as half:
        half.write_bytes(b"half")
        if path.name == "b_mask.png":
            os.kill(os.getpid(), signal.{name})
            while True:  # the thread goes on in the midst of its file
                half.stat()

predict.write_mask = write_mask
signal.signal(signal.{name}, signal.SIG_DFL)  # a shell's background job has SIGINT ignored
remove_on_signals()
predict.main(["p", "-o", "out", "--rle", "out/list.csv", "--overlay"])
"""


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_stopped_job_leaves_no_half_files(here: Path, name: str, status: int) -> None:
    import subprocess
    import sys

    for letter in "abc":
        write_photo(here / "p" / f"{letter}.png")
    program = STOPPED.format(root=str(Path(predict.__file__).parent), name=name)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr and "--skip-existing" in done.stderr
    left = {path.name for path in (here / "out").iterdir()}
    assert not [name for name in left if name.startswith(".")] and "b_mask.png" not in left


def test_what_a_killed_job_has_left_is_removed(here: Path) -> None:
    import os
    import subprocess
    import sys

    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1).stdout
    write_photo(here / "p" / "a.png")
    out = here / "out"
    out.mkdir()
    stale = [f".a_mask.png.{int(dead)}.tmp", f".a_overlay.png.{int(dead)}.tmp", ".l.csv.7.part"]
    stale.append(f".a_probabilities.npy.{int(dead)}.tmp")
    kept = [f".a_mask.png.{os.getpid()}.tmp", f".other.png.{int(dead)}.tmp", ".a_mask.png.tmp"]
    for name in (*stale, *kept):
        (out / name).write_bytes(b"half")
    words = ["p", "-o", "out", "--overlay", "--rle", "out/l.csv", "--probabilities", "npy"]
    (out / kept.pop(0)).rename(out / ".a_mask.png.1.tmp")  # another job's that is at work
    assert predict.main([*words, "--skip-existing"]) == 0
    hidden = {path.name for path in out.iterdir() if path.name.startswith(".")}
    assert hidden == {*kept, ".a_mask.png.1.tmp"}


def test_without_permission_nothing_is_written(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit status 2; among many, an image that can't be read is passed over."""
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as name:  # where another user may come at all
        folder, open_to_all = Path(name), Path(name) / "out"
        folder.chmod(0o755)
        write_photo(folder / "p" / "a.png")
        write_photo(folder / "p" / "b.png").chmod(0)
        write_model(folder / "m.pt", Labels((0, 255)))
        (folder / "closed").mkdir(mode=0o555)
        open_to_all.mkdir()
        open_to_all.chmod(0o777)
        image, secret = str(folder / "p" / "a.png"), str(folder / "p" / "b.png")
        model = ["-m", str(folder / "m.pt")]
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)
        try:
            for words, said in (
                ([image, "-o", str(folder / "closed")], "closed: can't be written: no permission"),
                ([image, "-o", str(folder / "closed" / "new")], "can't be written: no permission"),
                ([image, "-o", str(open_to_all), "--rle", str(folder / "closed/l.csv")], "closed"),
                ([secret, "-o", str(open_to_all)], "b.png: no permission to read it"),
            ):
                assert predict.main([*words, *model]) == 2
                err = capsys.readouterr().err
                assert err.startswith("error: ") and err.count("\n") == 1 and said in err
                assert not list(open_to_all.iterdir()) and not list((folder / "closed").iterdir())
            assert predict.main([str(folder / "p"), "-o", str(open_to_all), *model]) == 1
            assert "b.png: no permission to read it" in capsys.readouterr().err
            assert [path.name for path in open_to_all.iterdir()] == ["a_mask.png"]
        finally:
            os.seteuid(before)
            (folder / "closed").chmod(0o755)
