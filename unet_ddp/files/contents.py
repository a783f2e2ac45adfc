"""The kind of a file, by its first bytes, and its text in any encoding that programs save it in."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unet_ddp.errors import UserError, shorten
from unet_ddp.files import refuse_special

_LENGTH = 4096  # bytes that tell what a file is
_POINTER = "a Git LFS pointer"
_PAGE = "a web page"
_EMPTY = "empty (0 bytes)"
_BINARY = "a binary file"
_SHEET = "an Excel workbook"
_STARTS = {
    b"version https://git-lfs.github.com/": _POINTER,
    b"\x89PNG\r\n\x1a\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"II*\0": "a TIFF image",
    b"MM\0*": "a TIFF image",
    b"II+\0": "a TIFF image",
    b"MM\0+": "a TIFF image",
    b"PK\x03\x04": "a ZIP archive",
    b"PK\x05\x06": "a ZIP archive",
    b"\x1f\x8b": "a gzip archive",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ\0": "an xz archive",
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    b"Rar!\x1a": "a RAR archive",
    b"%PDF-": "a PDF",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"\x93NUMPY": "a NumPy array",
    b"SQLite format 3\0": "an SQLite database",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an old Excel or Word file",
    codecs.BOM_UTF32_LE: "UTF-32 text",
    codecs.BOM_UTF32_BE: "UTF-32 text",
    codecs.BOM_UTF16_LE: "UTF-16 text",
    codecs.BOM_UTF16_BE: "UTF-16 text",
}
_IMAGES = {  # that no reader takes, by patterns of their first bytes
    rb"\x00\x00\x00\x0cjP  |\xff\x4f\xff\x51": "a JPEG 2000 image",
    rb"\x00\x00\x00\x0cJXL |\xff\x0a": "a JPEG XL image",
    rb".{4}ftypavi[fs]": "an AVIF image",
    rb".{4}ftyp(hei|hev|mif1)": "a HEIC image",
    rb"P[1-6]\s+(#[^\n]*\n\s*)*\d+\s+\d+\s|P7\nWIDTH ": "a PNM image",
    rb"P[Ff]\s+\d+\s+\d+\s": "a PFM image",
    rb".[\x00\x01][\x01-\x03\x09-\x0b](\x00{5}|\x00\x00.\x01.).{8}[\x08\x0f\x10\x18\x20]": "a TGA image",
    rb"\n[\x00-\x05][\x00\x01][\x01\x02\x04\x08]": "a PCX image",
    rb"DDS ": "a DDS image",
    rb"%!PS|\xc5\xd0\xd3\xc6": "a PostScript file",
    rb"\x01\xda[\x00\x01][\x01\x02]": "an SGI image",
    rb"8BPS": "a Photoshop file",
    rb"v/1\x01": "an OpenEXR image",
    rb"SIMPLE  =": "a FITS file",
    rb".{128}DICM": "a DICOM file",
}
_ADVICE = {
    _POINTER: "fetch its content with git lfs pull",
    _PAGE: "download it again: a failed download leaves a page",
    _EMPTY: "replace or remove it",
    **dict.fromkeys(("a ZIP archive", "a gzip archive", "a tar archive"), "unpack it"),
    **dict.fromkeys(_IMAGES.values(), "convert it to PNG"),
}
_TEXTS = {
    "UTF-32 text", "UTF-16 text", "an XML file", "a JSON file", "a CSV file", "a YAML file", "a text file",
}  # fmt: skip
_MISSING = {_POINTER, _PAGE, _EMPTY}  # in place of the content of a file of any name


def advise_on(kind: str, otherwise: str) -> str:
    """Return what to do with a file of a kind of `describe_content` that can't be read, or `otherwise`."""
    return _ADVICE.get(kind, otherwise)


def describe_content(path: Path) -> str:
    """Return what a file is by its first bytes: a ZIP archive, a CSV file, a Git LFS pointer.

    Raises:
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        return describe_bytes(file.read(_LENGTH))


def explain_missing(path: Path, wanted: str) -> str:
    """Return why a file has not its own content, `wanted` to be something, and what to do; empty if it has."""
    try:
        kind = describe_content(path)
    except (OSError, UserError):
        return ""
    if kind not in _MISSING:
        return ""
    other = "" if kind == _EMPTY else f", not {wanted}"
    return f"is {kind}{other}; {_ADVICE[kind]}"


def describe_bytes(start: bytes) -> str:
    """Return what a file is that begins with these bytes."""
    if not start:
        return _EMPTY
    if start.startswith(b"PK") and (b"xl/" in start or b"[Content_Types]" in start):
        return _SHEET
    if start.startswith(b"PK") and b"/data.pkl" in start[:200]:
        return "a PyTorch file"
    for known, kind in _STARTS.items():
        if start.startswith(known):
            return kind
    if start[257:262] == b"ustar":
        return "a tar archive"
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "a WebP image"
    if start[:2] == b"BM" and start[6:10] == bytes(4):
        return "a BMP image"
    for pattern, kind in _IMAGES.items():
        if re.match(pattern, start, re.DOTALL):
            return kind
    if start[:1] == b"\x80" and start[1:2] in b"\2\3\4\5":
        return "a pickle file"
    if _guess_utf16(start):
        return "UTF-16 text"
    controls = len(re.findall(rb"[\0-\x08\x0e-\x1a]", start))
    if controls > 2:  # fewer are damage in a text, which whoever reads it names
        return _BINARY
    return _describe_text(start.removeprefix(codecs.BOM_UTF8).decode(errors="replace").lstrip())


def _guess_utf16(start: bytes) -> str | None:
    """Return the encoding of UTF-16 without its mark, whose Latin letters have a zero byte each."""
    pairs = len(start) // 2
    for encoding, zeros, others in (("utf-16-le", 1, 0), ("utf-16-be", 0, 1)):
        is_mostly = start[zeros::2].count(0) * 2 > pairs
        if pairs > 1 and is_mostly and not start[others::2].count(0):
            return encoding
    return None


def _describe_text(text: str) -> str:
    lower = text[:200].lower()
    line = text.partition("\n")[0]
    if lower.startswith(("<!doctype html", "<html")):
        return _PAGE
    if text.startswith("<"):
        return "an XML file"
    if re.match(r'\{\s*("|\}|$)|\[\s*([\[{"\d-]|\]|$)', text):
        return "a JSON file"
    if line.count(",") > 0 or line.count(";") > 0 or line.count("\t") > 0:
        return "a CSV file"
    if re.match(r"[\w. -]+:(\s|$)", line):
        return "a YAML file"
    return "a text file"


def _encoding_of(data: bytes) -> str:
    for mark in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):
        if data.startswith(mark):
            return "utf-32"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return _guess_utf16(data[:_LENGTH]) or "utf-8-sig"


def read_text(path: Path, wanted: str, *, advice: str = "", errors: str = "strict") -> str:
    """Return the text of a file in UTF-8, with or without its mark, or in UTF-16 or UTF-32.

    `wanted` names what the file should be, and `advice` what to do otherwise; `errors` is that of `open`.

    Raises:
        UserError: it is not text: what it is.
        OSError: it can't be read.
    """
    refuse_special(path)
    data = path.read_bytes()
    kind = describe_bytes(data[:_LENGTH])
    encoding = _encoding_of(data)
    advice = advice or f"use {wanted}"
    if kind not in _TEXTS and kind != _EMPTY:
        raise UserError(f"{path}: is {kind}, not {wanted}; {advise_on(kind, advice)}")
    try:
        return data.decode(encoding, errors if encoding == "utf-8-sig" else "strict")
    except UnicodeDecodeError as error:
        if encoding != "utf-8-sig":
            raise UserError(f"{path}: not {wanted}, or damaged {kind}; {advice}") from None
        line = data.count(b"\n", 0, error.start) + 1
        found = shorten(data[max(0, error.start - 20) : error.end + 20].decode("latin-1"))
        raise UserError(
            f"{path}: line {line} is not UTF-8 text, near {found}; save the file as UTF-8"
        ) from None


def read_json(
    path: Path, wanted: str, *, hook: Callable[[dict[str, Any]], Any] | None = None
) -> Any:
    """Return the content of a JSON file, `wanted` to be something; `hook` is given each object.

    Raises:
        UserError: it is something else, or broken: where.
        OSError: it can't be read.
    """
    text = read_text(path, wanted)
    try:
        return parse_json(text, wanted, hook=hook)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def parse_json(
    text: str, wanted: str, *, hook: Callable[[dict[str, Any]], Any] | None = None
) -> Any:
    """Return the content of a text in JSON; see `read_json`, whose error begins with the path."""
    try:
        return json.loads(text, object_hook=hook)
    except json.JSONDecodeError as error:
        kind = describe_bytes(text[:_LENGTH].encode("utf-8", "replace"))
        if kind != "a JSON file":
            advice = advise_on(kind, "use another file")
            raise UserError(f"is {kind}, not {wanted}; {advice}") from None
        if error.pos >= len(text.rstrip()):
            where = "its end is missing"
        else:
            near = shorten(text[error.pos : error.pos + 20].partition("\n")[0])
            where = f"broken at line {error.lineno}, column {error.colno}, near {near}"
        raise UserError(f"JSON, but {where}; export it again") from None
    except (RecursionError, ValueError):  # a number of thousands of digits
        raise UserError("JSON of too many levels or digits; export it again") from None


# -- formats -------------------------------------------------------------------------------


class LaterFormatError(UserError):
    """A file of a format that only later versions read: it is not damaged."""


def check_format(path: object, plain: object, known: int) -> None:
    """Refuse a file of a later format than the `known` one; `plain` is its content.

    A format that is missing, or no whole number, is damage: whoever checks the values says so.

    Raises:
        LaterFormatError: both formats, the version that wrote the file if it has one, and what to do.
    """
    if not isinstance(plain, Mapping):
        return
    found, version = plain.get("format"), plain.get("unet_ddp")
    if type(found) is int and found > known:
        author = f", of unet_ddp {shorten(version)}" if isinstance(version, str) else ""
        raise LaterFormatError(
            f"{path}: format {shorten(found)}{author}; this version reads format {known}: update unet_ddp"
        )
