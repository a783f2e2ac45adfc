"""The demo-data command."""

from __future__ import annotations

from pathlib import Path

import pytest

from unet_ddp.errors import UserError
from unet_ddp.extras.demo_set import command as demo_data


@pytest.mark.parametrize(
    ("argv", "folder", "kind"),
    [
        ([], Path("data/demo"), "cars"),
        (["-o", "a"], Path("a"), "cars"),
        (["--kind", "leaves", "--folder", "a"], Path("a"), "leaves"),
        (["--kind", "leaves"], Path("data/leaves"), "leaves"),
        (["--kind", "cells"], Path("data/cells"), "cells"),
        (["--kind", "cells", "--output", "a"], Path("a"), "cells"),
    ],
)
def test_demo_data(
    argv: list[str],
    folder: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written = []
    monkeypatch.setattr(
        demo_data, "write_demo", lambda path, kind: written.append((path, kind)) or path
    )
    assert demo_data.main(argv) == 0
    assert written == [(folder, kind)]
    assert capsys.readouterr().out == f"{folder}: imgs and masks to train on, unseen to predict\n"


def test_an_address_is_no_folder() -> None:
    with pytest.raises(UserError, match="--output s3://b/x: is an address"):
        demo_data.main(["--output", "s3://b/x"])
