"""``python -m unet_ddp COMMAND``: what is neither training nor predicting."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from unet_ddp.cli import parse
from unet_ddp.config import DemoConfig, ExportConfig
from unet_ddp.errors import RunError, UserError, one_line

HELP = """\
python -m unet_ddp doctor --images DIR --masks DIR    look at a data set before training on it
python -m unet_ddp evaluate [--model FILE …]          score a network on images and masks
python -m unet_ddp report [RUN FOLDER]                write a run's report.html anew
python -m unet_ddp demo-data [--folder DIR]           write the built-in demo set
python -m unet_ddp export best.pt model.onnx          write a network for other programs"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command named first; exit status 2 after a mistake."""
    words = list(sys.argv[1:] if argv is None else argv)
    commands = {
        "doctor": doctor,
        "evaluate": evaluate,
        "report": report,
        "demo-data": demo_data,
        "export": export,
    }
    try:
        if not words or words[0] in ("-h", "--help"):
            print(HELP)
            return 0
        if words[0] not in commands:
            raise UserError(f"{words[0]}: no such command; there is {', '.join(commands)}")
        return commands[words[0]](words[1:])
    except UserError as mistake:
        print(f"error: {one_line(mistake)}", file=sys.stderr)
        return 2
    except RunError as failure:
        print(f"error: {one_line(failure)}", file=sys.stderr)
        return 1


def doctor(words: Sequence[str]) -> int:
    """Look at a data set."""
    from unet_ddp.commands.doctor import doctor

    return doctor(words)


def demo_data(words: Sequence[str]) -> int:
    """Write the demo set."""
    from unet_ddp.data.demo import write_demo

    config = parse(DemoConfig, words, prog="python -m unet_ddp demo-data")
    folder = write_demo(Path(config.folder))
    print(f"{folder}: imgs and masks to train on, unseen to predict")
    return 0


def export(words: Sequence[str]) -> int:
    """Write a checkpoint as a file for other programs."""
    from unet_ddp.commands.export import export as write

    config = parse(ExportConfig, words, prog="python -m unet_ddp export")
    for line in write(config):
        print(line)
    return 0


def evaluate(words: Sequence[str]) -> int:
    """Score a trained network."""
    from unet_ddp.commands.evaluate import main

    main(words)


def report(words: Sequence[str]) -> int:
    """Write a run's report."""
    from unet_ddp.commands.report import main

    return main(words)


if __name__ == "__main__":
    sys.exit(main())
