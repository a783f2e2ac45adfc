"""A reader of the user's own, as the docs have it: named by its path, or by a package's entry point."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import data_flags, install_package, make_set
from tests.ranks import Ranks, call_main, call_train
from unet_ddp.__main__ import main
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.commands import doctor, evaluate
from unet_ddp.data.readers.base import Header, ImageFormat
from unet_ddp.data.readers.read import Source, can_read, use_own_readers
from unet_ddp.errors import UserError
from unet_ddp.plugins.own import renew

PAGE = Path(__file__).parents[3] / "docs" / "own_parts.md"
OWN = ["--reader", "my_readers:XyzFile"]
FLAGS = [
    "--width", "2", "--epochs", "1", "--validation", "20", "--precision=auto", "--batch-size", "2",
]  # fmt: skip
PIXELS = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)


def write_xyz(path: Path, pixels: np.ndarray) -> Path:
    pixels = np.atleast_3d(pixels)
    path.write_bytes(np.array(pixels.shape, "<u2").tobytes() + pixels.tobytes())
    return path


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with the docs' module, and a set whose images and masks are its files."""
    code = PAGE.read_text().partition("\n## A reader\n")[2].partition("\n    import ")[2]
    code = "    import " + code.partition("\n\nIt reads")[0]
    (tmp_path / "my_readers.py").write_text(textwrap.dedent(code))
    make_set(tmp_path, 10)
    for path in [*(tmp_path / "imgs").iterdir(), *(tmp_path / "masks").iterdir()]:
        write_xyz(path.with_suffix(".xyz"), np.asarray(Image.open(path)))
        path.unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_readers", raising=False)
    yield tmp_path
    use_own_readers([])


@pytest.fixture
def installed(own: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder, where a package names the reader."""
    install_package(own, "[unet_ddp.readers]\nxyz = my_readers:XyzFile\n")
    monkeypatch.syspath_prepend(own)
    return own


def check_pixels(path: Path) -> None:
    write_xyz(path, PIXELS)
    with Source(path) as source:
        assert source.header == Header(4, 5, 3, "uint8")
        assert np.array_equal(source.image(ImageFormat(3))[0], PIXELS)
        assert source.place is None and source.rows(ImageFormat(3)) is None
    with Source(write_xyz(path, PIXELS[..., 0])) as source:
        assert np.array_equal(source.mask(), PIXELS[..., 0])


def test_a_path_names_a_reader(own: Path) -> None:
    assert not can_read(".xyz")
    use_own_readers(["my_readers:XyzFile"])
    assert can_read(".xyz")
    check_pixels(own / "a.XYZ")
    (own / "b.xyz").write_bytes(b"\1\0")
    blamed = r"^reader my_readers:XyzFile failed on b.xyz \(\w+: .*; my_readers.py, line 1\d\); mend it, or"
    with pytest.raises(UserError, match=blamed):
        _ = Source(Path("b.xyz")).header
    use_own_readers([])
    assert not can_read(".xyz")


def test_a_pack_names_the_readers_that_it_was_packed_with(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its files are as they were; no other reader is tried on them."""
    assert main(["pack", *data_flags(own), *OWN, "--output", "pack"]) == 0
    assert capsys.readouterr().out.endswith(f"train.py --images pack {' '.join(OWN)}\n")
    assert main(["doctor", "--images", "pack", *OWN]) == 0
    capsys.readouterr()
    assert main(["doctor", "--images", "pack"]) == 2
    said = f"error: pack: was packed with {' '.join(OWN)}; give it again\n"
    assert said in capsys.readouterr().out


HEADER = 'return Header(width, height, channels, "uint8")'
SAID = "^reader my_readers:XyzFile: .*a.xyz: "
GAVE = f"{SAID}read_bands gave %s; return a NumPy array"
DIFFERS = f"{SAID}header says %s, read_bands gave 4x5 with 3 of uint8; mend one of them"


def change_reader(folder: Path, old: str, new: str) -> None:
    path = folder / "my_readers.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (HEADER, 'return Header(10, 10, 3, "uint8")', DIFFERS % "10x10 with 3 channels of uint8"),
        (HEADER, HEADER.replace("width, height", "height, width"), DIFFERS % "5x4 with 3 .*"),
        (HEADER, HEADER.replace("channels", "1"), DIFFERS % "4x5 with 1 channels of uint8"),
        (HEADER, HEADER.replace("uint8", "uint16"), DIFFERS % "4x5 with 3 channels of uint16"),
        (HEADER, "return None", f"{SAID}header gave None; return a .*Header"),
        ("return self.pixels", "return self.pixels[..., 0]", GAVE % r"a ndarray \(5, 4\)"),
        ("return self.pixels", "import numpy; return numpy.ma.array(self.pixels, mask=True)", f"{SAID}read_bands gave a masked array; fill it, .* by --nodata"),
        ("return self.pixels", "return self.pixels.tolist()", GAVE % "a list of 5"),
        ("return self.pixels", "return {}['x']", r"failed on .*a.xyz \(KeyError: 'x'; my_readers.py, line 19\)"),
    ],
)  # fmt: skip
def test_a_reader_that_contradicts_itself_or_fails_is_blamed(
    own: Path, old: str, new: str, said: str
) -> None:
    """Issue: a mask had the header's size; a fault in the reader was the image's."""
    change_reader(own, old, new)
    use_own_readers(["my_readers:XyzFile"])
    with Source(write_xyz(own / "a.xyz", PIXELS)) as source:
        for ask in (lambda: source.image(ImageFormat(3)), lambda: source.thumbnail(8)):
            with pytest.raises(UserError, match=said):
                _ = source.header, ask()


def test_a_header_is_compared_with_a_mask_s_size_but_not_its_type(own: Path) -> None:
    change_reader(own, "return self.pixels", "return self.pixels.astype('int64')")
    use_own_readers(["my_readers:XyzFile"])
    path = write_xyz(own / "a.xyz", PIXELS[..., 0])
    with Source(path) as source:
        assert np.array_equal(source.mask(), PIXELS[..., 0])
    change_reader(own, HEADER, 'return Header(4, 6, 1, "uint8")')
    renew()
    use_own_readers(["my_readers:XyzFile"])
    with Source(path) as source, pytest.raises(UserError, match=r"4x6 with 1 .* gave 4x5 with 1"):
        source.mask()


def test_what_the_file_is_to_blame_for_is_not_the_reader_s(own: Path) -> None:
    use_own_readers(["my_readers:XyzFile"])
    (own / "empty.xyz").touch()
    for name, said in (("empty.xyz", "is empty"), ("none.xyz", "not found")):
        with pytest.raises(UserError, match=f"^{name}: {said}"):
            _ = Source(Path(name)).header


def test_suffixes_in_capitals_are_those_of_files(own: Path) -> None:
    change_reader(own, '".xyz"', '".XYZ"')
    use_own_readers(["my_readers:XyzFile"])
    assert can_read(".xyz")
    for name in ("a.xyz", "b.XYZ"):
        check_pixels(own / name)


def test_an_entry_point_names_a_reader(installed: Path) -> None:
    assert can_read(".xyz") and "my_readers" not in sys.modules
    check_pixels(installed / "a.xyz")


def test_a_package_s_reader_lets_no_other_module_of_the_working_folder_be_imported(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (installed / "elsewhere").mkdir()
    monkeypatch.chdir(installed / "elsewhere")
    check_pixels(installed / "a.xyz")
    assert str(Path.cwd()) not in sys.path


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:Reader", "nowhere:Reader: can't be imported"),
        ("my_readers:np", "is a module; name a class"),
    ],
)
def test_what_is_no_reader_is_a_line(own: Path, name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        use_own_readers([name])


def test_a_suffix_starts_no_code(own: Path) -> None:
    (own / "names_code.py").write_text("raise AssertionError\n")
    path = own / "imgs" / "photo.names_code:xyz"
    Image.fromarray(PIXELS).save(path, "PNG")
    assert not can_read(path.suffix)
    with Source(path) as source:  # as of any unknown suffix
        assert np.array_equal(source.image(ImageFormat(3))[0], PIXELS)
    assert "names_code" not in sys.modules


def test_a_set_is_trained_on_by_processes_that_read_and_predicted(own: Path, ranks: Ranks) -> None:
    argv = [*data_flags(own), *FLAGS, *OWN]
    for more in (["--workers", "1", "--stop-after", "1"], ["--workers", "0", "--resume"]):
        outcomes = ranks.run(2, call_train, [*argv, *more], str(own))
        assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    saved = checkpoint.load(own / "checkpoints" / "last.pt")
    assert saved["config"]["reader"] == ["my_readers:XyzFile"]
    assert saved["sources"].keys() == {"my_readers:XyzFile"}
    image = min((own / "imgs").iterdir())
    status, out, err = call_main("predict", [*OWN, str(image), "-o", "m.png"], str(own))
    assert status == 0 and "m.png" in out, err
    with Source(image) as source, Image.open("m.png") as mask:
        assert mask.size == source.header.size[::-1]
    status, out, err = call_main("unet_ddp.__main__", ["report", *OWN], str(own))
    assert status == 0 and "no scores and images" not in out, err
    page = (own / "checkpoints" / "report.html").read_bytes()
    status, _, err = call_main("unet_ddp.__main__", ["report"], str(own))
    assert status == 2 and "if you trust it, type --reader my_readers:XyzFile" in err
    assert (own / "checkpoints" / "report.html").read_bytes() == page
    status, _, err = call_train([*argv[: -len(OWN)], "--resume"], str(own))
    assert (
        status == 2 and "starts no code; if you trust it, type --reader my_readers:XyzFile" in err
    )


def test_an_installed_reader_needs_no_flag(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*data_flags(installed), *FLAGS, "--workers", "0"]
    status, _, err = call_train(argv, str(installed))
    assert status == 0, err
    status, _, err = call_main("predict", ["imgs", "-o", "out"], str(installed))
    assert status == 0 and len(list((installed / "out").iterdir())) == 10, err
    assert doctor.main(data_flags(installed)) == 0 and "10 .xyz" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        evaluate.main([])
    assert ended.value.code == 0 and (installed / "checkpoints/evaluation/scores.json").exists()


def test_a_recipe_starts_no_reader(own: Path) -> None:
    (own / "evil.yaml").write_text("reader: [my_readers:XyzFile]\n")
    argv = [*data_flags(own), *FLAGS, "--config", "evil.yaml"]
    status, _, err = call_train(argv, str(own))
    assert status == 2 and "starts no code" in err and "my_readers" not in sys.modules


def test_a_reader_that_has_changed_since_the_training_is_a_line(own: Path) -> None:
    argv = [*data_flags(own), *OWN, *FLAGS]
    status, _, err = call_train(argv, str(own))
    assert status == 0, err
    change_reader(own, "return self.pixels", "return 255 - self.pixels")
    image = str(next((own / "imgs").iterdir()))
    for given in (["predict", image, "-o", "mask.png", *OWN], ["evaluate", "--workers", "0", *OWN]):
        sys.modules.pop("my_readers", None)
        status, out, err = call_main("unet_ddp.__main__", given, str(own))
        said = f"{' '.join(OWN)}: its source has changed since its training"
        assert status == 0 and out.count(said) == 1, (out, err)
