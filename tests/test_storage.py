"""Storage is found by the scheme of an address; an installed package may bring one more."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import install_package
from unet_ddp.data.matching import find_pairs
from unet_ddp.errors import UserError
from unet_ddp.files import as_path, check_writable, is_address, write_text
from unet_ddp.storage import fetch_ahead, open_parts, storage_of

SHELF = '''
import os
from contextlib import contextmanager
from pathlib import Path

from unet_ddp.errors import UserError
from unet_ddp.storage import Storage

class Book(type(Path())):
    """An object, which is a file below the folder SHELF."""

    def __str__(self):
        return super().__str__().replace("shelf:/", "shelf://", 1)

    def __fspath__(self):
        return os.environ["SHELF"] + super().__str__()[len("shelf:"):]

class Shelf(Storage):
    ahead = None

    def open(self, text):
        return Book(text)

    @contextmanager
    def replacing(self, path):
        file = Path(os.fspath(path))
        yield file

    def check_writable(self, folder, flag):
        if "closed" in str(folder):
            raise UserError(f"{folder}: closed; use another {flag}")

    def find_stamp(self, path):
        return Path(os.fspath(path)).stat().st_size, 7

    def list_objects(self, folder):
        root = Path(os.fspath(folder))
        for path in sorted(root.rglob("*.png")):
            yield path.relative_to(root).as_posix(), path.stat().st_size, 7

    def fetch_ahead(self, paths):
        self.ahead = [str(path) for path in paths]

    def read_ahead(self, dataset, sampler, *, batch_size, workers):
        raise NotImplementedError

    def run_folder(self, address):
        raise NotImplementedError

    def mirror(self, config, log):
        raise NotImplementedError

    def copy_run(self, address):
        raise NotImplementedError
'''


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of what is at shelf://, the scheme of an installed package."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "shelf_storage.py").write_text(SHELF)
    install_package(tmp_path / "package", "[unet_ddp.storage]\nshelf = shelf_storage:Shelf\n")
    monkeypatch.syspath_prepend(tmp_path / "package")
    monkeypatch.setenv("SHELF", str(tmp_path / "shelf"))
    for name in ("imgs/a.png", "masks/a.png"):
        path = tmp_path / "shelf" / "set" / name
        path.parent.mkdir(parents=True)
        Image.new("L", (4, 3), 1).save(path)
    return tmp_path / "shelf"


def test_a_package_brings_storage_with_a_scheme(shelf: Path) -> None:
    path = as_path("shelf://set/imgs/a.png")
    assert is_address(path) and storage_of(path) is storage_of("shelf://other")
    assert path.read_bytes() == (shelf / "set" / "imgs" / "a.png").read_bytes()
    with open_parts(path) as file:
        assert file.read() == path.read_bytes()
    write_text(as_path("shelf://set/note.txt"), "written")
    assert (shelf / "set" / "note.txt").read_text() == "written"
    check_writable(as_path("shelf://set"), "--output")
    with pytest.raises(UserError, match=r"^shelf://closed: closed; use another --output$"):
        check_writable(as_path("shelf://closed"), "--output")
    with pytest.raises(UserError, match=r"ftp:// is not known; use s3://, .*https://, shelf:// or"):
        as_path("ftp://set")


def test_pairs_are_found_and_read_at_the_addresses_of_a_package(shelf: Path) -> None:
    pairs = find_pairs(as_path("shelf://set/imgs"), as_path("shelf://set/masks"))
    (pair,) = pairs
    size = (shelf / "set" / "imgs" / "a.png").stat().st_size
    assert str(pair.image) == "shelf://set/imgs/a.png" and pair.stamps[0] == (size, 7)
    assert pairs.storage is storage_of("shelf://set")
    with pairs.local(pair.mask) as local, Image.open(local) as mask:
        assert mask.size == (4, 3)


def test_each_storage_fetches_its_own_objects_and_drops_them_afterwards(shelf: Path) -> None:
    storage = storage_of("shelf://set")
    fetch_ahead([Path("here.png"), as_path("shelf://set/imgs/a.png")])
    assert storage.ahead == ["shelf://set/imgs/a.png"]  # type: ignore[attr-defined]
    fetch_ahead([shelf / "here.png"])
    assert storage.ahead == []  # type: ignore[attr-defined]
