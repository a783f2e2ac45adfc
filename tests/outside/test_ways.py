"""Parts of one's own in every way a run starts: shell, recipe, Python, notebook, torchrun; killed and resumed.

Each run has a loss, a network, an augmentation, a reader and a callback of its own.
"""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Callable

import pytest
import torch

from tests.notebooks import run_notebook
from tests.outside.test_outside import BY_PATH, PATHS, SETTINGS, Place
from tests.ranks import ROOT, TORCHRUN, TRAIN, python

pytestmark = [pytest.mark.thorough, pytest.mark.processes]

PYTHON = """
    import sys
    import unet_ddp
    from field_parts.augmentations import dim
    from field_parts.callbacks import Lines
    from field_parts.networks import Small

    unet_ddp.train(
        images="imgs", masks="masks", width=4, epochs=2, validation=25, workers=0, seed=3, clip=0,
        precision="float32", device="cpu", model=Small, loss="field_parts.losses:Squared+ce", augmentation=dim,
        callback=[Lines], reader="field_parts.readers:FieldFile", exp_name=sys.argv[1],
        nproc=int(sys.argv[2]), batch_size=int(sys.argv[3]),
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
            self.is_new = not Path("killed").exists()
            Path("killed").touch()

        def saved(self, path):
            super().saved(path)
            self.count = getattr(self, "count", 0) + 1
            if self.is_new and self.count == 3:
                os.kill(os.getpid(), signal.SIGKILL)
    """


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A folder of pairs with runs on one process and two, by train.py."""
    found = Place(tmp_path_factory.mktemp("ways"), as_package=False)
    (found.folder / "script.py").write_text(textwrap.dedent(PYTHON))
    (found.folder / "killed_parts.py").write_text(textwrap.dedent(KILLED))
    recipe = [
        f"{name[2:]}: {value}" for name, value in PATHS.items() if name in ("--loss", "--model")
    ]
    (found.folder / "recipe.yaml").write_text("\n".join([*recipe, "width: 4", "epochs: 2"]) + "\n")
    for processes in (1, 2):
        run(found, TRAIN, *typed(f"shell{processes}", processes))
    return found


def typed(name: str, processes: int, parts: list[str] = BY_PATH) -> list[str]:
    """Return the words of a command line, but for the program."""
    batch = ["--batch-size", str(4 // processes), "--exp-name", name]
    return [*SETTINGS, *parts, *batch, "--nproc", str(processes)]


def run(place: Place, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Python's, from the interpreter's start, and return how it ended."""
    path = os.pathsep.join([str(place.folder / "site"), str(ROOT), str(place.folder)])
    done = python(place.folder, *argv, PYTHONPATH=path)
    assert done.returncode in (0, -9), done.stdout + done.stderr
    return done


def by_recipe(place: Place, name: str, processes: int) -> None:
    run(place, TRAIN, "--config", "recipe.yaml", *typed(name, processes))


def by_script(place: Place, name: str, processes: int) -> None:
    run(place, "script.py", name, str(processes), str(4 // processes))


def by_notebook(place: Place, name: str, processes: int) -> None:
    path = os.pathsep.join([str(place.folder / "site"), str(ROOT)])
    argv = ["", name, str(processes), str(4 // processes)]
    run_notebook(place.folder, f"import sys\nsys.argv = {argv}", PYTHON, PYTHONPATH=path)


def by_script_of_torchrun(place: Place, name: str, processes: int) -> None:
    torchrun = TORCHRUN if processes == 2 else []
    run(place, *torchrun, "script.py", name, "1", str(4 // processes))


def by_kill_and_resume(place: Place, name: str, processes: int) -> None:
    (place.folder / "killed").unlink(missing_ok=True)
    parts = [*BY_PATH, "--callback", "killed_parts:Killed"]
    argv = [*typed(name, processes, parts), "--save-every-steps", "1"]
    path = os.pathsep.join([str(place.folder / "site"), str(ROOT), str(place.folder)])
    done = python(place.folder, TRAIN, *argv, PYTHONPATH=path)
    assert done.returncode != 0
    run(place, TRAIN, *argv, "--resume")


WAYS = [by_recipe, by_script, by_notebook, by_script_of_torchrun, by_kill_and_resume]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_the_run_is_that_of_the_shell_bit_by_bit(
    place: Place, way: Callable[[Place, str, int], None], processes: int
) -> None:
    name = f"{way.__name__}{processes}"
    way(place, name, processes)
    folder = place.folder / "checkpoints"
    found, expected = (
        torch.load(folder / each / "last.pt", weights_only=True)
        for each in (name, f"shell{processes}")
    )
    assert found["sources"].keys() == expected["sources"].keys() and len(found["sources"]) == 4
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


@pytest.mark.parametrize("flag", list(RAISES))
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
    path = os.pathsep.join([str(place.folder / "site"), str(ROOT), str(place.folder)])
    done = python(place.folder, TRAIN, *argv, PYTHONPATH=path)
    assert done.returncode in (1, 2), done.stdout + done.stderr
    said = done.stdout + done.stderr
    assert said.count("RuntimeError: this part is broken\n") <= 1, said  # the user's own traceback
    assert done.stderr.count("error: ") <= 1, said
    assert "this part is broken" in said


@pytest.mark.parametrize("flag", list(RAISES))
def test_a_part_that_is_not_there_is_one_line(place: Place, flag: str) -> None:
    parts = [word for name, value in PATHS.items() if name != flag for word in (name, value)]
    path = os.pathsep.join([str(place.folder / "site"), str(ROOT)])
    argv = typed("missing", 2, [*parts, flag, "nowhere:Part"])
    done = python(place.folder, TRAIN, *argv, PYTHONPATH=path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.count("error: ") == 1 and "nowhere:Part" in done.stderr, done.stderr
    assert not (place.folder / "checkpoints" / "missing" / "last.pt").exists()
