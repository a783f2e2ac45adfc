"""Two hosts on one machine: network namespaces joined by a cable that can be cut (Linux, root)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.ranks import TRAIN, hear_interrupts

PORT = 29400
IS_POSSIBLE = sys.platform == "linux" and os.geteuid() == 0 and shutil.which("ip") is not None
# As hosts have them: a name, and process ids that mean nothing to the other.
_ALONE = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
_NAMED = 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"'


class Hosts:
    """Hosts 1 and 2 at 10.77.0.1 and 10.77.0.2; their names have this process's id."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        self.logs: list[IO[bytes]] = []
        for host in (1, 2):
            _ip("netns", "add", self.name(host))
        ends = [("netns", self.name(1)), ("peer", "name", "eth2"), ("netns", self.name(2))]
        _ip("link", "add", "eth1", "type", "veth", *ends[1], *ends[2], namespace=self.name(1))
        for host in (1, 2):
            inside = self.name(host)
            _ip("addr", "add", f"{self.address(host)}/24", "dev", f"eth{host}", namespace=inside)
            _ip("link", "set", "lo", "up", namespace=inside)
            self.plug(host)

    @staticmethod
    def name(host: int) -> str:
        return f"unet-{os.getpid()}-{host}"

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host}"

    def plug(self, host: int, *, to: str = "up") -> None:
        """Plug the host's cable in, or pull it out (`to` is "down")."""
        _ip("link", "set", f"eth{host}", to, namespace=self.name(host))

    def start(
        self, host: int, folder: Path, *argv: str, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start `python ARGV` on a host, in `folder`; its output is added to FOLDER/log.txt."""
        folder.mkdir(parents=True, exist_ok=True)
        log = (folder / "log.txt").open("ab")
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name(host), *_ALONE, "sh", "-c", _NAMED, self.name(host),
             sys.executable, *argv],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": f"eth{host}", **environment},
            stdout=log, stderr=log, start_new_session=True, preexec_fn=hear_interrupts,
        )  # fmt: skip
        self.started.append(process)
        self.logs.append(log)
        return process

    def torchrun(
        self,
        host: int,
        folder: Path,
        *argv: str,
        nodes: str = "2",
        conf: str = "read_timeout=60",
        program: str = TRAIN,
        **environment: str,
    ) -> subprocess.Popen[bytes]:
        """Start torchrun on a host: its own flags, "--", and those of the program."""
        split = argv.index("--")
        return self.start(
            host, folder, "-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc_per_node=1",
            "--rdzv-backend=c10d", f"--rdzv-endpoint={self.address(1)}:{PORT}",
            f"--rdzv-conf=is_host={2 - host},{conf}", f"--local-addr={self.address(host)}",
            *argv[:split], program, *argv[split + 1 :], **environment,
        )  # fmt: skip

    def workers(self, host: int) -> list[int]:
        """Return the processes that torchrun has started on a host."""
        found = []
        for process in _ip("netns", "pids", self.name(host)).split():
            with suppress(OSError):  # it has ended
                argv = Path(f"/proc/{process}/cmdline").read_bytes()
                if b"-u\0" in argv and b"torch.distributed.run" not in argv:
                    found.append(int(process))
        return found

    def kill(self, host: int) -> None:
        """Kill all processes of a host at once, as a power cut does."""
        for process in _ip("netns", "pids", self.name(host)).split():
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)

    def end(self) -> None:
        """End all that was started."""
        for host in (1, 2):
            self.kill(host)
        for process in self.started:
            process.wait()
        for log in self.logs:
            log.close()
        self.started, self.logs = [], []

    def close(self) -> None:
        self.end()
        for host in (1, 2):
            _ip("netns", "delete", self.name(host))


def wait_for(condition: Callable[[], bool], log: Path, seconds: float = 180) -> None:
    """Wait until `condition()` is true; AssertionError with the log's end if it does not become so."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            text = log.read_text()[-4000:] if log.is_file() else "no output"
            raise AssertionError(f"{seconds} s are over: {text}")
        time.sleep(0.05)


def _ip(*argv: str, namespace: str | None = None) -> str:
    inside = ["-n", namespace] if namespace else []
    done = subprocess.run(["ip", *inside, *argv], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(argv)}: {done.stderr}")
    return done.stdout
