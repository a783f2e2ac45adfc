"""What a file is, wherever it is opened in place of another."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.prediction.models import noise
from tests.reading import read_header
from unet_ddp.checkpoints.file import load
from unet_ddp.cli.recipes import read_settings
from unet_ddp.data.matching import read_list
from unet_ddp.errors import UserError
from unet_ddp.extras.annotations.readers import open_annotations
from unet_ddp.extras.onnx.runtimes import open_session
from unet_ddp.extras.packs.pack_columns import read_columns
from unet_ddp.extras.palettes.rules import read_palette
from unet_ddp.files.contents import describe_bytes, read_json
from unet_ddp.prediction.paths import find_images


def archive(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        for name in names:
            opened.writestr(name, "x")
    return file.getvalue()


def saved(save: Callable[[io.BytesIO], None]) -> bytes:
    file = io.BytesIO()
    save(file)
    return file.getvalue()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 12345\n"
PAGE = b"\n<!DOCTYPE html>\n<html><body>" + b"not found " * 20
KINDS = {
    "a Git LFS pointer": POINTER,
    "a web page": PAGE,
    "empty (0 bytes)": b"",
    "a ZIP archive": archive("a.txt"),
    "an Excel workbook": archive("xl/workbook.xml"),
    "a PyTorch file": saved(lambda file: torch.save({}, file)),
    "a gzip archive": gzip.compress(b"x"),
    "a NumPy array": saved(lambda file: np.save(file, np.arange(3))),
    "UTF-16 text": "image,mask".encode("utf-16-le"),
    "UTF-32 text": "image,mask".encode("utf-32"),
    "a CSV file": b"\xef\xbb\xbfimage;mask\n",
    "a JSON file": b' [\n{"a": 1}]',
    "an XML file": b"<annotations/>",
    "a YAML file": b"names: [a]\n",
    "a text file": "Größe".encode("cp1252"),
    "a binary file": bytes(99),
}


IMAGES = {
    "tga": "a TGA image", "pcx": "a PCX image", "dds": "a DDS image", "ppm": "a PNM image", "eps": "a PostScript file",
    "pfm": "a PFM image", "jp2": "a JPEG 2000 image", "avif": "an AVIF image", "sgi": "an SGI image",
}  # fmt: skip


@pytest.mark.parametrize("suffix", IMAGES)
def test_images_of_formats_that_are_not_read_are_named(tmp_path: Path, suffix: str) -> None:
    """Issue: some were a CSV file."""
    path = tmp_path / f"a.{suffix}"
    image = Image.fromarray(noise(80, 96))
    if f".{suffix}" not in Image.registered_extensions():
        pytest.skip(f"this Pillow writes no {suffix}")
    (image.convert("F") if suffix == "pfm" else image).save(path)
    with pytest.raises(
        UserError, match=rf"a\.{suffix}: is {IMAGES[suffix]}, .*; convert it to PNG$"
    ):
        read_header(path)


def test_what_has_no_text_is_no_csv_file() -> None:
    assert describe_bytes(b"name,value\n" + bytes(3)) == "a binary file"
    bmp = saved(lambda file: Image.fromarray(noise(80, 96)).save(file, "BMP"))
    assert describe_bytes(bmp) == "a BMP image" and describe_bytes(b"BM,P1\n1,2\n") == "a CSV file"


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_known_by_its_first_bytes(kind: str) -> None:
    assert describe_bytes(KINDS[kind]) == kind


OPENERS: dict[str, Callable[[Path], object]] = {
    "x.png": read_header,
    "x.jpg": read_header,
    "x.tif": read_header,
    "x.npy": read_header,
    "x.pt": load,
    "x.safetensors": load,
    "x.onnx": lambda path: open_session(path, torch.device("cpu")),
    "pack.index": read_columns,
    "pairs.csv": read_list,
    "palette.csv": read_palette,
    "x.yaml": read_settings,
    "images.txt": lambda path: find_images([str(path)]),
    **{
        f"annotations{suffix}": lambda path: open_annotations(path, {})
        for suffix in (".json", ".xml", ".yaml", ".csv")
    },
}


@pytest.mark.parametrize("name", OPENERS)
def test_files_without_their_content_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for data, kind, advice in (
        (POINTER, "a Git LFS pointer", "git lfs pull"),
        (PAGE, "a web page", "download it again"),
    ):
        path.write_bytes(data)
        with pytest.raises(UserError, match=rf"{name}: .*is {kind}.*; .*{advice}"):
            OPENERS[name](path)


def test_broken_json_is_said_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text, said in (
        ('{"a": [1, 2', "JSON, but its end is missing"),
        ('{"a": 1,\n "b" 2}', "JSON, but broken at line 2, column 6, near '2}'"),
        ('{"a": ' + "[" * 99_999, "JSON of too many levels or digits"),
        ("a,b\n1,2\n", "is a CSV file, not annotations"),
    ):
        path.write_text(text)
        with pytest.raises(UserError) as error:
            read_json(path, "annotations")
        assert said in str(error.value)
