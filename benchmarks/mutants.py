"""Mutation testing, module by module: how many small changes of the code its tests notice.

    pip install -e ".[mutation]"
    python -m benchmarks.mutants unet_ddp.metrics unet_ddp.data.splits
    python -m benchmarks.mutants --sample 40

Without a module it takes all of them, hours on two cores, and continues what was interrupted; a
sample takes so many mutants of each module, drawn by --seed. `mutmut show NAME` shows a survivor's
change; [tool.mutmut] in pyproject.toml says what is left out.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.timing import new_parser, print_table

KILLED = {"killed", "timeout", "segfault", "suspicious"}


def read_codes(modules: Sequence[str]) -> Iterator[tuple[str, dict[str, int | None]]]:
    """Yield each mutated module with the exit codes of its mutants; None for those not tried."""
    for path in sorted(Path("mutants/unet_ddp").rglob("*.meta")):
        module = ".".join(path.relative_to("mutants").with_suffix("").with_suffix("").parts)
        codes = json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
        if codes and module.startswith(tuple(modules or [""])):
            yield module, codes


def draw_sample(modules: Sequence[str], count: int, seed: int) -> list[str]:
    """Return the names of `count` mutants of each module; all of a smaller one."""
    subprocess.run(["mutmut", "run", "unet_ddp.__init__.*"], check=False)  # writes all mutants
    return [
        name
        for module, codes in read_codes(modules)
        for name in random.Random(f"{seed} {module}").sample(sorted(codes), min(count, len(codes)))
    ]


def main() -> None:
    """Run the mutants that the command line names, and print what was killed."""
    parser = new_parser(__doc__)
    parser.add_argument("modules", nargs="*", help="names of modules or packages (default: all)")
    parser.add_argument("--sample", type=int, help="mutants of each module (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--children", type=int, default=2, help="processes")
    args = parser.parse_args()
    from mutmut.stats import status_by_exit_code  # of the extra `mutation`

    names = [f"{module}*" for module in args.modules]
    if args.sample:
        names = draw_sample(args.modules, args.sample, args.seed)
    subprocess.run(["mutmut", "run", "--max-children", str(args.children), *names], check=False)
    total: Counter[bool] = Counter()
    survivors, rows = [], []
    for module, codes in read_codes(args.modules):
        tried = {name: code for name, code in codes.items() if code is not None}
        killed = Counter(status_by_exit_code[code] in KILLED for code in tried.values())
        survivors += [n for n, code in tried.items() if status_by_exit_code[code] not in KILLED]
        if tried:
            rows.append([module, len(codes), len(tried), killed[True], share(killed)])
            total += killed
    rows.append(["**all**", "", total.total(), total[True], share(total)])
    print_table(["module", "mutants", "tried", "killed", ""], rows)
    print("\nsurvivors:", *survivors, sep="\n  ")


def share(killed: Counter[bool]) -> str:
    """Return the share of the killed ones."""
    return f"{killed[True] / max(1, killed.total()):.0%}"


if __name__ == "__main__":
    main()
