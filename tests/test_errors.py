"""One line for every error, and none for a reader that has left."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Annotated, Any

import pytest
from tqdm import tqdm

from unet_ddp import errors
from unet_ddp.errors import (
    Limit,
    UserError,
    count_of,
    from_plain,
    how_to_install,
    join_some,
    one_line,
    shorten,
    typed,
    words_of,
)
from unet_ddp.files.output import survive_lost_output


def test_one_line() -> None:
    assert one_line(ValueError("größe 3")) == "größe 3"
    assert one_line("a\nb\tc\x1b[1m") == r"a\nb\tc\x1b[1m"
    assert one_line("bad\udcffname") == r"bad\udcffname"


def test_words_of_other_code_have_no_colours_and_no_line_breaks() -> None:
    """torch.export colours its errors; in a name of the user's such bytes stay, as escapes."""
    coloured = RuntimeError("\x1b[96mthe graph\x1b[0m\n  has \x1b[1;31ma branch\x1b[m")
    assert words_of(coloured) == "the graph has a branch"
    assert one_line(UserError("a\x1b[31m.png")) == r"a\x1b[31m.png"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("x" * 60, repr("x" * 60)),
        ("x" * 61, repr("x" * 60) + "…"),
        (2**53, "9007199254740992"),
        (-(2**53), "-9007199254740992"),
        (10**400, "a number of about 400 digits"),
        (-(10**400), "a number of about 400 digits"),
        (None, "None"),
        (0.5, "0.5"),
        (True, "True"),
        ([1, "a", None], "[1, 'a', None]"),
        ((1.5,) * 7, "[1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5]"),
        ((1.5,) * 8, "a tuple of 8"),
        ([[1]], "a list of 1"),
        ({"a": 1}, "a dict of 1"),
        (b"abc", "a bytes"),
    ],
)
def test_values_of_files_are_shown_in_a_few_words(value: object, shown: str) -> None:
    assert shorten(value) == shown


@dataclass(frozen=True)
class Part:
    size: Annotated[int, Limit(1, 5)]
    note: str = "none"


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [
        (3, int, 3),
        (3, float, 3.0),
        (2**53, int, 2**53),
        ("x" * 4096, str, "x" * 4096),
        (None, float | None, None),
        (2, float | None, 2.0),
        ([1, 2], tuple[int, int], (1, 2)),
        ((1,) * 4096, tuple[int, ...], (1,) * 4096),
        ([], list[str], []),
        ({"a": 1}, dict[str, object], {"a": 1}),
        ("a", Annotated[str, ("a", "b")], "a"),
        ({"size": 5}, Part, Part(5)),
    ],
)
def test_values_of_files_are_of_their_type(value: object, kind: Any, found: object) -> None:
    assert typed(value, kind) == found and type(typed(value, kind)) is type(found)


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (3.0, int, "3.0; expected a whole number"),
        (True, int, "True; expected a whole number"),
        (True, float, "True; expected a number"),
        (2**53 + 1, int, "a number of about 16 digits; expected a whole number"),
        (-(2**53) - 1, float, "a number of about 16 digits; expected a number"),
        (1, bool, "1; expected true or false"),
        ("x" * 4097, str, f"{'x' * 60!r}…; expected text of at most 4096 characters"),
        ("3", float | None, "'3'; expected a number"),
        ([1], tuple[int, int], "[1]; expected a list of 2"),
        ((1,) * 4097, tuple[int, ...], "a tuple of 4097; expected a list of at most 4096"),
        ({3: 4}, dict[str, object], "a dict of 1; expected values by name"),
        ([], dict[str, int], "[]; expected ints by name"),
        ("c", Annotated[str, ("a", "b")], "'c'; expected ('a', 'b')"),
        (7, Part, "7; expected fields by name"),
        ({"size": 6}, Part, "size: 6; expected 1 or more and at most 5"),
        ({"size": 2, "more": 1}, Part, "'more': unknown"),
        ({"note": "a"}, Part, "size: missing"),
    ],
)
def test_other_values_are_refused_in_one_line(value: object, kind: Any, said: str) -> None:
    with pytest.raises(UserError) as error:
        typed(value, kind)
    assert str(error.value) == said


def test_fields_of_other_readers_are_left_out_where_they_may_be() -> None:
    assert from_plain(Part, {"size": 1, "more": 1}, is_open=True) == Part(1)


def test_limits_are_in_words_and_nan_is_in_none() -> None:
    ends, open_ends = Limit(0, 1, note=" each"), Limit(above=0, below=1)
    assert [value in ends for value in (-0.1, 0, 1, 1.1)] == [False, True, True, False]
    assert [value in open_ends for value in (0, 0.1, 0.9, 1)] == [False, True, True, False]
    assert float("nan") not in ends and float("nan") not in open_ends
    assert str(ends) == "0 or more and at most 1 each" and str(open_ends) == "above 0 and below 1"


def test_long_lists_are_cut() -> None:
    assert join_some(["a", "b", "c"], 3) == "a, b, c"
    assert join_some(["a", "b", "c", "d", "e"], 3) == "a, b, c and 2 more"


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def closed_terminal() -> int:
    master, terminal = os.openpty()
    os.close(master)
    return terminal


@pytest.mark.parametrize("unbuffered", [False, True], ids=["", "python -u"])
@pytest.mark.parametrize("lost", [closed_pipe, full_disk, closed_terminal])
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_output_that_nobody_can_take_is_dropped(
    monkeypatch: pytest.MonkeyPatch, name: str, lost: Callable[[], int], unbuffered: bool
) -> None:
    raw: Any = io.FileIO(lost(), "w")
    buffer = raw if unbuffered else io.BufferedWriter(raw)
    before = io.TextIOWrapper(
        buffer, "ascii", "replace", line_buffering=not unbuffered, write_through=unbuffered
    )
    monkeypatch.setattr(sys, name, before)
    survive_lost_output()
    stream = getattr(sys, name)
    assert stream is not before and stream.fileno() == raw.fileno()
    assert (stream.encoding, stream.errors) == ("ascii", "replace")
    assert (stream.line_buffering, stream.write_through) == (not unbuffered, unbuffered)
    tqdm.write("ä" * 70_000, file=stream)  # more than any buffer
    list(tqdm(range(3), file=stream, mininterval=0))
    print("end", file=stream, flush=True)
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN  # as Python starts
    raw.close()


def test_output_that_is_read_stays_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w", encoding="utf-8") as log:
        monkeypatch.setattr(sys, "stdout", log)
        print("before")
        survive_lost_output()
        print("größe", flush=True)
        log.flush()
        assert (tmp_path / "log").read_text(encoding="utf-8") == "before\ngröße\n"


def test_what_a_terminal_has_no_letters_for_becomes_escapes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "log").open("w", encoding="ascii") as log:
        monkeypatch.setattr(sys, "stdout", log)
        survive_lost_output()
        print("größe", flush=True)
    assert (tmp_path / "log").read_text(encoding="ascii") == "gr\\xf6\\xdfe\n"


def test_a_notebook_keeps_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a number, that of the kernel's terminal, and is no file."""

    class Stream(io.StringIO):
        def fileno(self) -> int:
            return 1

    monkeypatch.setattr(sys, "stdout", stream := Stream())
    survive_lost_output()
    assert sys.stdout is stream


def test_streams_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = io.StringIO()
    monkeypatch.setattr(sys, "stdout", inside)
    monkeypatch.setattr(sys, "stderr", None)  # closed before the start: 2>&-
    survive_lost_output()
    assert sys.stdout is inside
    tqdm.write("dropped", file=sys.stderr)
    sys.stderr.close()


def test_a_number_agrees_with_its_noun() -> None:
    found = [count_of(number, noun) for number in (1, 2) for noun in ("image", "process")]
    assert found == ["1 image", "1 process", "2 images", "2 processes"]


@pytest.mark.parametrize("name", ["train.py", "-m unet_ddp"])
def test_a_program_whose_output_goes_to_head(name: str) -> None:
    """A real pipe, closed before the program writes: no traceback, not even at exit."""
    writer = closed_pipe()
    program = [sys.executable, *name.split(), "--help"]
    done = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writer)
    assert done.stderr == b"" and done.returncode == 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:secret@host/x.jpg", "http://host/x.jpg"),
        ("HTTPS://secret@host:80/x.jpg: no", "HTTPS://host:80/x.jpg: no"),
        ("a s3://u:secret@b/x and az:/u:secret@c/y", "a s3://b/x and az:/c/y"),
        ("http://u:secr@et@host/x", "http://host/x"),
        ("http://u:se/cr/et@host/x@2", "http://host/x@2"),
        ("http://host:80/x@2.png", "http://host:80/x@2.png"),
        ("s3://bucket/a@b/c@d", "s3://bucket/a@b/c@d"),
        ("C:/user@home/x and a@b.org", "C:/user@home/x and a@b.org"),
        ("file:///data/u@x/y", "file:///data/u@x/y"),
        (
            "https://h/x?X-Amz-Signature=ab12&v=2&token=%20c",
            "https://h/x?X-Amz-Signature=***&v=2&token=***",
        ),
        ("'az://c/x?sv=1&sig=a%2Fb=' failed", "'az://c/x?sv=1&sig=***' failed"),
        ("https://h/x#access_token=ab, or ?key=cd", "https://h/x#access_token=*** or ?key=cd"),
        ("is photo?key=1.png a file?", "is photo?key=1.png a file?"),
    ],
)
def test_a_line_shows_no_password_of_an_address(text: str, shown: str) -> None:
    assert one_line(text) == shown


def test_the_hint_of_an_extra_is_the_clone_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = Path(errors.__file__).parents[1]
    monkeypatch.chdir(root)
    assert how_to_install("geo") == "python -m pip install -e '.[geo]'"
    monkeypatch.chdir(tmp_path)
    assert how_to_install("geo") == f"python -m pip install -e {shlex.quote(f'{root}[geo]')}"


@pytest.mark.parametrize("is_installed", [True, False])
def test_the_hint_of_an_extra_without_a_clone_names_its_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_installed: bool
) -> None:
    """As in the environment of a wheel, whose metadata have the extras, and in the image, which has pyproject.toml."""
    root = Path(errors.__file__).parents[1]
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "unet_ddp" / "errors.py"))
    if is_installed:
        wheel = [
            'onnx<2,>=1.17; extra == "onnx"', 'cvat-sdk[masks]<3; python_version >= "3.11" and extra == "cvat"',
            'openvino<2027; extra == "openvino"', 'onnx<2,>=1.17; extra == "openvino"', "torch>=2.10",
        ]  # fmt: skip
        monkeypatch.setattr("importlib.metadata.requires", lambda name: wheel)
        assert how_to_install("onnx") == "python -m pip install onnx"
    else:
        shutil.copy(root / "pyproject.toml", tmp_path)

        def refuse(name: str) -> None:
            raise PackageNotFoundError(name)

        monkeypatch.setattr("importlib.metadata.requires", refuse)
        assert (
            how_to_install("onnx") == "python -m pip install onnx onnxruntime onnxscript packaging"
        )
    assert how_to_install("cvat") == "python -m pip install 'cvat-sdk[masks]'"
