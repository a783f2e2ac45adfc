"""Modules of the user's own: what is imported is the text that is recorded.

Python imports a module once in a process and never looks at its file again. A notebook trains several
times with a file that is edited in between. So each call begins with `renew`: then the first use of a module compares
it, and what it imports from its own folder, with the files. It is imported again where they differ.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import marshal
import os
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

_INSTALLED = {"site-packages", "dist-packages"}  # names of folders
_OTHERS = {Path(ast.__file__).parent, Path(__file__).parents[1]}  # Python's own, and this package
_PROGRAM = ("__main__", "__mp_main__")  # other processes have another one
_HEADER = 16  # bytes of a .pyc before its code

_used: dict[str, dict[str, bytes]] = {}
"""By name, the modules that this call has used, each with the texts of itself and its helpers by name."""
_earlier: dict[int, tuple[weakref.ref[Any], str]] = {}
"""By id, objects of modules that were imported again since, with their import paths."""
_here: list[str] = []
"""The folder on `sys.path` that is there for its parts alone: the working folder of the last use."""


class _Loader(SourceFileLoader):
    """Runs a text that was read before; a .pyc may be of another one of the same second and size."""

    def __init__(self, name: str, path: str, text: bytes) -> None:
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.text, self.path)


class _Finder:
    """Finds the modules of `files` alone: import paths with files and their texts."""

    def __init__(self, files: dict[str, tuple[Path, bytes]]) -> None:
        self.files = files

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self.files:
            return None
        file, text = self.files[name]
        loader = _Loader(name, str(file), text)
        return importlib.util.spec_from_file_location(name, file, loader=loader)


def renew() -> None:
    """Begin a call: each module is compared with its file at its next use."""
    _used.clear()
    importlib.invalidate_caches()


def import_own(name: str, *, looks_here: bool = True) -> ModuleType:
    """Return a module that is not of this package; one of the working folder only if it `looks_here`.

    In one call it stays the same, whatever happens to its file.
    """
    if name in _used:
        return importlib.import_module(name)
    if looks_here:
        _look_here()
    # albumentations, which it may import, would ask a server for its newest version.
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    files = _read_files(name)
    if not files:  # it is installed, or there is none
        module = importlib.import_module(name)
        _used[name] = {name: _read_text(module)}
        return module
    if not all(_is_current(each, *files[each]) for each in files if each in sys.modules):
        _forget(files)
    finder = _Finder(files)
    sys.meta_path.insert(0, finder)
    try:
        module = importlib.import_module(name)
    except BaseException:
        _forget(files)  # those that were imported before the error, and their packages in part
        raise
    finally:
        sys.meta_path.remove(finder)
    _used[name] = {each: text for each, (_, text) in files.items()}
    return module


def texts_of(name: str, part: object) -> dict[str, str]:
    """Return the texts of a module that `import_own` has returned and of its helpers, by name.

    Of an installed one, whose files are not searched, with that of the module that defines the `part`.
    """
    texts = dict(_used[name])
    home = getattr(inspect.unwrap(part) if callable(part) else part, "__module__", None)
    if is_installed(getattr(sys.modules[name], "__file__", None) or "") and home in sys.modules:
        texts.setdefault(str(home), _read_text(sys.modules[str(home)]))
    return {each: text.decode("utf-8", "replace") for each, text in texts.items()}


def path_of(value: object) -> str | None:
    """Return the `module:attribute` that is an object; None if there is none, or only in the program itself."""
    reference, path = _earlier.get(id(value), (None, ""))
    if reference is not None and reference() is value:
        return path
    first = getattr(value, "__module__", None)
    places = []
    for name, module in [*sys.modules.items()]:
        content = getattr(module, "__dict__", {})
        for attribute, found in [*content.items()] if name not in _PROGRAM else ():
            if found is value and attribute.isidentifier():
                is_others = is_installed(str(content.get("__file__") or ""))
                places.append((name != first, is_others, f"{name}:{attribute}"))
    return min(places)[2] if places else None


def _look_here() -> None:
    """Have parts found in the working folder, and no longer in that of an earlier call."""
    here = str(Path.cwd())
    for folder in _here:
        with suppress(ValueError):
            sys.path.remove(folder)
    _here.clear()
    if here not in sys.path:
        sys.path.append(here)
        _here.append(here)


# -- files -----------------------------------------------------------------------------------


def _read_files(name: str) -> dict[str, tuple[Path, bytes]]:
    """Return the files and texts of a module, and of what it imports from its own folder, by name.

    There is none if it is installed, can't be found, or was imported otherwise than from its file.
    """
    file = _find_file(name)
    if file is None:
        return {}
    depth = name.count(".")
    root = file.parents[depth + 1 if file.name == "__init__.py" else depth]
    files: dict[str, tuple[Path, bytes]] = {}
    waiting = [*_with_packages(name)]
    while waiting:
        each = waiting.pop(0)
        path = None if each in files else _find_file(each)
        if path is not None and root in path.parents:
            text = path.read_bytes()
            files[each] = path, text
            package = each if path.name == "__init__.py" else each.rpartition(".")[0]
            waiting += _list_imports(text, package)
    return files


def _list_imports(text: bytes, package: str) -> Iterator[str]:
    """Yield the names that a module's text may import, at any place in it."""
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError):  # the import says so
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_packages(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                with suppress(ImportError):
                    base = importlib.util.resolve_name("." * node.level + base, package)
            for alias in node.names:
                yield from _with_packages(f"{base}.{alias.name}".strip("."))


def _with_packages(name: str) -> Iterator[str]:
    """Yield the packages that a module is in, and itself."""
    words = name.split(".")
    for count in range(1, len(words) + 1):
        yield ".".join(words[:count])


def _find_file(name: str) -> Path | None:
    """Return the file from which a module would be imported now, if it is the user's own."""
    module = sys.modules.get(name)
    if module is not None and not _is_from_file(module):
        return None
    path: Sequence[str] | None = None
    spec = None
    for each in _with_packages(name):
        if not each or (spec is not None and path is None):  # in a module that is no package
            return None
        with suppress(Exception):  # of finders that are not ours
            spec = next(filter(None, (f.find_spec(each, path) for f in sys.meta_path)), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    origin = spec.origin if spec is not None and spec.has_location else None
    if origin is None or not origin.endswith(".py") or is_installed(origin):
        return None
    return Path(origin)


def _is_from_file(module: ModuleType) -> bool:
    """Return whether a module was imported by Python's own loader or ours, and to its end."""
    spec = getattr(module, "__spec__", None)
    if spec is None or getattr(spec, "_initializing", False):  # it is what trains
        return False
    return type(spec.loader) in (SourceFileLoader, _Loader)


def is_installed(path: str) -> bool:
    """Return whether a file is Python's own, this package's or of an installed one."""
    place = Path(path)
    return not (_INSTALLED.isdisjoint(place.parts) and _OTHERS.isdisjoint(place.parents))


# -- modules -----------------------------------------------------------------------------------


def _is_current(name: str, file: Path, text: bytes) -> bool:
    """Return whether an imported module is that text of that file.

    What the user has imported is known by its .pyc, which Python has read or written then; without one, by the
    file's times: it has not changed since this process began. A copy may have an old time of change, but no old
    time of its entry.
    """
    spec = sys.modules[name].__spec__
    if spec is None or spec.origin is None or Path(spec.origin) != file:
        return False
    if isinstance(spec.loader, _Loader):
        return spec.loader.text == text
    cached = Path(spec.cached or "")
    if not spec.cached or not cached.is_file():
        status = file.stat()
        return max(status.st_mtime, status.st_ctime) < _process_start()
    with suppress(OSError, EOFError, ValueError, TypeError, SyntaxError):
        code = marshal.loads(cached.read_bytes()[_HEADER:])
        return bool(code == compile(text, str(file), "exec", dont_inherit=True))
    return False


@cache
def _process_start() -> float:
    """Return when this process began, as the time of a file; 0 where the system does not say it."""
    with suppress(OSError, ValueError, IndexError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
    return 0.0


def _forget(files: dict[str, tuple[Path, bytes]]) -> None:
    """Have modules, and those inside of them, imported again; old objects keep working with old ones."""
    for key in [key for key, (reference, _) in _earlier.items() if reference() is None]:
        del _earlier[key]
    for name in [*sys.modules]:
        if any(package in files for package in _with_packages(name)):
            for attribute, value in vars(sys.modules.pop(name)).items():
                with suppress(TypeError):  # numbers and text have no weak references
                    _earlier.setdefault(id(value), (weakref.ref(value), f"{name}:{attribute}"))


def _read_text(module: ModuleType) -> bytes:
    """Return the text of an installed module's file; none of one that was compiled."""
    file = getattr(module, "__file__", None) or ""
    with suppress(OSError):
        return Path(file).read_bytes() if file.endswith(".py") else b""
    return b""
