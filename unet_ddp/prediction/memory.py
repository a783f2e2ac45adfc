"""How much memory there is."""

from __future__ import annotations

from pathlib import Path

import torch

_UNKNOWN = 4 << 30  # bytes, where the system does not say


def free_memory(device: torch.device) -> int:
    """Bytes that `device` can still give."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return _told("MemAvailable")


def all_memory(device: torch.device) -> int:
    """Bytes that `device` has, whatever is in use."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return _told("MemTotal")


def _told(what: str) -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return _UNKNOWN
    found = [int(line.split()[1]) << 10 for line in lines if line.startswith(what)]
    return found[0] if found else _UNKNOWN
