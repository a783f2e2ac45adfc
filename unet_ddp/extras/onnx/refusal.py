"""Errors for networks that can't be an ONNX file: they name the file to write, and say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from unet_ddp.errors import RunError, UserError, words_of

_LONGEST = 160  # letters of a runtime's words


@dataclass(frozen=True)
class Refusal:
    """The error for the network `name` of the checkpoint `source`, which can't be the file `path`."""

    path: Path
    source: Path
    name: str
    precision: str

    def because(self, reason: str) -> UserError:
        """Return the error, with its reason."""
        remedy = "try --precision float32"
        if self.precision == "float32":
            remedy = "train another --model"
        return UserError(
            f"{self.path}: {reason}; as an ONNX file in {self.precision}, {self.name} has no form for images of any "
            f"size: predict with {self.source}, or {remedy}"
        )

    @contextmanager
    def naming(self, temporary: Path) -> Iterator[None]:
        """Name the file to write, and what to do, in an error about its temporary file."""
        try:
            yield
        except (RunError, UserError) as error:
            reason = str(error).removeprefix(f"{temporary}: ")
            if reason == str(error):  # of an image, a mask, ...
                raise
            if isinstance(error, RunError):
                raise RunError(f"{self.path}: {reason}") from None
            if error.__cause__ is not None:
                said = str(error.__cause__).replace(str(temporary), "it")
                reason = f"can't be opened again ({words_of(said)[:_LONGEST]})"
            raise self.because(reason) from None
