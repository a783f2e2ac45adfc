"""The files with which the container image is made, and the list of licences: what constraints.txt means.

    python -m benchmarks.locks

pip is asked what it would install of the package and each extra, with the versions of constraints.txt. Run it
with CPython 3.11 on Linux on x86-64, the image's; it takes a minute, and needs the extra dev. It writes, for
`pip install --require-hashes`, deploy/requirements/base.txt and a file for each extra with what that adds, and
docs/licences.md. A wheel is known by its SHA-256 alone: from where it comes is for pip's settings to say.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.timing import new_parser

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "requirements"
LICENCES = ROOT / "docs" / "licences.md"
TOOLS = {"dev", "docs", "mutation"}  # extras that no user needs
_NOT_STATED = "not stated"
_HEAD = """---
search:
  exclude: true
---

# Licences of the dependencies

`python -m benchmarks.locks` writes this list from the metadata of the versions in `constraints.txt`, which Linux on
x86-64 gets. The packages' own files have the terms. NVIDIA's libraries come with torch; a
[smaller installation](how-to/install.md) has none of them.

| package | version | licence | needed by |
|---|---|---|---|
"""


def main() -> int:
    """Write the files."""
    new_parser(__doc__).parse_args()
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = sorted(project["optional-dependencies"].keys() - TOOLS)
    report = ask_pip(extras)
    packages = {canonicalize_name(each["metadata"]["name"]): each for each in report["install"]}
    needed = {"base": find_needed(packages, report["environment"], "")}
    for extra in extras:
        found = find_needed(packages, report["environment"], extra)
        needed[extra] = {name for name in found if name not in needed["base"]}
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.iterdir():
        path.unlink()
    for name, names in needed.items():
        lines = [f"# Made by python -m benchmarks.locks, for {describe(report['environment'])}."]
        lines += [lock(packages[each]) for each in sorted(names)]
        (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    LICENCES.write_text(_HEAD + "".join(list_licences(packages, needed)), encoding="utf-8")
    return 0


def ask_pip(extras: list[str]) -> dict[str, Any]:
    """Return pip's report of what it would install of the package with its extras."""
    words = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    words += ["--only-binary", ":all:", "--report", "-", "--constraint", "constraints.txt"]
    done = subprocess.run(
        [*words, f".[{','.join(extras)}]"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    return dict(json.loads(done.stdout))


def find_needed(
    packages: Mapping[str, Any], environment: Mapping[str, str], extra: str
) -> set[str]:
    """Return the names of what the package with one extra, or without, needs, itself left out."""
    found: set[tuple[str, str]] = set()
    waiting = [("unet-ddp", extra)]
    while waiting:
        name, own_extra = waiting.pop()
        if (name, own_extra) in found:
            continue
        found.add((name, own_extra))
        for line in packages[name]["metadata"].get("requires_dist", []):
            needs = Requirement(line)
            if needs.marker is None or needs.marker.evaluate({**environment, "extra": own_extra}):
                waiting += [(canonicalize_name(needs.name), each) for each in {"", *needs.extras}]
    return {name for name, _ in found} - {"unet-ddp"}


def lock(package: Mapping[str, Any]) -> str:
    """Return a line of a requirements file: a version and its hash."""
    about, archive = package["metadata"], package["download_info"]["archive_info"]
    name = canonicalize_name(about["name"])
    return f"{name}=={about['version']} --hash=sha256:{archive['hashes']['sha256']}"


def describe(environment: Mapping[str, str]) -> str:
    """Return the kind of machine that pip's environment is."""
    system, machine = environment["platform_system"], environment["platform_machine"]
    return f"CPython {environment['python_version']} on {system}, {machine}"


def list_licences(packages: Mapping[str, Any], needed: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield a row for each package."""
    for name in sorted(set().union(*needed.values())):
        users = ", ".join(group for group, names in needed.items() if name in names)
        version = packages[name]["metadata"]["version"]
        yield f"| {name} | {version} | {find_licence(name)} | {users} |\n"


def find_licence(name: str) -> str:
    """Return the licence that an installed package states."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return _NOT_STATED
    return read_licence(lambda field: about.get_all(field) or [])


def read_licence(values: Callable[[str], list[str]]) -> str:
    """Return the licence in metadata: the SPDX expression, else the classifiers', else the first line of text."""
    kinds = [line.split(" :: ") for line in values("Classifier") if line.startswith("License ::")]
    named = ", ".join(kind[-1] for kind in kinds if len(kind) > 2)
    stated = [*values("License-Expression"), named, *values("License")]
    for text in stated:
        first = text.strip().partition("\n")[0].replace("|", "/")[:100]
        if first and first != "UNKNOWN":
            return first
    return _NOT_STATED


if __name__ == "__main__":
    sys.exit(main())
