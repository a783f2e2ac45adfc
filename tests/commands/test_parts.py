"""The parts that settings ask for are handed in, and are not imported without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from unet_ddp.cli import parse_train
from unet_ddp.commands.train_parts import choose_parts
from unet_ddp.extras.cache.samples import open_cache
from unet_ddp.extras.diagnose.compiled import compile_network, log_uncompiled
from unet_ddp.extras.transfer.pretrained import normalise_for
from unet_ddp.runs.run_parts import RunParts


def test_a_run_has_the_parts_that_its_settings_ask_for() -> None:
    assert choose_parts(parse_train([])) == RunParts()
    assert choose_parts(parse_train(["--cache"])) == RunParts(open_cache=open_cache)
    assert choose_parts(parse_train(["--compile"])) == RunParts(
        compile_network=compile_network, log_uncompiled=log_uncompiled
    )
    argv = ["--model", "fpn", "--encoder", "resnet18", "--encoder-weights", "imagenet"]
    assert choose_parts(parse_train(argv)) == RunParts(encoder_pixels=normalise_for)


@pytest.mark.processes
def test_parts_that_no_setting_asks_for_are_not_imported() -> None:
    code = """
import sys
from unet_ddp.cli import parse_train
from unet_ddp.commands import train
from unet_ddp.commands.train_parts import choose_parts
choose_parts(parse_train([]))
asked = "against.other", "cache.samples", "demo_set", "diagnose.compiled", "overlap.checks", "report", "transfer"
extras = tuple(f"unet_ddp.extras.{name}" for name in asked)
print([name for name in sys.modules if name.startswith(extras)])
"""
    root = Path(__file__).parents[2]
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
