"""A part of the user's own is imported from the text that is recorded, whatever the process has imported before."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from unet_ddp.errors import UserError
from unet_ddp.plugins import find, read_sources
from unet_ddp.plugins.own import path_of, renew

KINDS = {
    "function": "def mine(*values):\n    return helper({n})\n",
    "class": "class mine:\n    def __init__(self, *values): pass\n    def __call__(self): return helper({n})\n",
    "instance": "class Kind:\n    def __call__(self, *values): return helper({n})\nmine = Kind()\n",
    "partial": "import functools\ndef f(n, *values): return helper(n)\nmine = functools.partial(f, {n})\n",
    "method": "class Kind:\n    def call(self, *values): return helper({n})\nmine = Kind().call\n",
    "decorated": (
        "import functools\ndef f(*values): return helper({n})\n"
        "@functools.wraps(f)\ndef mine(*values): return f(*values)\n"
    ),
    "lambda": "mine = lambda *values: helper({n})\n",
    "module": (
        "from torch import nn\nclass Kind(nn.Module):\n"
        "    def forward(self, *values): return helper({n})\nmine = Kind()\n"
    ),
}
POINTS = (
    "losses", "augmentations", "readers", "callbacks", "networks", "planners", "outputs",
    "backends",
)  # fmt: skip
HELPER = "def helper(n):\n    return n + {more}\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what writes `zoo.py` and its helper, always of one size and time, as an edit within a second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("zoo", "zoo_helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def write(kind: str, n: int, more: int = 0) -> None:
        texts = {
            "zoo": "from zoo_helper import helper\n" + KINDS[kind].format(n=n),
            "zoo_helper": HELPER.format(more=more),
        }
        for name, text in texts.items():
            Path(f"{name}.py").write_text(text)
            os.utime(f"{name}.py", (10**9, 10**9))

    return write


def call(part: Any) -> Any:
    found = part()
    return found() if callable(found) else found


@pytest.mark.parametrize(("kind", "point"), [*product(KINDS, POINTS)])
def test_an_edit_is_run_and_recorded(write: Callable[..., None], kind: str, point: str) -> None:
    """In the next call, not in this one; an edit of a helper, too, and one that leaves a size and a time as they were."""
    for n, more in ((1, 0), (2, 0), (2, 3)):
        write(kind, n, more)
        renew()
        assert call(find(point, "zoo:mine")) == n + more
        texts = read_sources(point, "zoo:mine")
        assert texts == {
            "zoo:mine": Path("zoo.py").read_text(),
            "zoo_helper": HELPER.format(more=more),
        }
        write(kind, 7, 7)  # while it runs
        assert call(find(point, "zoo:mine")) == n + more
        assert read_sources(point, "zoo:mine") == texts


@pytest.mark.parametrize("has_pyc", [True, False], ids=["pyc", "no pyc"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_user_has_imported_is_kept_until_its_file_differs(
    write: Callable[..., None], monkeypatch: pytest.MonkeyPatch, kind: str, has_pyc: bool
) -> None:
    """So a callback's list is seen where it was imported; an object of before is its module's new one."""
    monkeypatch.setattr(
        sys, "dont_write_bytecode", not has_pyc
    )  # as many images of containers have it
    write(kind, 1)
    sys.path.insert(0, str(Path.cwd()))
    zoo = __import__("zoo")
    renew()
    same = find("losses", "zoo:mine")
    is_known = sys.modules["zoo"] is zoo  # by its .pyc, which need not be written
    assert not is_known or same == zoo.mine
    write(kind, 2)
    renew()
    assert path_of(zoo.mine) == "zoo:mine"
    assert call(find("losses", "zoo:mine")) == 2
    assert path_of(zoo.mine) == "zoo:mine"


def test_each_folder_has_its_own_module_of_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None]
) -> None:
    for n, folder in enumerate(("a", "b", "a")):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        write("function", n)
        renew()
        assert find("losses", "zoo:mine")() == n
    assert str(tmp_path / "b") not in sys.path


def test_a_package_with_relative_imports_is_imported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for n in (1, 2):
        files = {
            "__init__.py": "",
            "losses.py": "from . import deep\nfrom .deep.numbers import N\ndef mine(): return N + deep.M\n",
            "deep/__init__.py": f"M = {10 * n}\n",
            "deep/numbers.py": f"N = {n}\n",
        }
        for name, text in files.items():
            path = tmp_path / "zoo_package" / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text)
        renew()
        assert find("losses", "zoo_package.losses:mine")() == 11 * n
        texts = read_sources("losses", "zoo_package.losses:mine")
        assert sorted(texts.values()) == sorted(files.values())


def test_a_mended_error_in_a_package_is_gone_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a failed import has loaded is not used again: a package in part would be a circular import."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "parcel" / "sub").mkdir(parents=True)
    (tmp_path / "parcel" / "__init__.py").write_text("from .sub.losses import mine\n")
    (tmp_path / "parcel" / "sub" / "__init__.py").write_text("")
    (tmp_path / "parcel" / "sub" / "losses.py").write_text(
        "from ..scale import ONE\nfrom . import extra\ndef mine(): return ONE * extra.K\n"
    )
    (tmp_path / "parcel" / "scale.py").write_text("ONE = 1")
    for name in [each for each in sys.modules if each.partition(".")[0] == "parcel"]:
        monkeypatch.delitem(sys.modules, name)
    for text, expected in (("K = 1", 1), ("K = 2\ndef (", None), ("K = 2", 2)):
        (tmp_path / "parcel" / "sub" / "extra.py").write_text(text)
        renew()
        if expected is None:
            with pytest.raises(UserError, match="parcel"):
                find("losses", "parcel.sub.losses:mine")
        else:
            assert call(find("losses", "parcel.sub.losses:mine")) == expected


def test_an_installed_package_keeps_its_modules() -> None:
    before = sys.modules["torch.nn"]
    renew()
    find("losses", "torch.nn:CrossEntropyLoss")
    assert sys.modules["torch.nn"] is before
    texts = read_sources("losses", "torch.nn:CrossEntropyLoss")
    assert "class CrossEntropyLoss" in texts["torch.nn.modules.loss"]
