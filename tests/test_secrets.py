"""Passwords and keys in addresses: no command shows them, or writes them into a file or its name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
import tyro

from tests.ranks import call_main
from unet_ddp.__main__ import COMMANDS
from unet_ddp.config import TrainConfig
from unet_ddp.settings import settings_of

SECRET = "hunter2"
ADDRESSES = {
    "userinfo": f"http://user:{SECRET}pass@127.0.0.1:9/x.jpg",
    "signed": f"https://127.0.0.1:9/x.pt?v=1&X-Amz-Signature={SECRET}&token={SECRET}",
}
NOWHERE = ["--images", "nowhere", "--masks", "nowhere"]
OTHERS = {  # arguments without which a command ends before it looks at the one under test
    "train": NOWHERE,
    "doctor": NOWHERE,
    "pack": [*NOWHERE, "--output", "packed"],
    "tune": [*NOWHERE, "--vary", "lr=0.1,0.01"],
    "learning-curve": NOWHERE,
    "import": ["--images", "nowhere", "--output", "masks"],
    "predict": [],
    "evaluate": ["--images", "nowhere", "--masks", "nowhere"],
    "report": [],
    "compare": [],
    "export": [],
    "demo": [],
    "serve": [],
    "demo-data": [],
}
KINDS = {
    "train": "unet_ddp.config:TrainConfig",
    "doctor": "unet_ddp.commands.doctor:DoctorConfig",
    "pack": "unet_ddp.extras.packs.command:PackConfig",
    "tune": "unet_ddp.extras.tune.command:TuneConfig",
    "learning-curve": "unet_ddp.extras.learning_curve.command:CurveConfig",
    "import": "unet_ddp.extras.annotations.command:ImportConfig",
    "predict": "unet_ddp.prediction.config:PredictConfig",
    "evaluate": "unet_ddp.commands.evaluate:EvaluateConfig",
    "report": "unet_ddp.extras.report.command:ReportConfig",
    "compare": "unet_ddp.extras.report.compare:CompareConfig",
    "export": "unet_ddp.extras.onnx.export:ExportConfig",
    "demo": "unet_ddp.extras.demo.command:PageConfig",
    "serve": "unet_ddp.extras.serve.settings:ServeConfig",
    "demo-data": "unet_ddp.extras.demo_set.command:DemoConfig",
}


def takes_text(hint: Any) -> bool:
    return hint is str or any(map(takes_text, get_args(hint)))


def list_calls(command: str) -> Iterator[list[str]]:
    """Yield the arguments of a call with each address in each place that takes a text."""
    module, _, name = KINDS[command].partition(":")
    kind = getattr(import_module(module), name)
    shared = settings_of(TrainConfig).keys() - {"images"}  # train's are tested there
    for address in ADDRESSES.values():
        positional = []
        for each in settings_of(kind).values():
            if takes_text(each.hint) and tyro.conf.Positional in each.notes:
                positional.append(address)
        yield [*positional, *OTHERS[command]]
        for name, each in settings_of(kind).items():
            is_new = command == "train" or not (issubclass(kind, TrainConfig) and name in shared)
            if is_new and takes_text(each.hint) and each.flag.startswith("--"):
                yield [*positional, *OTHERS[command], each.flag, address]


def test_every_command_is_tested() -> None:
    assert {*KINDS} == {*OTHERS} == {name for names in COMMANDS.values() for name in names}


@pytest.mark.parametrize("command", KINDS)
def test_no_command_shows_the_secrets_of_an_address(command: str, tmp_path: Path) -> None:
    shown = ""
    for argv in list_calls(command):
        status, out, err = call_main("unet_ddp.__main__", [command, *argv], str(tmp_path))
        assert SECRET not in out + err, argv
        assert status or "--help" in argv or command == "demo-data", argv
        shown += out + err
    assert "127.0.0.1" in shown  # the rest of an address is
    for path in tmp_path.rglob("*"):
        assert SECRET not in str(path)
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
