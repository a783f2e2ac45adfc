"""The pages that are made from the program: docs/reference/flags.md, docs/reference/python.md, the notebook, a stub.

    python -m benchmarks.reference [--check]

Flags come from the settings and docstrings that --help prints, the Python interface from its docstrings,
and docs/tutorials/notebook.ipynb from notebook.py beside it.
Without `--check` the pages are written. With it they are compared, and exit status 1 says that one differs.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from benchmarks.notebook import make_notebook
from benchmarks.reference_python import format_python
from benchmarks.reference_stub import format_stub
from benchmarks.timing import new_parser
from unet_ddp.__main__ import COMMANDS as PROGRAMS
from unet_ddp.cli.help import describe, divide, name_flag
from unet_ddp.commands.doctor import DoctorConfig
from unet_ddp.commands.evaluate import EvaluateConfig
from unet_ddp.config import TrainConfig
from unet_ddp.extras.annotations.command import ImportConfig
from unet_ddp.extras.demo.command import PageConfig
from unet_ddp.extras.demo_set.command import DemoConfig
from unet_ddp.extras.learning_curve.curve import CurveConfig
from unet_ddp.extras.onnx.export import ExportConfig
from unet_ddp.extras.packs.command import PackConfig
from unet_ddp.extras.report.command import ReportConfig
from unet_ddp.extras.report.compare import CompareConfig
from unet_ddp.extras.serve.settings import ServeConfig
from unet_ddp.extras.tune.command import TuneConfig
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.settings import Excludes, Needs, Setting, as_flag, pairs_of, settings_of

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs"
COMMANDS: dict[str, Any] = {
    "train": TrainConfig, "predict": PredictConfig, "doctor": DoctorConfig, "evaluate": EvaluateConfig,
    "import": ImportConfig, "pack": PackConfig, "report": ReportConfig, "compare": CompareConfig,
    "tune": TuneConfig, "learning-curve": CurveConfig, "export": ExportConfig, "demo": PageConfig, "serve": ServeConfig,
    "demo-data": DemoConfig,
}  # fmt: skip
_FLAGS = """# Flags

All commands with all of their flags, as these lines print them:

    unet-ddp train --help-all
    unet-ddp COMMAND --help-all

`python train.py` and `python predict.py` are short for `python -m unet_ddp train` and `predict`. After the
installation, `unet-ddp COMMAND` is the same as `python -m unet_ddp COMMAND`.

- Hyphens and underscores both work: `--batch-size` and `--batch_size`.
- A flag without a value is a switch.
- `NAME ...` stands for several values, separated by spaces.
- A recipe (`--config FILE`) has the same names with underscores: `batch_size: 8`.
- A flag on the command line wins over a recipe, and a recipe over a default.

<!-- Made by `python -m benchmarks.reference`: edit the docstrings, and run it again. -->
"""
_CODE = r"""(?x)
    --[a-z][\w-]*(?:=\w+)? | \b[A-Z]+:[A-Z]+\b |                 # a flag, a path of imports
    (?:https?|s3|gs|az)://(?:[\w./…]*[\w/…])? | '[^' ]*\*[^' ]*' |     # an address, a pattern
    [\w./-]*\.(?:csv|gif|html|jpg|json|md|npy|onnx|png|pt|py|txt|yaml)\b |
    \b[\w.,=#-]*[_=#][\w.,=#-]*\w | \#\w+                        # a name
"""
_INDENT = {"initial_indent": "    ", "subsequent_indent": "    ", "break_on_hyphens": False}
_WIDEST = 100  # characters of a line of code
_FEWEST = 5  # flags of predict that a command shares, to name them only
_OBVIOUS = (
    "0 or more",
    "1 or more",
    "above 0",
    "above 0 and at most 1000000",
    "-2147483648 or more and at most 2147483647",
)


# -- flags ---------------------------------------------------------------------------------


def format_flags() -> str:
    """Return the page of all commands' flags."""
    return "\n".join([_FLAGS, *(line for name in COMMANDS for line in _format_command(name))])


def _format_command(name: str) -> Iterator[str]:
    """Yield the lines about a command; flags that it shares with train or predict are only named."""
    kind = COMMANDS[name]
    unused = getattr(kind, "unused", frozenset[str]())
    settings = {name: each for name, each in settings_of(kind).items() if name not in unused}
    other, shared = _find_shared(kind, settings)
    yield f"## {name}\n"
    yield from (f"{each}\n" for each in _describe_command(kind, name))
    own = {each: settings[each] for each in settings if each not in shared}
    for heading, names in divide(kind, own).items():
        if heading:
            yield f"### {heading}\n"
        yield from (_format_flag(kind, each, settings[each]) for each in names)
        yield ""
    if shared:
        of_other = settings_of(COMMANDS[other])
        taken, left = shared, of_other.keys() - settings.keys()
        text = f"It also takes these flags of [{other}](#{other}):\n"
        if len(left) < len(taken):
            text, taken = f"It also takes all flags of [{other}](#{other}) but these:\n", left
        yield text
        names = " ".join(as_flag(each) for each in of_other if each in taken)
        yield textwrap.fill(names, _WIDEST, **_INDENT) + "\n"


def _find_shared(kind: Any, settings: dict[str, Setting]) -> tuple[str, set[str]]:
    """Return which command has flags that another one takes, too, and their names; none for a few."""
    if kind in (TrainConfig, PredictConfig):
        return "", set()
    if issubclass(kind, TrainConfig):
        of_train = settings_of(TrainConfig)
        return "train", {each for each in of_train if settings.get(each) == of_train[each]}
    same = set()
    for each, setting in settings_of(PredictConfig).items():
        item = _format_flag(PredictConfig, each, setting)
        if each in settings and _format_flag(kind, each, settings[each]) == item:
            same.add(each)
    return "predict", same if len(same) >= _FEWEST else set()


def _describe_command(kind: Any, name: str) -> Iterator[str]:
    """Yield the paragraphs of a command's docstring, those with a command line as code."""
    has_example = False
    for text in (inspect.getdoc(kind) or "").split("\n\n"):
        is_code = re.search(r"^(?:.*  )?(?:python|torchrun) ", text, flags=re.M)
        has_example |= bool(is_code)
        yield textwrap.indent(text, "    ") if is_code else mark_code(text)
    if not has_example:
        words = next(group[name][0] for group in PROGRAMS.values() if name in group)
        yield f"    python -m unet_ddp {name} {words}"


def _format_flag(kind: Any, name: str, setting: Setting) -> str:
    """Return the item of a flag: its names and value, then its meaning, default and limits."""
    flags, value = [], ""
    for word in name_flag(name, setting).split(", "):
        flag, _, value = word.partition(" ") if word.startswith("-") else ("", "", word)
        flags += [f"`{flag}`"] * bool(flag)
    text, _, default = describe(kind, setting).removesuffix(".").partition(" (default: ")
    text, default = text.removesuffix(" (required)").rstrip("."), default.removesuffix(")")
    if "|" in value and value.islower():
        text = re.sub(rf"(^|[.;] )({value})(?=: )", r"\1`\2`", text)
    if setting.default is MISSING:
        default = "required"
    if setting.default is True:
        default = "on"
    for rule, words in ((Excludes, "Not with"), (Needs, "Only with")):
        pairs = [pair for pair in pairs_of(kind, rule) if name in pair]
        others = [as_flag(other) for pair in pairs for other in pair if other != name]
        others = [f"`{other}`" for other in others if other not in text]
        text += f". {words} {', '.join(others)}" * bool(others)
    value, limits = _format_values(value, setting)
    if "<" in text or limits in _OBVIOUS:  # the text has its limits
        limits = ""
    text += _format_facts(default, limits)
    names = f"**{value}**"
    if flags:
        names = f"**{', '.join(flags)}** {value}".strip()
    return mark_code(f"- {names}: {text}.").replace("  ", " ")


def _format_facts(default: str, limits: str) -> str:
    """Return what stands behind a flag's meaning: its limits, its default, or that it is required."""
    text = f". Limit: {limits}" if limits else ""
    if default == "required":
        return f"{text}. Required"
    return f"{text}. Default: {default}" if default else text


def _format_values(metavar: str, setting: Setting) -> tuple[str, str]:
    """Return what may follow a flag, a name for it or all choices, and its limits."""
    if metavar.islower():
        choices = [f"`{choice}`" for choice in metavar.split("|")]
        return ", ".join(choices), ""
    limits = ", ".join(str(limit) for limit in setting.limits)
    return (f"`{metavar.replace('|', '` or `')}`", limits) if metavar else ("", "")


def mark_code(text: str) -> str:
    """Return a text in which flags, names of files and the like are code, and documents links."""
    parts = re.split(r"(`[^`]*`)", text)
    for k in range(0, len(parts), 2):
        parts[k] = re.sub(_CODE, lambda found: f"`{found[0]}`", parts[k])
        parts[k] = re.sub(r"`docs/(?:([\w-]+)/)?([\w-]+\.md)`", _link, parts[k])
    return "".join(parts)


def _link(found: re.Match[str]) -> str:
    """Return the link to a document from a page of reference/."""
    return f"[{found[2]}](../{found[1] + '/' if found[1] else ''}{found[2]})"


# -- all pages ----------------------------------------------------------------------------------


def make_pages() -> dict[str, str]:
    """Return the text of each page, by its name in docs/."""
    source = (ROOT / "docs/tutorials/notebook.py").read_text(encoding="utf-8")
    pages = {
        "reference/flags.md": format_flags(),
        "reference/python.md": format_python(),
        "tutorials/notebook.ipynb": make_notebook(source),
        "../unet_ddp/train_stub.pyi": format_stub(),
    }
    return {name: text.rstrip() + "\n" for name, text in pages.items()}


def main(argv: list[str] | None = None) -> int:
    """Write the pages, or compare them; return 1 if one differs."""
    parser = new_parser(__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a page differs"
    )
    options = parser.parse_args(argv)
    status = 0
    for name, text in make_pages().items():
        path = FOLDER / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if options.check:
            print(f"error: {path} differs; type python -m benchmarks.reference", file=sys.stderr)
            status = 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    return status


if __name__ == "__main__":
    sys.exit(main())
