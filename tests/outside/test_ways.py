"""Parts of one's own in every way a run starts: shell, recipe, Python, notebook, torchrun; whole, or killed and resumed.

Each run has a loss, a network, an augmentation, a reader and a callback of its own.
"""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.notebooks import run_notebook
from tests.outside.test_outside import BY_PATH, PATHS, SETTINGS, Place
from tests.ranks import ROOT, TORCHRUN, TRAIN, python, warm_python

nbclient = pytest.importorskip("nbclient.exceptions", reason="nbclient is not installed")

pytestmark = [pytest.mark.thorough, pytest.mark.processes]

PYTHON = """
    import sys
    import unet_ddp
    from field_parts.augmentations import dim
    from field_parts.callbacks import Lines
    from field_parts.networks import Small

    name, processes, batch, part = sys.argv[1:]
    callbacks, more = [Lines], {}
    if part != "whole":
        callbacks, more = [Lines, "killed_parts:Killed"], {"save_every_steps": 1}
    unet_ddp.train(
        images="imgs", masks="masks", width=4, epochs=2, validation=25, workers=0, seed=3, clip=0,
        precision="float32", device="cpu", model=Small, loss="field_parts.losses:Squared+ce", augmentation=dim,
        callback=callbacks, reader="field_parts.readers:FieldFile", exp_name=name, nproc=int(processes),
        batch_size=int(batch), resume=True if part == "resumed" else None, **more,
    )
    """
KILLED = """
    import os
    import signal
    from pathlib import Path

    from field_parts.callbacks import Lines


    class Killed(Lines):
        def __init__(self, run):
            super().__init__(run)
            self.count = 0
            self.mark = Path(run.folder.name + ".killed")

        def saved(self, path):
            super().saved(path)
            self.count += 1
            if self.count == 3 and not self.mark.exists():
                self.mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
    """


SOURCES = {"field_parts"} | {
    f"field_parts.{part}"
    for part in ("losses:Squared", "networks:Small", "augmentations:dim", "readers:FieldFile", "callbacks:Lines")
}  # fmt: skip
"""What a run keeps the text of: its parts, and the package that they are in."""
SOURCES_OF_KILLED = {"killed_parts:Killed", "field_parts.callbacks"}
"""Further, of the callback that kills it, and what this one imports."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A folder of pairs, with the programs that train on them."""
    found = Place(tmp_path_factory.mktemp("ways"), as_package=False)
    (found.folder / "script.py").write_text(textwrap.dedent(PYTHON))
    (found.folder / "killed_parts.py").write_text(textwrap.dedent(KILLED))
    recipe = [f"{flag[2:]}: {PATHS[flag]}" for flag in ("--loss", "--model", "--augmentation")]
    recipe += [f"{flag[2:]}: [{PATHS[flag]}]" for flag in ("--callback", "--reader")]
    (found.folder / "recipe.yaml").write_text("\n".join([*recipe, "width: 4", "epochs: 2"]) + "\n")
    return found


@pytest.fixture(scope="module")
def run_of_shell(place: Place) -> Callable[[int], Path]:
    """Return a function that returns the checkpoint of a whole run by train.py on so many processes."""

    @functools.cache
    def train(processes: int) -> Path:
        name = f"shell{processes}"
        done = start_warm(place, TRAIN, *typed(name, processes))
        assert done.returncode == 0, done.stderr
        return place.folder / "checkpoints" / name / "last.pt"

    return train


def typed(name: str, processes: int, parts: list[str] = BY_PATH, part: str = "whole") -> list[str]:
    """Return the words of a command line, but for the program."""
    batch = ["--batch-size", str(4 // processes), "--exp-name", name]
    if part != "whole":
        batch += ["--callback", PATHS["--callback"], "killed_parts:Killed", "--save-every-steps=1"]
    resume = ["--resume"] if part == "resumed" else []
    return [*SETTINGS, *parts, *batch, "--nproc", str(processes), *resume]


def search_path(place: Place) -> str:
    return os.pathsep.join([str(place.folder / "site"), str(ROOT), str(place.folder)])


def start(place: Place, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Python's, from the interpreter's start, and return how it ended."""
    return python(place.folder, *argv, PYTHONPATH=search_path(place))


def start_warm(place: Place, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Python's that has its imports, as do its ranks."""
    return warm_python(place.folder, *argv, PYTHONPATH=search_path(place))


def run(place: Place, part: str, *argv: str) -> None:
    """Run a program that is killed, or ends well."""
    done = start(place, *argv)
    assert (done.returncode != 0) == (part == "killed"), done.stdout + done.stderr


def by_shell(place: Place, name: str, processes: int, part: str = "whole") -> None:
    run(place, part, TRAIN, *typed(name, processes, part=part))


def by_recipe(place: Place, name: str, processes: int, part: str) -> None:
    run(place, part, TRAIN, "--config", "recipe.yaml", *typed(name, processes, part=part))


def by_script(place: Place, name: str, processes: int, part: str) -> None:
    run(place, part, "script.py", name, str(processes), str(4 // processes), part)


def by_script_of_torchrun(place: Place, name: str, processes: int, part: str) -> None:
    run(place, part, *TORCHRUN, "script.py", name, "1", str(4 // processes), part)


def by_notebook(place: Place, name: str, processes: int, part: str) -> None:
    """The kernel trains where there is one process; else the ranks are its children."""
    cells = (
        f"import sys\nsys.argv = {['', name, str(processes), str(4 // processes), part]}",
        PYTHON,
    )
    if part != "killed":
        run_notebook(place.folder, *cells, PYTHONPATH=search_path(place))
        return
    with pytest.raises(nbclient.DeadKernelError if processes == 1 else nbclient.CellExecutionError):
        run_notebook(place.folder, *cells, PYTHONPATH=search_path(place))


STARTS = [
    *itertools.product((by_shell, by_recipe, by_script, by_notebook), (1, 2)),
    (by_script_of_torchrun, 2),
]
CASES = [
    pytest.param(
        *start,
        is_killed,
        id=f"{start[0].__name__}-{start[1]}{'-killed' * is_killed}",
        marks=pytest.mark.release,
    )
    for start, is_killed in itertools.product(STARTS, (False, True))
    if is_killed or start[0] is not by_shell  # which the others are compared with
]


@pytest.mark.parametrize(("way", "processes", "is_killed"), CASES)
def test_the_run_is_that_of_the_shell_bit_by_bit(
    place: Place,
    run_of_shell: Callable[[int], Path],
    way: Callable[[Place, str, int, str], None],
    processes: int,
    is_killed: bool,
) -> None:
    folder = place.folder / "checkpoints"
    name = f"{way.__name__}{processes}{is_killed}"
    for part in ("killed", "resumed") if is_killed else ("whole",):
        way(place, name, processes, part)
        assert (place.folder / f"{name}.killed").exists() == is_killed
    found, expected = (
        torch.load(path, weights_only=True)
        for path in (folder / name / "last.pt", run_of_shell(processes))
    )
    assert {*expected["sources"]} == SOURCES
    assert {*found["sources"]} == SOURCES | (SOURCES_OF_KILLED if is_killed else set())
    assert found["model"].keys() == expected["model"].keys()
    for key, tensor in expected["model"].items():
        assert torch.equal(found["model"][key], tensor), key
    lines = (folder / name / "lines.jsonl").read_text()
    assert '"epoch": 1' in lines and '"epoch": 2' in lines and '"squared"' in lines


RAISES = {
    "--loss": "class Faulty(Squared):\n    def sums(self, batch):\n        {fault}\n        return super().sums(batch)",
    "--model": "class Faulty(Small):\n    def forward(self, images):\n        {fault}\n        return super().forward(images)",
    "--augmentation": "def Faulty(image, mask, generator):\n    {fault}\n    return image, mask",
    "--reader": "class Faulty(FieldFile):\n    def read_bands(self):\n        {fault}\n        return super().read_bands()",
    "--callback": "class Faulty(Lines):\n    def epoch(self, row):\n        {fault}",
}
FLAGS = [pytest.param(flag, marks=[pytest.mark.release] * (flag != "--loss")) for flag in RAISES]
IMPORTS = """
import os
import torch
from field_parts.callbacks import Lines
from field_parts.losses import Squared
from field_parts.networks import Small
from field_parts.readers import FieldFile
calls = 0


def fail():
    global calls
    calls += 1
    if int(os.environ["RANK"]) == {rank} and calls > {after}:
        raise RuntimeError("this part is broken")


"""


@pytest.mark.parametrize("flag", FLAGS)
def test_what_a_part_raises_on_one_rank_alone_ends_both_and_is_said_once(
    place: Place, flag: str
) -> None:
    rank = 0 if flag in ("--callback", "--reader") else 1  # rank 0 scans the files
    after = 0 if flag == "--callback" else 3
    source = IMPORTS.format(rank=rank, after=after) + RAISES[flag].format(fault="fail()")
    module = f"faulty_{flag[2:]}"
    (place.folder / f"{module}.py").write_text(source)
    parts = [word for name, value in PATHS.items() if name != flag for word in (name, value)]
    argv = typed(module, 2, [*parts, flag, f"{module}:Faulty"])
    done = start_warm(place, TRAIN, *argv)
    assert done.returncode in (1, 2), done.stdout + done.stderr
    said = done.stdout + done.stderr
    assert said.count("RuntimeError: this part is broken\n") <= 1, said  # the user's own traceback
    assert done.stderr.count("error: ") <= 1, said
    assert "this part is broken" in said


@pytest.mark.parametrize("flag", FLAGS)
def test_a_part_that_is_not_there_is_one_line(place: Place, flag: str) -> None:
    parts = [word for name, value in PATHS.items() if name != flag for word in (name, value)]
    done = start_warm(place, TRAIN, *typed("missing", 2, [*parts, flag, "nowhere:Part"]))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.count("error: ") == 1 and "nowhere:Part" in done.stderr, done.stderr
    assert not (place.folder / "checkpoints" / "missing" / "last.pt").exists()
