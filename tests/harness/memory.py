"""The peak of this process's memory, as the system counts it.

`ru_maxrss` is of no use for that: it begins with the peak of the process that started this one.
"""

from __future__ import annotations

from pathlib import Path


def peak() -> int:
    """The most memory this process has had resident, in bytes, since it began or since `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def reset_peak() -> int:
    """Make the memory in use now the peak, and return it."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()
