"""The image's requirements and the list of licences are what constraints.txt and pyproject.toml mean."""

from __future__ import annotations

import re
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.locks import FOLDER, LICENCES, TOOLS, find_licence, find_needed, read_licence
from tests.ranks import ROOT
from tests.test_docs import read_pyproject

HINT = "run python -m benchmarks.locks"
LINE = re.compile(r"([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")


def read_locks() -> dict[str, dict[str, str]]:
    """Return the versions of the packages in each file; nothing but names, versions and hashes is there."""
    locks = {}
    for path in FOLDER.iterdir():
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        assert head.startswith("# Made by python -m benchmarks.locks") and "/" not in head
        found = [LINE.fullmatch(line) for line in lines]
        assert all(found), path
        locks[path.stem] = {match[1]: match[2] for match in found if match}
    return locks


def test_the_image_gets_the_versions_of_constraints_txt() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    pairs = [line.split("==") for line in lines]
    pinned = {canonicalize_name(name): version for name, version in pairs}
    for name, lock in read_locks().items():
        wrong = {each: version for each, version in lock.items() if pinned.get(each) != version}
        assert wrong == {}, (name, HINT)


def test_each_extra_has_a_file_with_what_it_names() -> None:
    project, locks = read_pyproject()["project"], read_locks()
    extras = project["optional-dependencies"]
    assert locks.keys() == {"base"} | (extras.keys() - TOOLS), HINT
    for name, lock in locks.items():
        for line in extras.get(name, project["dependencies"]):
            assert canonicalize_name(Requirement(line).name) in {**locks["base"], **lock}, HINT


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11) or sys.platform != "linux", reason="the image's Python"
)
def test_all_that_a_package_needs_is_in_its_file() -> None:
    """pip is told to install no others."""
    locks = read_locks()
    for name, lock in locks.items():
        known = {**locks["base"], **lock}
        for each in lock:
            try:
                lines = metadata.requires(each) or []
            except metadata.PackageNotFoundError:
                continue
            if metadata.version(each) != lock[each]:
                continue
            for line in map(Requirement, lines):
                if line.marker is None or line.marker.evaluate({"extra": ""}):
                    assert canonicalize_name(line.name) in known, (name, each, HINT)


def test_the_list_of_licences_is_of_these_versions() -> None:
    text = LICENCES.read_text(encoding="utf-8")
    _, *rows = re.findall(r"^\| ([a-z0-9-]+) \| (\S+) \| (.+) \| (.+) \|$", text, flags=re.M)
    locks = read_locks()
    versions = {name: version for lock in locks.values() for name, version in lock.items()}
    assert {name: version for name, version, _, _ in rows} == versions, HINT
    for name, version, licence, users in rows:
        assert set(users.split(", ")) == {key for key, lock in locks.items() if name in lock}
        try:
            is_installed = metadata.version(name) == version
        except metadata.PackageNotFoundError:
            is_installed = False
        if is_installed:
            assert licence == find_licence(name), HINT
    assert sum(licence == "not stated" for _, _, licence, _ in rows) < 6


def test_a_licence_is_the_expression_or_the_classifiers_or_the_text() -> None:
    def read(**fields: list[str]) -> str:
        return read_licence(lambda name: fields.get(name.replace("-", "_"), []))

    apache = "License :: OSI Approved :: Apache Software License"
    assert read(License_Expression=["MIT"], Classifier=[apache], License=["x"]) == "MIT"
    classifiers = ["Topic :: X", apache, "License :: OSI Approved"]
    assert read(Classifier=classifiers, License=["x"]) == "Apache Software License"
    assert read(License=["BSD\nCopyright"]) == "BSD"
    assert read(License=["UNKNOWN"]) == read() == "not stated"


def test_what_an_extra_needs_is_followed_through_other_packages_extras() -> None:
    needs = {
        "unet-ddp": ["A", 'b[more]; extra == "serve"', 'c; extra == "geo"'],
        "a": ["d; python_version < '3'"],
        "b": ['E_e; extra == "more"', 'f; extra == "less"'],
        "e-e": ["a"],
    }
    packages = {
        name: {"metadata": {"name": name, "requires_dist": lines}} for name, lines in needs.items()
    }
    environment = {"python_version": "3.11"}
    assert find_needed(packages, environment, "") == {"a"}
    assert find_needed(packages, environment, "serve") == {"a", "b", "e-e"}
