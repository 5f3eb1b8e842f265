"""The peak memory of this process, as reported by the system.

`ru_maxrss` is of no use for that: it begins with the peak of the process that started this one.
"""

from __future__ import annotations

from pathlib import Path


def peak() -> int:
    """Return the peak resident memory in bytes, since the start or the last `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def reset_peak() -> int:
    """Reset the peak to the current memory, and return it."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()
