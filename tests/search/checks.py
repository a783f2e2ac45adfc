"""The checks of the files in a run's folder."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.search.program import Saved, Start, expect, read, read_metrics


@dataclass
class Run:
    """What is known of the run in a folder."""

    position: tuple[int, int] | None = None
    """The newest that a save has acknowledged."""
    models: dict[int, str] = field(default_factory=dict)
    """Digests of the network by the epochs done, in the present history."""
    spoiled: dict[str, bytes] = field(default_factory=dict)
    """Files that the user has spoiled, as they are since."""
    has_lost_rows: bool = False
    has_lost_best: bool = False
    """The user has spoiled metrics.csv."""
    has_patience: bool = False
    """It may end before its last epoch."""

    def follow(self, saved: Saved) -> None:
        """Go to the state that a last.pt has: what was later is of another history."""
        self.position, (epoch, step) = saved.position, saved.position
        self.models = {k: model for k, model in self.models.items() if k <= epoch}
        if step == 0:
            self.models[epoch] = saved.model


def check_run(run: Run, folder: Path, own: set[Path], start: Start) -> None:
    """Check the files of a run; `own` are the user's."""
    settled = not start.killed and start.status not in (1, 2)
    saves = {path.name: read(path) for path in folder.glob("[!.]*.pt") if path not in own}
    is_aside = (folder / ".replaced").is_dir() and not (folder / "last.pt").exists()
    if is_aside:  # of a start that was killed: the next one moves it back
        saves |= {path.name: read(path) for path in folder.glob(".replaced/*.pt")}
    found = {n: s for n, s in saves.items() if s and s.position[0] >= 0 and n not in run.spoiled}
    newest = max((s.position for s in found.values()), default=None)
    if run.position is not None:
        expect(newest is not None, f"no checkpoint, after a save at {run.position}")
        expect(newest >= run.position, f"newest {newest}, after a save at {run.position}")
    last = found.get("last.pt")
    if is_aside:
        expect(not settled, "ended with the run before set aside")
        return
    if last is None:
        is_spoiled = "last.pt" in run.spoiled  # a run that was over writes it no more
        expect(not settled or is_spoiled or run.position is None, "ended without last.pt")
        return
    if settled:
        _check_end(run, start, last)
    if not run.has_lost_rows and folder / "metrics.csv" not in own:
        _check_rows(folder, last, settled)
    if "best.pt" not in run.spoiled and folder / "best.pt" not in own:
        _check_best(run, folder, last, saves.get("best.pt"), settled)
    for file, saved in found.items():
        if number := re.fullmatch(r"epoch_(\d{4})\.pt", file):
            epoch = int(number[1])
            expect(saved.position == (epoch, 0), f"{file} is of {saved.position}")
            known = run.models.get(epoch, saved.model)
            expect(saved.model == known, f"{file} is of another history")
            ahead = 0 if settled else 1
            expect(epoch <= last.position[0] + ahead or epoch in run.models,
                   f"{file} is later than last.pt, which is at {last.position}")  # fmt: skip


def _check_end(run: Run, start: Start, last: Saved) -> None:
    flags = dict(flag.split("=") for flag in start.flags if "=" in flag)
    epochs, limit = int(flags.get("--epochs", 0)), flags.get("--stop-after", "99epochs")
    if start.status == 0 and epochs:
        least = min(int(limit.removesuffix("epochs")), epochs)
        expect(last.position >= (least, 0) or run.has_patience or "epochs" not in limit,
               f"ended at {last.position}")  # fmt: skip
    if stopped := re.search(r"after step (\d+); continue with --resume", start.out):
        per_epoch = int(re.search(r"epochs? of (\d+) steps?", start.out)[1])  # type: ignore[index]
        done = last.position[0] * per_epoch + last.position[1]
        expect(done == int(stopped[1]), f"stopped at {stopped[1]}, last.pt at {done}")


def _check_rows(folder: Path, last: Saved, settled: bool) -> None:
    rows, torn = read_metrics(folder / "metrics.csv")
    expect(not (settled and torn), "metrics.csv does not parse")
    epochs = [row.get("epoch") for row in rows]
    most = last.position[0] + (0 if settled else 2)  # a save may have been under way, and one due
    expect(epochs == [str(k + 1) for k in range(len(epochs))], f"metrics.csv has {epochs}")
    expect(last.position[0] <= len(epochs) <= most,
           f"metrics.csv has {len(epochs)} epochs, last.pt {last.position[0]}")  # fmt: skip


def _check_best(run: Run, folder: Path, last: Saved, best: Saved | None, settled: bool) -> None:
    rows, _ = read_metrics(folder / "metrics.csv")
    scores = [float(row.get("validation_score") or "nan") for row in rows]
    # After a kill between the two the next start writes best.pt, whose network last.pt has.
    is_due = not settled and last.position == (last.best[1] + 1, 0)
    if best is None:
        is_none = last.best[0] < 0 or is_due
        expect(is_none, f"no best.pt, last.pt names epoch {last.best[1] + 1}")
        return
    top = max(
        zip(scores, range(len(scores)), strict=True), default=(float("nan"), -1)
    )  # the last of equals
    agrees = best.best == last.best
    is_top = (
        run.has_lost_rows
        or run.has_lost_best
        or (abs(best.best[0] - top[0]) < 1e-9 and best.best[1] == top[1])
    )
    expect(agrees or not settled, f"best.pt says {best.best}, last.pt {last.best}")
    expect(is_top or not settled, f"best.pt says {best.best}, metrics.csv {top}")
    is_next = best.best[1] == last.position[0]  # of the epoch whose last.pt was not written
    is_known = agrees or is_top or is_next or is_due
    expect(is_known, f"best.pt says {best.best}, last.pt {last.best}, rows {top}")
    known = run.models.get(best.best[1] + 1, best.model)
    expect(best.model == known, f"best.pt is not the network of epoch {best.best[1] + 1}")
