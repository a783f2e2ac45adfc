"""What the rulers count, on a small package, and that one more is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import rulers

FILES = {
    "data/labels": "from typing import Any\nclass Labels:\n    kind = 1\n    def a(self): ...\n    def b(self): ...\n    def c(self): ...\n",
    "extras/one": "class One(Labels):\n    kind = 2\n    def a(self): ...\n    def new(self): ...\n",
    "extras/two": "class Two(One):\n    def a(self): ...\n    def b(self, x: Any): ...\n",
    "training/step": "import torch\nimport unet_ddp.errors\nfrom unet_ddp.data.labels import Labels\nx = 1\n",
    "errors": "def explain(error: Any, *rest: int) -> dict[str, Any]: ...\n",
    "plugins/built_in/of_data": 'A: Parts[int] = {"x": _x}\nB: Parts[int] = {}\nC: Parts[int] = {"x": _x, "y": _y}\n',
}
EXPECTED = {
    "heart: statements and expressions": 6 + 14,
    "heart: files": 2,
    "heart: modules that it imports from outside itself": 1,  # the errors
    "hooks of Labels, Pairs and OpenFile that one subclass overrides": 2,  # kind and b, not a or c
    "signatures of the core that say Any": 1,
    "points with one part": 1,
}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "unet_ddp" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(rulers, "HEART", ["training/step", "data/labels"])
    monkeypatch.setattr(rulers, "BASES", {"Labels": "data/labels"})
    return tmp_path


def test_each_ruler_counts_what_it_says(checkout: Path) -> None:
    assert rulers.measure(checkout) == EXPECTED


@pytest.mark.parametrize("name", EXPECTED)
def test_one_more_is_an_error(
    checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(rulers, "LIMITS", EXPECTED)
    assert rulers.main([str(checkout), "--check"]) == 0
    monkeypatch.setattr(rulers, "LIMITS", {**EXPECTED, name: EXPECTED[name] - 1})
    assert rulers.main([str(checkout)]) == 0
    assert rulers.main([str(checkout), "--check"]) == 1
    said = f"error: {name}: {EXPECTED[name]}; at most {EXPECTED[name] - 1}\n"
    assert capsys.readouterr().err == said


def test_the_heart_is_there() -> None:
    root = Path(__file__).parents[2]
    assert all((root / "unet_ddp" / f"{place}.py").is_file() for place in rulers.HEART)
