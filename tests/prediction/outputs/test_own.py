"""An output of a user's own, by import path and of an installed package."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import install_package
from tests.prediction.models import write_model, write_photo
from tests.prediction.test_predict import run
from tests.ranks import ROOT, Ranks, call_main
from unet_ddp.data.labels import Labels

SOURCE = '''
import json
from contextlib import contextmanager
from pathlib import Path

from unet_ddp.files import write_text
from unet_ddp.prediction.outputs.base import Output


class Sure(Output):
    """The mean of the highest probabilities, a file for each image and one for all."""

    path = Path("sure.json")
    header, separator, footer = "[", ",", "]\\n"

    def __init__(self, *about):
        super().__init__(*about)
        self.sums = {}

    def files(self, image):
        return [image.named("_sure.json")]

    @contextmanager
    def watch(self, image, prediction):
        found = []
        yield lambda band: found.append(float(band.probabilities.max(axis=0).sum()))
        self.sums[image.index] = sum(found)

    def write(self, image, prediction):
        write_text(*self.files(image), self.record(image, prediction))

    def record(self, image, prediction):
        total = self.sums.get(image.index)
        about = {"image": image.image.name, "size": prediction.size}
        return json.dumps(about | {"sure": total and total / prediction.mask.size})
'''


def write_own_output(path: Path) -> None:
    path.write_text(SOURCE)
    sys.modules.pop(path.stem, None)


@pytest.fixture
def own(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with images, a module, and a package that is installed there with an entry point."""
    write_own_output(here / "my_outputs.py")
    install_package(here, "[unet_ddp.outputs]\nsure = my_outputs:Sure\n")
    monkeypatch.syspath_prepend(here)
    for number in range(5):
        write_photo(here / "p" / f"{number}.png", (30 + number % 2, 40))
    return here


@pytest.mark.parametrize("name", ["my_outputs:Sure", "sure"])
def test_it_writes_a_file_for_each_image_and_one_for_all(own: Path, name: str) -> None:
    flags = ["--write", name, "--write", name]  # it is written once
    assert run("p", "-o", "out", *flags, "--probabilities", "npy") == 0
    records = json.loads(Path("sure.json").read_text())
    assert [record["image"] for record in records] == [f"{n}.png" for n in range(5)]
    for number, record in enumerate(records):
        assert json.loads(Path(f"out/{number}_sure.json").read_text()) == record
        probabilities = np.load(f"out/{number}_probabilities.npy")
        assert record["size"] == [*probabilities.shape[1:]]
        assert record["sure"] == pytest.approx(probabilities.max(axis=0).mean(), abs=1e-5)


def test_the_one_in_the_docs_works(own: Path) -> None:
    text = (ROOT / "docs/own_parts.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"\n(    import json\n.*?)\n\n\S", text, flags=re.S)
    Path("doc_outputs.py").write_text(textwrap.dedent(code))
    assert run("p", "-o", "out", "--write", "doc_outputs:Sizes") == 0
    records = [json.loads(Path(f"out/{n}_size.json").read_text()) for n in range(5)]
    assert records[1] == {"image": "1.png", "size": [31, 40]}
    assert json.loads(Path("sizes.json").read_text()) == records


def test_two_processes_write_the_same(own: Path, ranks: Ranks) -> None:
    flags = ["p", "--write", "my_outputs:Sure", "--device", "cpu", "-o"]
    outcomes = ranks.run(2, call_main, "predict", [*flags, "two"], str(own))
    assert [status for status, _, _ in outcomes] == [0, 0]
    assert "sure.json: 5 images\n" in outcomes[0][1]
    written = Path("sure.json").read_bytes()
    assert run(*flags, "one", "--overwrite") == 0
    assert Path("sure.json").read_bytes() == written
    for number in range(5):
        name = f"{number}_sure.json"
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()


def test_what_it_raises_on_one_rank_alone_ends_both_and_is_said_once(
    own: Path, ranks: Ranks
) -> None:
    broken = """
        import os
        from unet_ddp.prediction.outputs.base import Output

        class Broken(Output):
            def write(self, image, prediction):
                if os.environ["RANK"] == "1":
                    raise RuntimeError("this part is broken")
        """
    Path("broken_outputs.py").write_text(textwrap.dedent(broken))
    argv = ["p", "--write", "broken_outputs:Broken", "--device", "cpu", "-o", "out"]
    outcomes = ranks.run(2, call_main, "predict", argv, str(own))
    assert all(status for status, _, _ in outcomes), outcomes
    said = "".join(err for _, _, err in outcomes)
    assert said.count("RuntimeError: this part is broken\n") == 1, said
    assert said.count("Traceback") == 1 and "error: " not in said


def test_its_files_are_checked_as_all_are(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("p/0.png", "--write", "sure")
    Path("p/0_sure.json").touch()
    assert run(*flags) == 2
    assert "error: p/0_sure.json: already exists, and differs from" in capsys.readouterr().err
    Path("p/0_sure.json").unlink()
    Path("sure.json").touch()
    assert run(*flags) == 2
    assert "error: sure.json: already exists; use --overwrite, or another path in sure\n" in (
        capsys.readouterr().err
    )
    Path("sure.json").unlink()
    assert run(*flags, "--write", "my_outputs:Sure") == 2
    assert "would both write p/0_sure.json" in capsys.readouterr().err
    assert not list(Path("p").glob("*.json"))


def test_an_image_that_is_skipped_has_a_record_of_its_mask(own: Path) -> None:
    assert run("p", "--write", "sure") == 0
    first = json.loads(Path("sure.json").read_text())
    Path("sure.json").unlink()
    Path("p/3_mask.png").unlink()
    before = Path("p/1_sure.json").stat().st_mtime_ns
    assert run("p", "--write", "sure", "--skip-existing") == 0
    records = json.loads(Path("sure.json").read_text())
    assert [record["size"] for record in records] == [record["size"] for record in first]
    assert [record["sure"] is None for record in records] == [True, True, True, False, True]
    assert Path("p/1_sure.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rle", "error: --write rle: is no output; name one of yours as MODULE:CLASS"),
        ("shapes", "error: --write shapes: is no output; name one of yours as MODULE:CLASS"),
        ("my_outputs:Other", "can't be imported (AttributeError: module 'my_outputs' has no"),
    ],
)
def test_another_is_one_line(
    own: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    assert run("p", "--write", name) == 2
    assert said in capsys.readouterr().err


def test_none_spoils_what_another_writes(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Issue: `mask[mask == 1] = 255` changed all mask files, and a changed band the mask."""
    assert run("p", "-o", "before", "--rle", "before.csv") == 0
    spoiling = """
        from contextlib import contextmanager
        from unet_ddp.prediction.outputs.base import Output

        class Band(Output):
            @contextmanager
            def watch(self, image, prediction):
                def spoil(band):
                    band.ids[:] = 255
                    band.probabilities[:] = 0
                yield spoil

        class Mask(Output):
            path = __import__("pathlib").Path("mask.txt")

            def record(self, image, prediction):
                prediction.mask[prediction.mask == 1] = 255
                return "done"
        """
    Path("spoiling_outputs.py").write_text(textwrap.dedent(spoiling))
    flags = ["--write", "spoiling_outputs:Band", "--rle", "after.csv"]
    assert run("p", "-o", "after", *flags) == 0
    for number in range(5):
        before, after = (
            Path(folder, f"{number}_mask.png").read_bytes() for folder in ("before", "after")
        )
        assert after == before
    assert Path("after.csv").read_text() == Path("before.csv").read_text()
    for flag in ("--overwrite", "--skip-existing"):
        assert run("p", "-o", "after", "--write", "spoiling_outputs:Mask", flag) == 1
        assert "ValueError: assignment destination is read-only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Alone", "is no Output; derive a class from unet_ddp.prediction.outputs.base.Output"),
        ("nothing", "is no Output; derive a class from unet_ddp.prediction.outputs.base.Output"),
        ("NUMBER", "is no Output; derive a class from unet_ddp.prediction.outputs.base.Output"),
        ("Text", "its path is 'wrong.txt'; make it a pathlib.Path"),
        ("Missing", 'record returned None; return text, or "" for nothing'),
        ("Number", 'record returned 3; return text, or "" for nothing'),
    ],
)
def test_what_is_no_output_is_one_line(
    own: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    """Issue: each was a traceback inside the program."""
    wrong = """
        from pathlib import Path
        from unet_ddp.prediction.outputs.base import Output

        NUMBER = 3

        class Alone:
            def write(self, image, prediction): pass

        def nothing(config, labels, image_format): pass

        class Text(Output):
            path = "wrong.txt"

        class Missing(Output):
            path = Path("wrong.txt")
            def record(self, image, prediction): pass

        class Number(Missing):
            def record(self, image, prediction): return 3
        """
    Path("wrong_outputs.py").write_text(textwrap.dedent(wrong))
    assert run("p", "--write", f"wrong_outputs:{name}") == 2
    err = capsys.readouterr().err
    assert err.splitlines()[-1] == f"error: --write wrong_outputs:{name}: {said}"
    assert "Traceback" not in err and not Path("wrong.txt").exists()


FILES = """
    from pathlib import Path
    from unet_ddp.prediction.outputs.base import Output

    class Sizes(Output):
        def files(self, image):
            return {returned}

        def write(self, image, prediction):
            image.named("_size.txt").write_text(str(prediction.size))
    """


def write_sizes(returned: str) -> str:
    Path("sizes.py").write_text(textwrap.dedent(FILES).format(returned=returned))
    sys.modules.pop("sizes", None)
    return "sizes:Sizes"


@pytest.mark.parametrize("returned", ['image.named("_size.txt")', '[image.named("_size.txt")]'])
def test_it_may_write_into_a_new_folder_and_name_a_single_file(own: Path, returned: str) -> None:
    """Issue: the folder was made only when the mask was written, after it; a path alone was a traceback."""
    assert run("p", "-o", "new/one", "--write", write_sizes(returned)) == 0
    assert Path("new/one/0_size.txt").read_text() == "(30, 40)"
    before = Path("new/one/0_size.txt").stat().st_mtime_ns
    assert run("p", "-o", "new/one", "--write", "sizes:Sizes", "--skip-existing") == 0
    assert Path("new/one/0_size.txt").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        ('str(image.named("_size.txt"))', "'out/0_size.txt'"),
        ('[str(image.named("_size.txt"))]', "['out/0_size.txt']"),
        ("None", "None"),
    ],
)
def test_files_that_are_no_paths_are_one_line(
    own: Path, capsys: pytest.CaptureFixture[str], returned: str, shown: str
) -> None:
    assert run("p", "-o", "out", "--write", write_sizes(returned)) == 2
    assert capsys.readouterr().err == (
        f"error: --write sizes:Sizes: files returned {shown}; return a list of pathlib.Path, or []\n"
    )
    assert not Path("out").exists()


def test_a_file_that_it_names_and_does_not_write_is_one_line(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Issue: the image's line named it, and the exit status was 0."""
    assert run("p/0.png", "-o", "out", "--write", write_sizes('[image.named("_never.txt")]')) == 2
    assert capsys.readouterr().err == (
        "error: --write sizes:Sizes: write has not made out/0_never.txt, which files names; make it there, or "
        "leave it out of files\n"
    )


@pytest.mark.parametrize(
    ("name", "takes"),
    [("Nothing", "()"), ("sizes", "(image, prediction)"), ("Named", "(*, config)")],
)
def test_what_takes_other_values_is_one_line(
    own: Path, capsys: pytest.CaptureFixture[str], name: str, takes: str
) -> None:
    wrong = """
        from unet_ddp.prediction.outputs.base import Output

        class Nothing(Output):
            def __init__(self): pass

        class Named(Output):
            def __init__(self, *, config): pass

        def sizes(image, prediction): return "1"
        """
    Path("taking_outputs.py").write_text(textwrap.dedent(wrong))
    assert run("p", "--write", f"taking_outputs:{name}") == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: --write taking_outputs:{name}: takes {takes}, and is given 3 values; derive a class from "
        "unet_ddp.prediction.outputs.base.Output, which takes them"
    )


def test_no_checkpoint_names_one(own: Path) -> None:
    """Its settings are a run's: a stranger's file must not have code imported."""
    write_model(own / "m.pt", Labels((0, 255)), config={"write": ["my_outputs:Sure"]})
    assert run("p", "-m", "m.pt") == 0
    assert not Path("sure.json").exists()
