"""A package for bioimage.io and the programs that run its networks: ONNX, its description, and its test.

bioimageio.core, which would write it, asks for a version of bioimageio.spec that does not work with the
pydantic of the other libraries. So the description is a template here, and the tests check it with them.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import keyword
import math
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.checkpoints.weights import SavedModel
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError, one_line
from unet_ddp.extras.sharing.card import make_card
from unet_ddp.extras.sharing.facts import find_facts
from unet_ddp.files import as_path
from unet_ddp.prediction.backends import LoadedModel

NETWORK = "model.onnx"
_TEMPLATE = Path(__file__).with_name("rdf.yaml.jinja")
_LONGEST = 1024  # characters of a text, as the format allows
_SIDE = 6  # of the test's input, in steps


@dataclass(frozen=True)
class Package:
    """A network for a package, and its test; `step` is its stride in pixels of an image."""

    model: LoadedModel
    licence: str
    authors: Sequence[str]
    cite: str | None
    step: int
    test_input: NDArray[Any]  # (1, C, H, W)


def prepare(
    model: LoadedModel, licence: str, authors: Sequence[str], cite: str | None, sample: str | None
) -> Package:
    """Return what a package will contain, with the test's input from the image `sample`.

    Raises:
        UserError: the licence, the citation or an author is none, or the image can't be read.
    """
    pixels = model.preprocessing
    if pixels.nodata is not None:
        raise UserError("--bioimageio: pixels without data are not in a graph; export without it")
    if pixels.ground_resolution is not None:
        raise UserError(
            f"--bioimageio: the network takes images of {pixels.ground_resolution:g} m on the ground, which a package "
            "does not know of an image; export without it"
        )
    if cite is not None and not re.fullmatch(r"10\.\d{4,}[\d.]*/\S+", cite):
        raise UserError(f"--cite {cite}: is no DOI; expected one as 10.1234/abc")
    for author in authors:
        if not (author.strip() and author.isprintable()) or re.search(r"[/\\]", author):
            raise UserError(f"--authors {author}: expected a name in one line, without / and \\")
    step = math.ceil(model.backend.stride / pixels.scale)
    side = _SIDE * step
    image: NDArray[Any]
    if sample is None:
        random = np.random.default_rng(0)
        image = random.uniform(pixels.low, pixels.high, (side, side, pixels.channels))
    else:
        with Source(as_path(sample)) as source:
            image = source.image(pixels.format)[0]  # (H, W, C)
    image = np.pad(image, ((0, side), (0, side), (0, 0)), mode="symmetric")[:side, :side]
    planes = np.ascontiguousarray(image.transpose(2, 0, 1)[None]).astype(pixels.dtype)
    return Package(model, _find_licence(licence), authors, cite, step, planes)


def _find_licence(given: str) -> str:
    """Return SPDX's spelling of a licence's identifier."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        licence = str(canonicalize_license_expression(given))
    except InvalidLicenseExpression:
        licence = ""
    if not re.fullmatch(r"(?!LicenseRef)[\w.-]+", licence):
        raise UserError(
            f"--license {given}: --bioimageio needs an identifier of spdx.org/licenses, as MIT or CC-BY-4.0"
        )
    return licence


def _is_free(name: str, taken: Sequence[str]) -> bool:
    """Return whether a channel may have a name."""
    return name.isidentifier() and not keyword.iskeyword(name) and name not in taken


def _name_channels(class_names: Sequence[str]) -> list[str]:
    """Return a name for each channel of the output: identifiers, no keywords, all different."""
    names: list[str] = []
    for k, class_name in enumerate(class_names):
        numbered = (f"class_{k}_{number}" for number in itertools.count(2))
        tried = itertools.chain((class_name, f"class_{class_name}", f"class_{k}"), numbered)
        names.append(next(name for name in tried if _is_free(name, names)))
    return names


def _quote(text: str) -> str:
    """Return a text for YAML, where escapes of halves of a character would be two characters."""
    return json.dumps(one_line(text)[:_LONGEST], ensure_ascii=False)


def write_package(
    path: Path,
    name: str,
    package: Package,
    saved: SavedModel,
    source: Path,
    network: bytes,
    opset: int,
    test_output: NDArray[Any],
) -> str:
    """Write a package to `path`, and return a line to print.

    `saved` was read from `source`. `test_output` is what the network, an ONNX file, returns for the
    test's input.
    """
    from jinja2 import Template

    facts = find_facts(saved, source, package.model.labels)
    files = {NETWORK: network}
    for end, values in (("input", package.test_input), ("output", test_output)):
        buffer = io.BytesIO()
        np.save(buffer, values)
        files[f"test_{end}.npy"] = buffer.getvalue()
    files["README.md"] = make_card(saved, facts, name, package.licence, NETWORK).encode()
    description = Template(_TEMPLATE.read_text(encoding="utf-8")).render(
        vars(package),
        quote=_quote,
        class_names=[one_line(each) for each in package.model.labels.class_names],
        channel_names=_name_channels(package.model.labels.class_names),
        name=re.sub(r"[^A-Za-z0-9_+() -]", "_", f"{name[:99]} (unet_ddp)"),
        architecture=saved.architecture,
        hashes={file: hashlib.sha256(content).hexdigest() for file, content in files.items()},
        weights=NETWORK,
        opset=opset,
    )
    files["rdf.yaml"] = description.encode()
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():  # of a fixed time: the same network, the same file
            archive.writestr(zipfile.ZipInfo(file), content, zipfile.ZIP_DEFLATED)
    return f"  {', '.join(files)}; test it with: bioimageio test"
