"""How easily the package is read: its heart, its hooks, and what its signatures leave open.

    python -m benchmarks.rulers [FOLDER] [--check]

The heart is what turns an image into a gradient, and a photo into a mask. A hook is a method of a base class
that exactly one subclass overrides: a question that the base asks for the sake of one kind.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.size import Code, list_imports
from benchmarks.timing import parse_checkout, print_table

HEART = [
    "commands/train",
    "commands/predict",
    "prediction/predictor",
    "prediction/prediction",
    "prediction/tiling",
    "prediction/outputs/base",
    "prediction/outputs/mask",
    "runs/folder",
    "runs/resume",
    "runs/build",
    "checkpoints/file",
    "heads",
    "training/state",
    "training/step",
    "training/losses",
    "training/prefetch",
    "training/guard",
    "training/validation",
    "metrics/counts",
    "data/pairs",
    "data/dataset",
    "data/samplers",
    "data/loaders",
    "data/augmentation",
    "data/preprocessing",
    "data/labels",
    "data/readers/base",
    "data/readers/pillow",
    "network/unet",
    "network/architecture",
    "network/sync_batchnorm",
    "distributed/world",
]
BASES = {"Labels": "data/labels", "Pairs": "data/pairs", "OpenFile": "data/readers/base"}
# What is measured today: more is a decision, to be made here.
LIMITS = {
    "heart: statements and expressions": 22_300,
    "heart: files": 32,
    "heart: modules that it imports from outside itself": 61,
    "hooks of Labels, Pairs and OpenFile that one subclass overrides": 12,
    "signatures of the core that say Any": 125,
    "points with one part": 0,
}

Trees = dict[str, tuple[str, ast.Module]]
"""By the file's place in the package without its suffix, its text and syntax tree."""


def read_package(root: Path) -> Trees:
    """Return the files of the package below `root`."""
    package = root / "unet_ddp"
    found = {}
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found[str(path.relative_to(package).with_suffix(""))] = text, ast.parse(text)
    return found


def is_core(place: str) -> bool:
    """Return whether a file is below commands/ and no extra."""
    return not place.startswith(("extras/", "commands/"))


def count_heart(files: Trees) -> tuple[int, int]:
    """Return the heart's statements and expressions, and the package's modules that it imports from outside itself."""
    nodes = 0
    imported: set[str] = set()
    for place in HEART:
        text, tree = files[place]
        nodes += Code.of(text, tree).nodes
        imported.update(name for name in list_imports(tree) if name.startswith("unet_ddp."))
    own = {f"unet_ddp.{place.replace('/', '.')}" for place in HEART}
    return nodes, len(imported - own)


def list_methods(tree: ast.Module, name: str) -> set[str]:
    """Return the names of a class's methods, properties and class variables, without the private ones."""
    found = set()
    for node in (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)):
        if node.name == name:
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    found.add(item.name)
                elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    found.add(item.target.id)
                elif isinstance(item, ast.Assign):
                    found.update(each.id for each in item.targets if isinstance(each, ast.Name))
    return {each for each in found if not each.startswith("_")}


def find_subclasses(files: Trees, base: str) -> Iterator[tuple[ast.Module, str]]:
    """Yield the file and name of each class below `base`, of whatever depth."""
    for _, tree in files.values():
        for node in (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)):
            names = {each.id for each in node.bases if isinstance(each, ast.Name)}
            if base in names:
                yield tree, node.name
                yield from find_subclasses(files, node.name)


def list_hooks(files: Trees) -> list[str]:
    """Return what exactly one subclass overrides, as Base.name."""
    hooks = []
    for base, place in BASES.items():
        own = list_methods(files[place][1], base)
        counts = Counter[str]()
        for tree, name in find_subclasses(files, base):
            counts.update(own & list_methods(tree, name))
        hooks += [f"{base}.{name}" for name, count in sorted(counts.items()) if count == 1]
    return hooks


def count_any(files: Trees) -> int:
    """Return how many signatures below commands/, extras aside, say `Any`."""
    count = 0
    for place, (_, tree) in files.items():
        for node in ast.walk(tree):
            if is_core(place) and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                arguments += filter(None, (node.args.vararg, node.args.kwarg))
                notes = [*(each.annotation for each in arguments), node.returns]
                inner = (each for note in notes if note is not None for each in ast.walk(note))
                count += any(isinstance(each, ast.Name) and each.id == "Any" for each in inner)
    return count


def count_lonely(files: Trees) -> int:
    """Return the tables of plugins/built_in/ that have one part; points without any are of installed packages."""
    lonely = 0
    for place, (_, tree) in files.items():
        for node in ast.walk(tree):
            if place.startswith("plugins/built_in") and isinstance(node, ast.AnnAssign):
                is_one = isinstance(node.value, ast.Dict) and len(node.value.values) == 1
                lonely += is_one and "Parts[" in ast.unparse(node.annotation)
    return lonely


def measure(root: Path) -> dict[str, int]:
    """Return each ruler's figure, by its name, of the checkout in `root`."""
    files = read_package(root)
    heart, outside = count_heart(files)
    return {
        "heart: statements and expressions": heart,
        "heart: files": len(HEART),
        "heart: modules that it imports from outside itself": outside,
        "hooks of Labels, Pairs and OpenFile that one subclass overrides": len(list_hooks(files)),
        "signatures of the core that say Any": count_any(files),
        "points with one part": count_lonely(files),
    }


def main(argv: list[str] | None = None) -> int:
    """Print a table; return 1 if a limit is to be checked and broken."""
    options = parse_checkout(__doc__, argv)
    figures = measure(options.folder)
    print_table(("", "now", "limit"), [(k, f"{v:,}", f"{LIMITS[k]:,}") for k, v in figures.items()])
    broken = [name for name, figure in figures.items() if figure > LIMITS[name]]
    for name in broken if options.check else []:
        print(f"error: {name}: {figures[name]:,}; at most {LIMITS[name]:,}", file=sys.stderr)
    return 1 if broken and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
