"""Text files of all kinds that users bring, and files that are nearly such: what is said of them.

A document is valid. Each of its values is replaced by values of other types, its text is saved in other
encodings, and it is replaced by files of other formats. A reader takes the result, or says what is wrong in one
line with no word of Python.
"""

from __future__ import annotations

import base64
import copy
import gzip
import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import yaml
from PIL import Image

from unet_ddp.__main__ import main
from unet_ddp.cli import parse
from unet_ddp.config import TrainConfig
from unet_ddp.data.matching import Report, read_list
from unet_ddp.errors import UserError, one_line
from unet_ddp.extras.annotations import command
from unet_ddp.extras.palettes.rules import read_palette
from unet_ddp.prediction.paths import find_images
from unet_ddp.runs.writers import read_rows

Place = tuple[Any, ...]

PYTHON = re.compile(
    r"\b[A-Z]\w*(Error|Exception|Warning|Interrupt)\b|object (is not|has no|of type)|NoneType|codec"
    r"|Expecting|Extra data|Unterminated|char \d+|invalid literal|unexpected keyword|positional argument"
    r"|not (iterable|subscriptable|callable|hashable)|unhashable|'(int|str|float|list|dict|bool|tuple)'"
    r"|could not (be )?(convert|broadcast)|cannot reshape|out of (range|bounds)|inhomogeneous|must be (str|real|an int)"
    r"|\b(a|an) (dict|bool|NoneType|array)\b|\bNone\b|(?<![\w.])(dtype|numpy|ndarray)\b|object at 0x|<class"
    r"|damaged, or not as other programs|not supported between|expected str|to unpack|Traceback|(?P<size>\d+x\d+), the image is (?P=size)",
)
"""Words that say how a program is made and not what a file is; the last is a size equal to itself."""

ODD_VALUES: list[Any] = [
    None, True, 7, -1, 0.5, 1e300, float("nan"), float("inf"), 2**70, "text", "7", "", [], [1], ["a"], [[1]],
    [[1, 2, 3]], [None], {}, {"a": 1},
]  # fmt: skip
ODD_WORDS = ("", "x", "-1", "nan", "1e400", "9" * 30, "0", "1.5", "é", '"', "<", "{}", "\0", "a b")
ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252")
MISSING = object()


@dataclass(frozen=True)
class Document:
    """A valid file of a kind, and how it is read."""

    file: str
    text: str
    read: Callable[[], None]
    plain: Any = None
    """Its values, if it is JSON or YAML."""

    def write(self, plain: Any) -> str:
        """Return the text of other values."""
        return (yaml.safe_dump if self.file.endswith(".yaml") else json.dumps)(plain)


# -- documents -----------------------------------------------------------------------------

OUTLINE = [1.5, 1, 5, 1, 5, 5]
POINTS = [[1.5, 1], [5, 1], [5, 5]]
CVAT = """<?xml version="1.0" encoding="utf-8"?>
<annotations><version>1.1</version><meta><task><labels><label><name>car</name><color>#00ff00</color></label>
</labels></task></meta><image id="0" name="a.png" width="8" height="6">
<polygon label="car" points="1.5,1;5,1;5,5" z_order="1"/>
<mask label="car" rle="1, 2, 1" left="2" top="2" width="2" height="2" z_order="0"/></image></annotations>
"""


def _coco(segmentation: Any, **more: Any) -> Any:
    return {
        "images": [{"id": 1, "file_name": "a.png", "width": 8, "height": 6}],
        "categories": [{"id": 3, "name": "car", "supercategory": "none"}],
        "annotations": [
            {"id": 9, "image_id": 1, "category_id": 3, "iscrowd": 0, "segmentation": segmentation, **more}
        ],
    }  # fmt: skip


def _labelme() -> Any:
    picture = io.BytesIO()
    Image.fromarray(np.eye(2, dtype=np.uint8) * 255).save(picture, "PNG")
    mask = base64.b64encode(picture.getvalue()).decode()
    about = {"imagePath": "a.png", "imageHeight": 6, "imageWidth": 8, "imageData": None}
    shape = {"label": "car", "points": POINTS, "shape_type": "polygon", "group_id": 1}
    corners = [[1, 1], [3, 3]]
    drawn = {"label": "car", "points": corners, "shape_type": "mask", "mask": mask}
    return {"version": "5.0", "flags": {}, "shapes": [shape, drawn], **about}


def _studio() -> Any:
    about = {"original_width": 8, "original_height": 6, "to_name": "image", "image_rotation": 0}
    brush = [*(4 * 48).to_bytes(4, "big"), 57, 27, 255, 11, 255, 255, 0]
    value = {"points": [[10, 10], [90, 10], [90, 90]], "polygonlabels": ["car"]}
    results = [
        {"id": "k", "type": "polygonlabels", "value": value, **about},
        {
            "id": "m",
            "type": "brushlabels",
            "value": {"rle": brush, "brushlabels": ["car"]},
            **about,
        },
    ]
    annotation = {"id": 4, "was_cancelled": False, "result": results}
    return [{"id": 2, "data": {"image": "a.png"}, "annotations": [annotation]}]


def _import(file: str) -> Callable[[], None]:
    argv = [file, "--images", "imgs", "-o", "out"]
    config = parse(command.ImportConfig, argv, prog="x")  # once: it takes most of a call's time

    def read() -> None:
        shutil.rmtree("out", ignore_errors=True)
        with mock.patch.object(command, "parse", return_value=config):
            status = main(["import", *argv])
        if status:
            raise AssertionError("said nothing")  # the test raises what is printed

    return read


def list_documents() -> dict[str, Document]:
    """Return all kinds; the files that they name are made by `make_home`."""
    documents = {}

    def add(name: str, file: str, content: Any, read: Callable[[], None] | None = None) -> None:
        is_text = isinstance(content, str)
        blank = Document(file, "", read or _import(file), None if is_text else content)
        text = content if is_text else blank.write(content)
        documents[name] = Document(file, text, blank.read, blank.plain)

    _add_annotations(add)
    _add_lists(add)
    return documents


def _add_annotations(add: Callable[..., None]) -> None:
    """Add what other programs write, for `import`."""
    add("COCO polygons", "a.json", _coco([OUTLINE, OUTLINE], bbox=[1, 1, 4, 4], area=8))
    add("COCO runs", "a.json", _coco({"size": [6, 8], "counts": [6, 3, 39]}, score=0.5))
    add("COCO packed runs", "a.json", _coco({"size": [6, 8], "counts": "63W1"}))
    add("Labelme", "a.json", _labelme())
    add("Label Studio", "a.json", _studio())
    add("CVAT", "a.xml", CVAT)
    add("YOLO names", "data.yaml", {"path": "x", "nc": 1, "names": {0: "car"}})
    add("YOLO rows", "labels/a.txt", "0 0.1 0.1 0.9 0.1 0.9 0.9\n", _import("names.yaml"))
    add("run lengths", "a.csv", "img,rle_mask\na.png,3 4 20 2\n")
    add("runs of classes", "a.csv", "ImageId_ClassId,EncodedPixels\na.png_1,3 4\na.png_2,\n")


def _add_lists(add: Callable[..., None]) -> None:
    """Add the lists, tables and recipes of this program."""
    rows = "image,mask,group,split\nimgs/a.png,imgs/b.png,g,train\nimgs/b.png,imgs/a.png,h,val\n"
    add("pairs", "a.csv", rows, lambda: _ignore(read_list(Path("a.csv"), Report(collects=True))))
    add(
        "palette",
        "a.csv",
        "class,value\nsky,0\ncar,#ff0000\n",
        lambda: _ignore(read_palette(Path("a.csv"))),
    )
    add(
        "colours", "a.csv", "sky,0,0,0\ncar,255,0,1\n", lambda: _ignore(read_palette(Path("a.csv")))
    )
    add(
        "images",
        "a.txt",
        "# images\nimgs/a.png\nimgs\\b.png\n",
        lambda: _ignore(find_images(["a.txt"])),
    )
    add("metrics", "a.csv", "epoch,step,loss\n1,5,0.5\n", lambda: _ignore(read_rows(Path("a.csv"))))
    recipe = {
        "epochs": 3,
        "learning_rate": 1e-3,
        "augmentation": "flips",
        "class_names": ["a", "b"],
        "precision": "float32",
    }
    add(
        "recipe",
        "a.yaml",
        recipe,
        lambda: _ignore(parse(TrainConfig, ["--config", "a.yaml"], prog="x")),
    )


def _ignore(_: object) -> None:
    """Take any value: only errors matter."""


def make_home() -> None:
    """Write the images and further files that the documents name, in the current folder."""
    Path("imgs").mkdir()
    Path("labels").mkdir()
    for name in ("a", "b"):
        Image.new("RGB", (8, 6)).save(f"imgs/{name}.png")
    Path("names.yaml").write_text("names: [car]\n")


# -- what is done to them --------------------------------------------------------------------


def list_places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of each value within a value of lists and dicts."""
    yield place
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, each in items:
        yield from list_places(each, (*place, key))


def get(plain: Any, place: Place) -> Any:
    """Return the value at a place."""
    for key in place:
        plain = plain[key]
    return plain


def put(plain: Any, place: Place, value: Any) -> Any:
    """Return a copy with another value at a place, or without any."""
    if not place:
        return value
    changed = copy.deepcopy(plain)
    holder = get(changed, place[:-1])
    if value is MISSING:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return changed


def list_changes(document: Document, others: dict[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield what is changed, and the content of the file."""
    for name, content in others.items():
        yield f"is {name}", content
    for encoding in ENCODINGS:
        text = document.text.replace("car", "cär")
        yield f"in {encoding}", text.encode(encoding)
    for end in (1, len(document.text) // 2, -3):
        yield f"cut at {end}", document.text[:end].encode()
    if document.plain is not None:
        for place in list_places(document.plain):
            own = get(document.plain, place)
            values = [*ODD_VALUES, str(own)] if type(own) in (int, float) else ODD_VALUES
            for value in [*values, MISSING][: None if place else -1]:
                shown = "missing" if value is MISSING else repr(value)
                text = document.write(put(document.plain, place, value))
                yield f"{'.'.join(map(str, place))} = {shown}", text.encode()
        return
    for word in re.finditer(r"[^\s,;<>=\"/]+", document.text):
        for odd in ODD_WORDS:
            text = document.text[: word.start()] + odd + document.text[word.end() :]
            yield f"{word[0]} at {word.start()} = {odd!r}", text.encode()


def other_files(documents: dict[str, Document]) -> dict[str, bytes]:
    """Return the content of files of other formats, by what they are."""
    archive, picture = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("xl/workbook.xml", "<x/>")
    Image.new("RGB", (8, 6)).save(picture, "PNG")
    array = io.BytesIO()
    np.save(array, np.arange(9))
    pointer = (
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "4d" * 32 + "\nsize 12345\n"
    )
    files = {
        "nothing": b"",
        "a workbook": archive.getvalue(),
        "a PNG": picture.getvalue(),
        "an array": array.getvalue(),
        "gzip": gzip.compress(b"a"),
        "a pointer": pointer.encode(),
        "a page": b"<!DOCTYPE html><html><body>404</body></html>",
        "random": np.random.default_rng(0).bytes(999),
        "zeros": bytes(99),
        "nested": b"[" * 5000,
        "digits": b"9" * 9999,
        "list": b"[1, 2",
    }
    return files | {name: document.text.encode() for name, document in documents.items()}


def find_faults(
    document: Document, changes: Iterator[tuple[str, bytes]], said: Callable[[], str]
) -> tuple[int, list[str]]:
    """Read each change of a document; return how many, and a line for each answer that is no user's."""
    found = []
    count = 0
    for change, content in changes:
        count += 1
        Path(document.file).write_bytes(content)
        try:
            document.read()
            answer = said()
        except UserError as error:
            answer = one_line(error)
        except AssertionError:
            answer = said().removeprefix("error: ")
        except SystemExit as error:  # tyro
            answer = f"{error.code} {said()}"
        except Exception as error:
            found.append(f"{change}: a traceback: {type(error).__name__}: {one_line(error)[:150]}")
            continue
        word = PYTHON.search(answer)
        if word:
            found.append(f"{change}: {word and word[0]!r} in {answer.strip()[:220]}")
    return count, found
