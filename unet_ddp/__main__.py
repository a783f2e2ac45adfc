"""The program `unet-ddp`, and ``python -m unet_ddp``: one command each of `commands/`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword
from signal import SIGINT

from unet_ddp.errors import RunError, UserError, one_line, survive_lost_output
from unet_ddp.files import exit_on_signals

COMMANDS = {  # each is the main() of a module of its name, import of import_
    "train": ("--images DIR --masks DIR", "train a U-Net, as train.py does"),
    "predict": ("IMAGE ...", "predict masks, as predict.py does"),
    "doctor": ("--images DIR --masks DIR", "check a data set before training on it"),
    "import": ("FILE --images DIR -o DIR", "write masks from an annotation tool's file"),
    "pack": ("--images DIR ... -o URL", "write a data set as tar shards to train on"),
    "evaluate": ("[--model FILE ...]", "score a network on images and masks"),
    "report": ("[RUN FOLDER]", "write a run's report.html again"),
    "compare": ("RUN ... [-o FILE]", "put runs into one table and one chart"),
    "tune": ("--vary NAME=VALUES ...", "search for settings by successive halving"),
    "export": ("best.pt model.onnx", "write a network as a file for other programs"),
    "demo": ("[FILE ...]", "serve a page to try a network on images"),
    "demo-data": ("[--folder DIR]", "write the built-in demo set"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names and return its exit status."""
    survive_lost_output()
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        for command, (arguments, about) in COMMANDS.items():
            print(f"python -m unet_ddp {f'{command} {arguments}':<33}  {about}")
        return 0
    try:
        if name not in COMMANDS:
            raise UserError(f"{name}: unknown command; use one of {', '.join(COMMANDS)}")
        file = name.replace("-", "_") + "_" * iskeyword(name)
        module = import_module(f"unet_ddp.commands.{file}")
        if argv is None and name == "predict":  # train saves first
            exit_on_signals()
        status: int = module.main(rest)
        return status
    except (UserError, RunError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        return 128 + SIGINT


if __name__ == "__main__":
    sys.exit(main())
