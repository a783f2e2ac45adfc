"""The page docs/reference/python.md: all that is in `unet_ddp`, from its docstrings; see reference.py."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import unet_ddp
from unet_ddp.cli.help import read_docs

MEMBERS = {  # of the names in unet_ddp: what its users call or read
    "train": (),
    "TrainedRun": ("__init__", "path", "network", "metrics", "predictor"),
    "evaluate": (),
    "EvaluationResult": (
        "images", "dice", "iou", "pixel_accuracy", "calibration_error", "threshold", "best_threshold", "classes",
        "objects", "intervals", "per_image", "text",
    ),
    "check": (),
    "DataCheck": ("problems", "warnings", "notes", "is_fit", "training", "validation", "sizes", "classes", "text"),
    "export": (),
    "ExportResult": ("path", "runtimes", "text"),
    "Predictor": ("from_checkpoint", "__call__", "batch", "logits"),
    "Prediction": ("mask", "ids", "probabilities", "shares", "labels", "size", "threshold", "to_image"),
    "Labels": ("__init__", "num_classes", "class_names", "colours", "nodata", "to_ids", "to_image"),
    "UserError": (),
    "RunError": (),
}  # fmt: skip
_PYTHON = """# Python

An editor and a notebook show this page's texts, and so does

    python -c "import unet_ddp; help(unet_ddp.train)"

All names in `unet_ddp`; [what stays](public.md) says how long. Everything else is internal.
[From Python](../how-to/from-arrays.md) shows how to use them. [Parts of your own](../own_parts.md) has the
interfaces of losses, networks, readers and outputs of your own. [Flags](flags.md#train) has the settings of `train`; an editor shows their types.

In shapes, N is the number of images, C of classes, H and W are height and width in pixels. The examples
begin with `import unet_ddp` and `from unet_ddp import Labels, Predictor`.

<!-- Made by `python -m benchmarks.reference`: edit the docstrings, and run it again. -->
"""
_TITLES = {
    "Attributes": "Attributes",
    "Args": "Arguments",
    "Raises": "Raises",
    "Example": "Example",
}
_INSTANCES = {
    "TrainedRun": "run",
    "Predictor": "predictor",
    "Prediction": "prediction",
    "Labels": "labels",
}
_ALIASES = {
    "Data": "str | PathLike[str] | Items | None",
    "_Code": "int", "_Int32": "int", "_Threshold": "int", "Colour": "tuple[int, int, int]", "Size": "tuple[int, int]", "Mask": "NDArray",
    "Ids": "NDArray[np.uint8]", "Codes": "NDArray", "Scores": "NDArray[np.float32]", "np.generic": "Any",
}  # fmt: skip
_MODULES = r"\b(?:collections\.abc|os|unet_ddp\.[\w.]+)\."
_WIDEST = 88  # characters of a signature in one line
_MOST, _SHOWN = (
    20,
    3,
)  # arguments of a signature: of train, which has more, only images and masks are shown


def format_python() -> str:
    """Return the page of all that is in `unet_ddp`."""
    return "\n".join([_PYTHON, *(line for name in MEMBERS for line in _format_name(name))])


def _format_name(name: str) -> Iterator[str]:
    """Yield the lines about a function or class, and about its members."""
    item = getattr(unet_ddp, name)
    yield f"## {name}\n"
    if isinstance(item, type) and issubclass(item, Exception):
        yield f"```python\nclass unet_ddp.{name}({item.__base__.__name__})\n```\n"
    elif "__init__" in MEMBERS[name] or not isinstance(item, type):
        yield format_signature(f"unet_ddp.{name}", item)
    yield from format_docstring(item.__doc__)
    values = [_format_value(item, each) for each in MEMBERS[name] if is_value(item, each)]
    if values:
        yield "\n".join(["| attribute | type | meaning |\n|---|---|---|", *values, ""])
    for each in MEMBERS[name]:
        if each != "__init__" and not is_value(item, each):
            method = getattr(item, each)
            owner = name if inspect.ismethod(method) else _INSTANCES[name]
            shown = owner if each == "__call__" else f"{owner}.{each}"
            yield f"### {shown}\n"
            yield format_signature(shown, method)
            yield from format_docstring(method.__doc__)


def is_value(kind: type[Any], name: str) -> bool:
    """Return whether a member of a class is read, and not called."""
    return name != "__init__" and not callable(getattr(kind, name, None))


def _format_value(kind: type[Any], name: str) -> str:
    """Return the row of an attribute: the docstring of a property or field, without its sections."""
    found = inspect.getattr_static(kind, name, None)
    function = getattr(found, "fget", None) or getattr(found, "func", None)
    hint = inspect.get_annotations(function or kind)["return" if function else name]
    text = (inspect.getdoc(function) or "") if function else read_docs(kind)[name]
    meaning = " ".join(text.partition("\n\n")[0].split())
    return f"| `{name}` | `{_plain(hint)}` | {meaning} |".replace(" | None`", "` or `None`")


def format_signature(shown: str, function: Any) -> str:
    """Return the line, or lines, of a signature as code."""
    signature = inspect.signature(function)
    words, is_named = list[str](), False
    for each in signature.parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.VAR_POSITIONAL or (each.kind is each.KEYWORD_ONLY and not is_named):
            is_named = True
            words += ["*"] * (each.kind is each.KEYWORD_ONLY)
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        default = f" = {each.default!r}" * (each.default is not each.empty)
        words += [f"{stars}{each.name}: {_plain(each.annotation)}{default}"]
    if len(words) > _MOST:
        words = [*words[:_SHOWN], "**settings: Any"]
    result = _plain(signature.return_annotation)
    end = f" -> {result}" if result not in ("None", "") else ""
    line = f"{shown}({', '.join(words)}){end}"
    if len(line) > _WIDEST:
        line = "".join([f"{shown}(\n", *(f"    {word},\n" for word in words), f"){end}"])
    return f"```python\n{line}\n```\n"


def show_type(hint: Any) -> str:
    """Return the text of a type, as it stands in a program that has imported its names."""
    text = re.sub(_MODULES, "", inspect.formatannotation(hint)).replace("NoneType", "None")
    union = re.fullmatch(r"Union\[(.*)\]", text)
    return " | ".join(re.split(r", (?![^\[]*\])", union[1])) if union else text


def _plain(hint: Any) -> str:
    """Return a type without the names that are internal; empty for none."""
    if hint is inspect.Signature.empty:
        return ""
    hint = hint if isinstance(hint, str) else show_type(hint)
    return re.sub(r"[\w.]+", lambda found: _ALIASES.get(found[0], found[0]), hint)


def format_docstring(text: str | None) -> Iterator[str]:
    """Yield the text of a docstring, then its sections as lists or code."""
    whole = inspect.cleandoc(text or "")
    parts = re.split(rf"^({'|'.join(_TITLES)}):\n((?:    .*\n?|\n)+)", whole, flags=re.M)
    yield "\n".join(f"{each.strip()}\n" for each in parts[0::3] if each.strip())
    bodies = dict(zip(parts[1::3], map(textwrap.dedent, parts[2::3]), strict=True))
    for title in (each for each in _TITLES if each in bodies):
        yield f"**{_TITLES[title]}**\n"
        body = bodies[title].strip()
        if title == "Example":
            yield f"```python\n{body}\n```\n"
            continue
        for name, meaning in re.findall(r"^(\S[^:\n]*): (.*(?:\n .*)*)", body, re.M):
            yield f"- `{name}`: {' '.join(meaning.split())}"
        yield ""
