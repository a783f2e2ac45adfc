"""The images that a command line names."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from PIL import Image

from tests.reading import read_header
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import Url, put
from unet_ddp.prediction import paths as module
from unet_ddp.prediction.paths import find_images


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (1, 1)).save(name, format="PNG")


def names(*inputs: str) -> list[str]:
    return [str(path) for path in find_images(inputs)]


def test_files_and_folders_in_the_order_given_each_once(here: Path) -> None:
    touch("b.png", "p/c.png", "p/a.JPG", "p/.hidden.png", "p/deep/d.png")
    Path("p/notes.md").touch()
    Path("p/folder.png").mkdir()
    assert names("p", "b.png", "p/c.png", "b.png") == ["p/a.JPG", "p/c.png", "b.png"]


def test_what_an_earlier_prediction_wrote_is_no_image(here: Path) -> None:
    written = ["a_mask.png", "a_mask.tif", "a_overlay.png", "a_probability_car.png",
               "a_probability_255.png", "a_probabilities.npy"]  # fmt: skip
    own = ["a.png", "b_mask.png", "c_overlay.png", "d_probability_x.png", "_mask.png"]
    touch(*(f"p/{name}" for name in (*written, *own)))
    assert sorted(names("p")) == sorted(f"p/{name}" for name in own)
    assert sorted(names("p/*")) == sorted(f"p/{name}" for name in own)
    assert names("p/a_mask.png") == ["p/a_mask.png"]  # named: meant


def test_a_mask_of_a_class_has_others_beside_it(here: Path) -> None:
    """Classes that overlap are two or more: a single file of such a name is an image."""
    touch("q/a.png", "q/a_mask_car.png", "q/a_mask_tree.png", "q/b.png", "q/b_mask_2.png")
    assert names("q") == ["q/a.png", "q/b.png", "q/b_mask_2.png"]


def test_a_class_may_be_named_as_the_files_are(here: Path) -> None:
    """`a_mask` and `b_mask_c` are images, too, whose names are as those of outputs."""
    touch(
        "p/a.png",
        "p/a_mask_x_mask_old.png",
        "p/a_mask_y.png",
        "p/a_probability_x_probability_2.png",
    )
    touch("q/b_mask_c.png", "q/b_mask_c_mask_x.png", "q/b_mask_c_mask_y.png")
    touch("r/a_mask.png", "r/a_mask_mask_x.png", "r/a_mask_mask_y.png")
    assert names("p", "q", "r") == ["p/a.png", "q/b_mask_c.png", "r/a_mask.png"]


def test_patterns_may_be_recursive_or_a_files_name(here: Path) -> None:
    touch("p/a.png", "p/q/b.jpg", "p/q/c.txt.png", "p/[1].png")
    assert names("p/**/*.*") == ["p/[1].png", "p/a.png", "p/q/b.jpg", "p/q/c.txt.png"]
    assert names("p/[1].png") == ["p/[1].png"]
    touch("r [1]/*/a.png", "r [1]/b.png")
    assert names("r [1]/*.png", "r [1]/*/*") == ["r [1]/b.png", "r [1]/*/a.png"]
    assert names(f"{here}/r [1]/*.png") == [f"{here}/r [1]/b.png"]


@pytest.mark.usefixtures("memory_store")
def test_addresses_are_images_lists_or_folders(here: Path) -> None:
    """As on disk; a folder's name may have a dot."""
    url = Url("s3://bucket/inputs")
    for name in ("v1.5/a.png", "v1.5/a_mask.png", "v1.5/b.jpg", "v1.5/c.md", "v1.5/sub/d.png"):
        put(url / name, b"")
    put(url / "list.txt", b"# mine\nv1.5/sub/d.png\ns3://other/e.png\n")
    folder = [f"{url}/v1.5/a.png", f"{url}/v1.5/b.jpg"]
    assert names(str(url / "v1.5"), f"{url}/v1.5/b.jpg") == folder
    assert names(f"{url}/list.txt") == [f"{url}/v1.5/sub/d.png", "s3://other/e.png"]
    for missing in ("f.png", "f.txt"):
        with pytest.raises(UserError, match=f"^{url}/{missing}: not found$"):
            names(f"{url}/{missing}")


def test_a_list_has_paths_from_here_or_from_its_folder(here: Path) -> None:
    touch("p/a.png", "q/b.png", "p/q/b.png", "p/c.png")
    Path("p/list.txt").write_text("# mine\nq/b.png\n\n  c.png \nmissing.png\n")
    assert names("p/list.txt", "p/a.png") == ["q/b.png", "p/c.png", "p/missing.png", "p/a.png"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no inputs"),
        (["nowhere.png"], "nowhere.png: not found"),
        (["list.txt"], "list.txt: not found"),
        (["empty"], r"empty: contains no images \(.*\.jpg"),
        (["empty/*.png"], r"empty/\*.png: matches no image"),
    ],
)
def test_mistakes_are_named(here: Path, given: list[str], message: str) -> None:
    Path("empty").mkdir()
    with pytest.raises(UserError, match=message):
        find_images(given)


def test_a_list_may_come_from_any_editor_and_name_any_file(here: Path) -> None:
    """A byte-order mark, Windows' line ends, and names that are no UTF-8, as `ls > list.txt` writes."""
    latin = "b\udce4r.png"
    touch("a.png", latin)
    Path("list.txt").write_bytes(b"\xef\xbb\xbfa.png\r\n\r\n   \r\nb\xe4r.png\r\n")
    assert names("list.txt") == ["a.png", latin]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a.png\nb\0.png\n", "list.txt: can't be read as a list of images: it is not UTF-8 text"),
        (b"\xef\xbb\xbf# nothing\n\n", "list.txt: contains no images; a list has one path per line"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_no_list(here: Path, content: bytes, message: str) -> None:
    touch("a.png")
    Path("list.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        names("list.txt")


def test_what_is_no_image_in_a_list_is_left_for_its_turn(here: Path) -> None:
    """One line for each, and the other images are predicted: folders, pipes, impossible names."""
    touch("a.png")
    Path("folder").mkdir()
    os.mkfifo("pipe.png")
    long = "x" * 300 + ".png"
    Path("list.txt").write_text(f"a.png\nfolder\npipe.png\n{long}\n")
    assert names("list.txt") == ["a.png", "folder", "pipe.png", long]
    with pytest.raises(UserError, match="folder: is a folder, not an image"):
        read_header(Path("folder"))
    with pytest.raises(UserError, match=r"x\.png: can't be read \(File name too long\)"):
        read_header(Path(long))
    with pytest.raises(UserError, match=r"xx\.png: can't be read: File name too long"):
        names(long)


def test_pipes_and_links_to_nowhere_in_a_folder_are_not_passed_over(here: Path) -> None:
    """Each is an error when its turn comes; a folder that is named as an image is none."""
    touch("p/a.png")
    os.mkfifo("p/pipe.png")
    Path("p/gone.png").symlink_to("nowhere.png")
    Path("p/folder.png").mkdir()
    assert names("p") == ["p/a.png", "p/gone.png", "p/pipe.png"]
    os.mkfifo("list.txt")
    with pytest.raises(UserError, match=r"list\.txt: is a pipe, socket or device, not a file"):
        names("list.txt")


def test_why_a_list_can_not_be_read_is_the_system_s_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **how: object) -> str:
        raise OSError(errno.EIO, "Input/output error", "list.txt")

    (tmp_path / "list.txt").touch()
    monkeypatch.setattr(module, "read_text", refuse)
    with pytest.raises(UserError, match=r"can't be read as a list of images: Input/output error$"):
        find_images([str(tmp_path / "list.txt")])
