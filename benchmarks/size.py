"""Size of the code, and the limits it must keep.

    python -m benchmarks.size [FOLDER] [--check]

Lines are lines of a file; a function's are those from its `def` to its end. Lines are the wrong ruler:
under a limit of lines code becomes dense. So the statements and expressions of the syntax tree are
counted, without docstrings, and their number on a line of code. Expressions that hide a condition are
not allowed. Tests have no limit, but an aim: 1.2 lines a line of the package. `python -m benchmarks.road` counts what one photo enters.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.timing import parse_checkout, print_table

# Of the statements and expressions there is an aim and no limit, under which code becomes dense: 66,000, of
# which the core, all but unet_ddp/extras/, has at most 42,000.
FILE_LINES, FUNCTION_LINES, ENTRIES = 300, 40, 21
UNLIMITED_READERS = ("distributed", "world")  # rooms that may ask which rank this is


class Code(NamedTuple):
    """The code of a file without its docstrings and comments."""

    nodes: int
    """Statements and expressions."""
    lines: int

    @classmethod
    def of(cls, text: str, tree: ast.Module) -> Code:
        """Count the code of a file."""
        docstrings = [body[0] for node in ast.walk(tree) if is_documented(body := body_of(node))]
        nodes = sum(isinstance(node, (ast.stmt, ast.expr)) for node in ast.walk(tree))
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in _NOT_CODE:
                lines.update(range(token.start[0], token.end[0] + 1))
        for string in docstrings:
            lines.difference_update(range(string.lineno, (string.end_lineno or 0) + 1))
        return cls(nodes - 2 * len(docstrings), len(lines))


_NOT_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def body_of(node: ast.AST) -> list[ast.stmt]:
    """Return the statements of a module, class or function; of others none."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return node.body if isinstance(node, kinds) else []


def is_documented(body: list[ast.stmt]) -> bool:
    """Return whether the first statement is a docstring."""
    first = body[0] if body else None
    value = first.value if isinstance(first, ast.Expr) else None
    return value is not None and is_text(value)


def list_imports(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the modules that a file imports anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def list_packed(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and kind of each expression that hides a condition from who reads quickly."""
    for node in ast.walk(tree):
        inner = [each for each in ast.walk(node) if each is not node]
        holds_choice = any(isinstance(each, ast.IfExp) for each in inner)
        if isinstance(node, ast.JoinedStr) and holds_choice:
            yield node.lineno, "a conditional expression within an f-string"
        elif isinstance(node, ast.IfExp) and holds_choice:
            yield node.lineno, "a conditional expression within another"
        elif isinstance(node, ast.BinOp) and is_packed_choice(node):
            yield node.lineno, "arithmetic on a condition"
        elif is_filtered(node) and any(map(is_filtered, inner)):
            yield node.lineno, "a filtered comprehension within another"


def is_packed_choice(node: ast.BinOp) -> bool:
    """Return whether a condition is added, or multiplies a text; one that multiplies an array is a mask."""
    sides = (node.left, node.right)
    is_added = isinstance(node.op, (ast.Add, ast.Sub))
    has_text = any(isinstance(side, ast.JoinedStr) or is_text(side) for side in sides)
    return any(map(is_condition, sides)) and (is_added or has_text)


def is_text(node: ast.expr) -> bool:
    """Return whether an expression is a string as it stands."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_condition(node: ast.expr) -> bool:
    """Return whether an expression is written as true or false."""
    called = node.func if isinstance(node, ast.Call) else None
    is_bool = isinstance(called, ast.Name) and called.id == "bool"
    is_negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return is_bool or is_negated or isinstance(node, ast.Compare)


def is_filtered(node: ast.AST) -> bool:
    """Return whether a comprehension has an `if`."""
    return any(each.ifs for each in getattr(node, "generators", ()))


class Span(NamedTuple):
    """A file or function."""

    lines: int
    place: str


@dataclass(frozen=True)
class Size:
    """The sizes of one checkout."""

    lines: dict[str, int]
    files: dict[str, int]
    code: Code
    """Of all files with a limit."""
    extras: Code
    """Of those in unet_ddp/extras/."""
    entries: list[str]
    long_files: list[Span]
    """All files with a limit, the longest first."""
    long_functions: list[Span]
    is_main_reads: int
    imports_of_extras: int
    """Imports in the core of modules in unet_ddp/extras/."""
    packed: list[str]
    """Place and kind of each expression that hides a condition."""

    def broken(self) -> Iterator[str]:
        """Yield a line for each limit that does not hold."""
        if len(self.entries) > ENTRIES:
            yield f"unet_ddp has {len(self.entries)} entries; at most {ENTRIES}"
        for spans, limit in ((self.long_files, FILE_LINES), (self.long_functions, FUNCTION_LINES)):
            for span in spans:
                if span.lines > limit:
                    yield f"{span.place} has {span.lines} lines; at most {limit}"
        yield from self.packed


def measure(root: Path) -> Size:
    """Return the sizes of the checkout in `root`."""
    parts = {name: sorted((root / name).rglob("*.py")) for name in ("unet_ddp", "tests")}
    parts |= {name: [root / name] for name in ("train.py", "predict.py")}
    lines = {
        path: len(path.read_bytes().splitlines()) for paths in parts.values() for path in paths
    }
    files, functions, packed = [], [], list[str]()
    reads, imports, code, extras = 0, 0, Code(0, 0), Code(0, 0)
    for path in (path for name, paths in parts.items() if name != "tests" for path in paths):
        place = path.relative_to(root)
        files.append(Span(lines[path], str(place)))
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        packed += [f"{place}:{line} has {kind}" for line, kind in list_packed(tree)]
        own = Code.of(text, tree)
        code = Code(*map(sum, zip(code, own, strict=True)))
        if "extras" in place.parts:
            extras = Code(*map(sum, zip(extras, own, strict=True)))
        elif "commands" not in place.parts:
            imports += sum(name.startswith("unet_ddp.extras") for name in list_imports(tree))
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or 0) - node.lineno + 1
                functions.append(Span(length, f"{place}:{node.lineno} {node.name}"))
            elif isinstance(node, ast.Attribute) and node.attr == "is_main":
                reads += not set(UNLIMITED_READERS) & set(place.parts)
    return Size(
        lines={name: sum(lines[path] for path in paths) for name, paths in parts.items()},
        files={name: len(paths) for name, paths in parts.items()},
        code=code,
        extras=extras,
        entries=sorted(
            p.name
            for p in (root / "unet_ddp").iterdir()
            if not p.name.startswith("__") and (p.suffix == ".py" or any(p.rglob("*.py")))
        ),
        long_files=sorted(files, reverse=True),
        long_functions=sorted(functions, reverse=True),
        is_main_reads=reads,
        imports_of_extras=imports,
        packed=packed,
    )


def main(argv: list[str] | None = None) -> int:
    """Print a table; return 1 if a limit is to be checked and broken."""
    options = parse_checkout(__doc__, argv)
    size = measure(options.folder)
    rows = [
        (f"{name}: lines, files", f"{size.lines[name]:,}, {size.files[name]}")
        for name in size.lines
    ]
    ratio = size.lines["tests"] / max(1, size.lines["unet_ddp"])
    rows.append(("lines of tests, a line of the package", f"{ratio:.2f}"))
    nodes, per_line = size.code.nodes, size.code.nodes / max(1, size.code.lines)
    rows.append(("statements and expressions, a line", f"{nodes:,}, {per_line:.2f}"))
    extras = size.extras.nodes
    rows.append(("of them in the core, in extras", f"{nodes - extras:,}, {extras:,}"))
    rows.append(("imports from below commands/ to extras", str(size.imports_of_extras)))
    rows.append(("expressions that hide a condition", str(len(size.packed))))
    for name, spans, limit in (
        ("file", size.long_files, FILE_LINES),
        ("function", size.long_functions, FUNCTION_LINES),
    ):
        rows.append((f"longest {name}", f"{spans[0].place}, {spans[0].lines} lines"))
        rows.append((f"{name}s over {limit} lines", str(sum(s.lines > limit for s in spans))))
    rows.append((f"entries of unet_ddp ({len(size.entries)})", " ".join(size.entries)))
    rows.append(("reads of is_main outside distributed/", str(size.is_main_reads)))
    print_table(("", ""), rows)
    broken = list(size.broken()) if options.check else []
    for line in broken:
        print(f"error: {line}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
