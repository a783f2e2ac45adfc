"""The commands of this package."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unet_ddp.plugins.built_in.parts import Parts

Command = Callable[[Sequence[str]], int | None]


def _train() -> Command:
    from unet_ddp.commands.train import main

    return main


def _predict() -> Command:
    from unet_ddp.commands.predict import main

    return main


def _doctor() -> Command:
    from unet_ddp.commands.doctor import main

    return main


def _evaluate() -> Command:
    from unet_ddp.commands.evaluate import main

    return main


def _import() -> Command:
    from unet_ddp.extras.annotations.command import main

    return main


def _pack() -> Command:
    from unet_ddp.commands.pack import main

    return main


def _report() -> Command:
    from unet_ddp.extras.report.command import main

    return main


def _compare() -> Command:
    from unet_ddp.extras.report.compare import main

    return main


def _tune() -> Command:
    from unet_ddp.extras.tune.command import main

    return main


def _learning_curve() -> Command:
    from unet_ddp.commands.learning_curve import main

    return main


def _export() -> Command:
    from unet_ddp.extras.onnx.export import main

    return main


def _demo() -> Command:
    from unet_ddp.extras.demo.command import main

    return main


def _serve() -> Command:
    from unet_ddp.extras.serve.command import main

    return main


def _demo_data() -> Command:
    from unet_ddp.extras.demo_set.command import main

    return main


COMMANDS: Parts[Command] = {
    "train": _train,
    "predict": _predict,
    "doctor": _doctor,
    "evaluate": _evaluate,
    "import": _import,
    "pack": _pack,
    "report": _report,
    "compare": _compare,
    "tune": _tune,
    "learning-curve": _learning_curve,
    "export": _export,
    "demo": _demo,
    "serve": _serve,
    "demo-data": _demo_data,
}
"""`python -m unet_ddp NAME …`: arguments of the command line to the exit status."""
