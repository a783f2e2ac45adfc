"""Mutation testing, module by module: how many small changes of the code its tests notice.

    pip install -e ".[mutation]"
    python -m benchmarks.mutants unet_ddp.metrics unet_ddp.data.splits

Without a module it takes all of them, hours on two cores, and continues what was interrupted.
`mutmut show NAME` shows a survivor's change; [tool.mutmut] in pyproject.toml says what is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from mutmut.stats import status_by_exit_code

KILLED = {"killed", "timeout", "segfault", "suspicious"}


def main(modules: list[str]) -> None:
    names = [f"{module}.*" for module in modules]
    subprocess.run(["mutmut", "run", "--max-children", "1", *names], check=False)
    total: Counter[bool] = Counter()
    survivors = []
    print("| module | mutants | killed | |\n|---|---:|---:|---:|")
    for path in sorted(Path("mutants/unet_ddp").rglob("*.meta")):
        codes = json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
        module = ".".join(path.relative_to("mutants").with_suffix("").with_suffix("").parts)
        if None in codes.values() or not codes or not module.startswith(tuple(modules or [""])):
            continue
        killed = Counter(status_by_exit_code[code] in KILLED for code in codes.values())
        survivors += [
            name for name, code in codes.items() if status_by_exit_code[code] not in KILLED
        ]
        print(
            f"| {module} | {killed.total()} | {killed[True]} | {killed[True] / killed.total():.0%} |"
        )
        total += killed
    print(
        f"| **all** | {total.total()} | {total[True]} | {total[True] / max(1, total.total()):.0%} |"
    )
    print("\nsurvivors:", *survivors, sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1:])
