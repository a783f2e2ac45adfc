"""The demo-data command."""

from __future__ import annotations

from pathlib import Path

import pytest

from unet_ddp.errors import UserError
from unet_ddp.extras.demo_set import command as demo_data


@pytest.mark.parametrize(
    ("argv", "folder"), [([], Path("data/demo")), (["--folder", "a"], Path("a"))]
)
def test_demo_data(
    argv: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written = []
    monkeypatch.setattr(demo_data, "write_demo", lambda path: written.append(path) or path)
    assert demo_data.main(argv) == 0
    assert written == [folder]
    assert capsys.readouterr().out == f"{folder}: imgs and masks to train on, unseen to predict\n"


def test_an_address_is_no_folder() -> None:
    with pytest.raises(UserError, match="--folder s3://b/x: is an address"):
        demo_data.main(["--folder", "s3://b/x"])
