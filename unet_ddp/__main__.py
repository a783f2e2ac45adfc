"""The program `unet-ddp`, and ``python -m unet_ddp``: its commands are found by name (plugins/built_in/)."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, cast

from unet_ddp import __version__
from unet_ddp.distributed.error_line import error_line
from unet_ddp.errors import RunError, UserError
from unet_ddp.files import read_errors
from unet_ddp.files.output import survive_lost_output
from unet_ddp.plugins import find, is_built_in, is_own, list_names

if TYPE_CHECKING:
    from unet_ddp.plugins.built_in.commands import Command

COMMANDS = {  # the built-in ones by groups: arguments, and what each does
    "Train and predict": {
        "train": ("--images DIR --masks DIR", "train a U-Net, as train.py does"),
        "predict": ("IMAGE ...", "predict masks, as predict.py does"),
    },
    "Data": {
        "doctor": ("--images DIR --masks DIR", "check a data set before training on it"),
        "import": ("FILE --images DIR -o DIR", "write masks from an annotation tool's file"),
        "pack": ("--images DIR ... -o URL", "write a data set as tar shards to train on"),
        "demo-data": ("[--kind leaves]", "write a built-in demo set, to try the program"),
    },
    "Results": {
        "evaluate": ("[--model FILE ...]", "score a network on images and masks"),
        "report": ("[RUN FOLDER]", "write a run's report.html again"),
        "compare": ("RUN ... [-o FILE]", "put runs into one table and one chart"),
        "tune": ("--vary NAME=VALUES ...", "search for settings by successive halving"),
        "learning-curve": ("--images DIR ...", "forecast the score with twice the labels"),
        "export": ("best.pt model.onnx", "write a network as a file for other programs"),
        "demo": ("[FILE ...]", "serve a page to try a network on images"),
        "serve": ("[FILE ...]", "answer images sent by HTTP with their masks"),
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names and return its exit status."""
    survive_lost_output()
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        print(_format_help())
        return 0
    if name == "--version":
        print(f"unet_ddp {__version__}")
        return 0
    return run(name, rest)


def _format_help() -> str:
    lines = ["unet_ddp: train a U-Net on any folder of images and masks, and predict masks", ""]
    lines += ["usage: python -m unet_ddp COMMAND ...   or: unet-ddp COMMAND ..."]
    groups = {**COMMANDS}
    built_in = [name for names in COMMANDS.values() for name in names]
    installed = [name for name in list_names("commands") if name not in built_in]
    if installed:
        groups["Of installed packages"] = dict.fromkeys(installed, ("...", ""))
    for heading, commands in groups.items():
        lines += ["", f"{heading}:"]
        for name, (arguments, about) in commands.items():
            usage = f"{name} {arguments}"
            lines.append(f"  {usage:<34}{about}".rstrip())
    return "\n".join([*lines, "", "COMMAND --help has its flags; --version has the version."])


def run(name: str, argv: Sequence[str] | None = None) -> int:
    """Run the command `name` with its own arguments and return its exit status."""
    # Read when torch is imported. By default libgomp's threads wait for each other for milliseconds without leaving
    # their core: beside one busy program, a step on two cores took five times as long.
    os.environ.setdefault("GOMP_SPINCOUNT", "4000")
    try:
        if not (is_built_in("commands", name) or is_own("commands", name)):
            known = ", ".join(name for names in COMMANDS.values() for name in names)
            raise UserError(f"{name}: unknown command; use one of {known}")
        # None is of train.py and predict.py, whose functions take it.
        with read_errors():
            return _import(name)(cast(Sequence[str], argv)) or 0
    except (UserError, RunError) as error:
        print(error_line(error), file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.ENAMETOOLONG) or error.filename is None:
            raise
        print(error_line(f"{error.filename}: {error.strerror}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _import(name: str) -> Command:
    """Return the function of a command.

    Raises:
        UserError: there is none, or a library is missing, as in a clone that is not installed.

    Ctrl-C while it is imported ends the process, as libraries would turn its exception into others.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not under nohup
        signal.signal(signal.SIGINT, _leave)
    try:
        return find("commands", name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("unet_ddp"):
            raise
        raise UserError(
            f"{error.name} is not installed in {sys.prefix}; activate the environment that has unet_ddp, "
            "or type python -m pip install -e ."
        ) from None
    finally:
        signal.signal(signal.SIGINT, before)


def start(command: Callable[[], int] = main) -> NoReturn:
    """Run a program and exit with its status; Ctrl-C after it ends Python at once, as libraries show tracebacks then."""
    try:
        sys.exit(command())
    finally:
        print(end="", flush=True)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not under nohup
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)


if __name__ == "__main__":
    start()
