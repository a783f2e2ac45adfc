"""Mutation testing: how many small changes of the code its tests notice.

    pip install -e ".[mutation]"
    python -m benchmarks.mutants --sample 1 --most 100
    python -m benchmarks.mutants unet_ddp.metrics unet_ddp.data.splits --sample 20 --all-tests

mutmut writes the changed code to the folder mutants/, in some minutes. Each mutant is tried by the fast tests of
its module, and by those that name it or its module: some seconds. `--all-tests` tries what is left by all fast
tests, minutes each. The mutants of the sample are drawn by --seed. Survivors are printed with their change; some
change nothing that can be seen. [tool.mutmut] in pyproject.toml says what is left out.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from benchmarks.timing import new_parser

MUTANTS = Path("mutants")
SLOWEST = 600  # seconds of the tests near a mutant: a loop that does not end is noticed, too
SLOWEST_OF_ALL = 2400  # of all fast tests
WRITE = """
from pathlib import Path
from mutmut import __main__ as mutmut
Path("mutants").mkdir(exist_ok=True)
mutmut.set_mutant_under_test("mutant_generation")
mutmut.copy_src_dir()
mutmut.copy_also_copy_files()
mutmut.setup_source_paths()
mutmut.store_lines_covered_by_tests()
mutmut.create_mutants({children})
"""
FAST = "not processes and not source and not thorough and not gpu"
FLAGS = ["-x", "-q", "-m", FAST, *(f"-pno:{name}" for name in (
    "cacheprovider", "unraisableexception", "threadexception",
))]  # fmt: skip


def list_mutants(modules: Sequence[str]) -> Iterator[list[str]]:
    """Yield the names of the mutants of each module whose name begins so."""
    for path in sorted((MUTANTS / "unet_ddp").rglob("*.meta")):
        module = ".".join(path.relative_to(MUTANTS).with_suffix("").with_suffix("").parts)
        names = json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
        if names and module.startswith(tuple(modules or [""])):
            yield sorted(names)


def find_tests(name: str) -> list[Path]:
    """Return the test files of a mutant's module, and those that name it, or its function or class."""
    module, _, function = name.rpartition(".")
    *folders, last = module.split(".")[1:]
    folder = Path("tests", *folders)
    words = re.sub(r"__mutmut_\d+$", "", function).removeprefix("x").split("ǁ")
    words = [word.strip("_") for word in words if len(word.strip("_")) > 4]
    named = re.compile("|".join([re.escape(module), *(rf"\b{word}\b" for word in words)]))
    found = [folder / f"test_{last}.py", *sorted(folder.glob("test_*.py"))]
    for path in sorted(Path("tests").rglob("test_*.py")):
        if named.search(path.read_text(encoding="utf-8")):
            found.append(path)
    return [path for path in dict.fromkeys(found) if path.exists()]


def survives(name: str, tests: Sequence[Path], slowest: float = SLOWEST) -> bool:
    """Return whether no test of these files fails with a mutant, in so many seconds."""
    with tempfile.TemporaryDirectory() as temporary:
        environment = {**os.environ, "MUTANT_UNDER_TEST": name, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONPATH", None)
        command = [
            sys.executable,
            "-m",
            "pytest",
            *FLAGS,
            f"--basetemp={temporary}/t",
            *map(str, tests),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=MUTANTS,
                env=environment,
                capture_output=True,
                timeout=slowest,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode in (0, 5)  # 5: it has no fast test


def show_change(name: str) -> list[str]:
    """Return the lines that a mutant changes."""
    module, _, function = name.rpartition(".")
    original = re.sub(r"__mutmut_\d+$", "__mutmut_orig", function)
    path = MUTANTS.joinpath(*module.split(".")).with_suffix(".py")
    bodies = {
        node.name: ast.unparse(node).splitlines()[1:]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    lines = difflib.unified_diff(bodies[original], bodies[function], lineterm="", n=0)
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def try_each(pool: Executor, names: Sequence[str], lives: Callable[[str], bool]) -> list[str]:
    """Return the mutants that survive, and print each as soon as it is known."""
    survivors = []
    for name, lived in zip(names, pool.map(lives, names), strict=True):
        print("survived" if lived else "killed", name, file=sys.stderr, flush=True)
        survivors += [name] * lived
    return survivors


def try_mutants(options: argparse.Namespace) -> None:
    """Draw a sample, try each mutant of it, and print what was killed."""
    draw = random.Random(options.seed)
    names = [
        name
        for mutants in list_mutants(options.modules)
        for name in draw.sample(mutants, min(options.sample, len(mutants)))
    ]
    draw.shuffle(names)
    names = names[: options.most]
    with ThreadPoolExecutor(options.children) as pool:
        survivors = try_each(pool, names, lambda name: survives(name, find_tests(name)))
        if options.all_tests and survivors:
            every = [Path("tests")]
            if not survives("", every, SLOWEST_OF_ALL):
                raise SystemExit("the fast tests fail without a mutant, too: run them in mutants/")
            survivors = try_each(
                pool, survivors, lambda name: survives(name, every, SLOWEST_OF_ALL)
            )
    killed = len(names) - len(survivors)
    print(f"{killed} of {len(names)} mutants killed ({killed / max(1, len(names)):.0%})")
    for name in survivors:
        print(f"\n{name}", *show_change(name), sep="\n  ")


def main() -> None:
    """Write the mutants, try some of them, and print what was killed."""
    parser = new_parser(__doc__)
    parser.add_argument("modules", nargs="*", help="names of modules or packages (default: all)")
    parser.add_argument("--sample", type=int, default=1, help="mutants of each module (default: 1)")
    parser.add_argument("--most", type=int, help="mutants in all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--children", type=int, default=2, help="processes")
    parser.add_argument("--all-tests", action="store_true", help="for those that survive")
    options = parser.parse_args()
    shutil.rmtree(MUTANTS, ignore_errors=True)
    write = WRITE.format(children=options.children)
    subprocess.run([sys.executable, "-c", write], check=True, stdout=subprocess.DEVNULL)
    try_mutants(options)


if __name__ == "__main__":
    main()
