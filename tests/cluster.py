"""A Slurm of one machine for tests: programs named srun and scontrol, and the lines that they leave."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIMIT = 300  # seconds for one start of a job
SBATCH = ROOT / "deploy" / "slurm.sbatch"
NODES = 2


def srun(argv: list[str]) -> int:
    """Run a program once for each node, pass SIGUSR1 on, and end all as soon as one fails."""
    program = argv[next(i for i, word in enumerate(argv) if not word.startswith("--")) :]
    running: list[int] = []

    def send(number: int, frame: object = None) -> None:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    signal.signal(signal.SIGUSR1, send)
    for node in range(NODES):
        place = {"SLURM_PROCID": str(node), "BATCH_SHELL": str(os.getppid())}
        running.append(os.posix_spawnp(program[0], program, {**os.environ, **place}))
    failure = 0
    while running:
        process, status = os.wait()
        running.remove(process)
        failure = failure or os.waitstatus_to_exitcode(status) % 256
        if failure and "--kill-on-bad-exit=1" in argv:
            send(signal.SIGKILL)
    return failure


def scontrol(argv: list[str]) -> int:
    """Print the nodes' names, or note down that a job is to be queued again."""
    if argv[:2] == ["show", "hostnames"]:
        print("\n".join(["localhost"] * NODES))
    else:
        Path("requeued").write_text(" ".join(argv), encoding="utf-8")
    return 0


def free_job() -> int:
    """Return a job's number whose port is free."""
    for job in range(os.getpid() % 10000, 10000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", 20000 + job)):
                return job
    raise AssertionError("no port is free")


def install(folder: Path, **programs: str) -> None:
    """Put the programs of a cluster into `folder`/bin, and other shell scripts by their names."""
    (folder / "bin").mkdir()
    for name in ("srun", "scontrol"):
        programs[name] = f'exec "{sys.executable}" -m tests.cluster {name} "$@"'
    for name, text in programs.items():
        path = folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        path.chmod(0o755)


def sbatch(folder: Path, job: int, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run the batch script in `folder`, as Slurm starts the job or starts it again."""
    (folder / "requeued").unlink(missing_ok=True)
    python = Path(sys.executable).parent
    return subprocess.run(
        ["bash", str(SBATCH), *argv],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{folder / 'bin'}:{python}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_NAME": "cells",
            "SLURM_JOB_NODELIST": "node[0-1]",
            "SLURM_JOB_NUM_NODES": str(NODES),
            "SLURM_CPUS_PER_TASK": "1",
        },
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


if __name__ == "__main__":
    sys.exit({"srun": srun, "scontrol": scontrol}[sys.argv[1]](sys.argv[2:]))
