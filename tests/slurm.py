"""Slurm on this machine for a test: munged, slurmctld and a slurmd for each of two nodes, in a temporary folder."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.hosts import wait_for
from tests.ranks import ROOT

HOST = socket.gethostname().partition(".")[0]
NODES = (HOST, f"{HOST}-second")  # the first has the rendezvous, so its name must have an address
_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
IS_INSTALLED = all(shutil.which(name, path=_PATH) for name in ("munged", "slurmctld", "slurmd"))

# Two CPUs and one device named gpu on each node, whatever the machine has.
_SETTINGS = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
GresTypes=gpu
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 Gres=gpu:1
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 Gres=gpu:1
PartitionName=all Nodes=ALL Default=YES
"""


class Slurm:
    """Slurm with two nodes, `NODES`; `close` ends it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # a socket's path is short
        self.folder.chmod(0o755)  # as munge asks
        self.environment = {
            **os.environ,
            "PATH": _PATH,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "SLURM_CONF": str(self.folder / "slurm.conf"),
        }
        self._started: list[subprocess.Popen[bytes]] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        folder = self.folder
        (folder / "state").mkdir()
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o600)
        with socket.socket() as one, socket.socket() as two, socket.socket() as three:
            for each in (one, two, three):
                each.bind(("127.0.0.1", 0))
            ports = [each.getsockname()[1] for each in (one, two, three)]
        text = _SETTINGS.format(
            folder=folder, host=HOST, user=getpass.getuser(), ports=ports, nodes=NODES
        )
        (folder / "slurm.conf").write_text(text)
        (folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
        names = {"key-file": "key", "pid-file": "munge.pid", "log-file": "munge.log"}
        names |= {"seed-file": "munge.seed", "socket": "munge.socket"}
        places = [f"--{flag}={folder / name}" for flag, name in names.items()]
        self._daemon("munged", "--foreground", "--force", *places)
        wait_for((folder / "munge.socket").exists, folder / "munged.log", 20)
        self._daemon("slurmctld", "-D")
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node)
        wait_for(self._is_idle, folder / "slurmctld.log", 60)

    def _daemon(self, *argv: str) -> None:
        with (self.folder / f"{argv[0]}.log").open("ab") as log:
            self._started.append(
                subprocess.Popen(argv, env=self.environment, stdout=log, stderr=log)
            )

    def _is_idle(self) -> bool:
        ended = [process.args for process in self._started if process.poll() is not None]
        assert not ended, (ended, [path.read_text() for path in self.folder.glob("*.log")])
        return self.ask("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(NODES)

    def ask(self, *argv: str, folder: Path | None = None) -> str:
        """Return what one of Slurm's programs prints, run in `folder`."""
        done = subprocess.run(
            argv, cwd=folder, env=self.environment, capture_output=True, text=True, check=False
        )
        return done.stdout

    def has_jobs(self) -> bool:
        """Return whether a job runs or waits."""
        return bool(self.ask("squeue", "-h").strip())

    def close(self) -> None:
        """End jobs and daemons, and delete their folder."""
        try:
            if len(self._started) > 1 and self._started[1].poll() is None:
                self.ask("scancel", "--user", getpass.getuser())
                wait_for(lambda: not self.has_jobs(), self.folder / "slurmctld.log", 60)
        finally:
            for process in reversed(self._started):
                process.terminate()
                process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)
