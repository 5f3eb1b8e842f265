"""The device that this process computes on: an engine assigns one to each of its workers.

A device is the text that libraries such as torch accept: `cpu`, `cuda:0`. It is passed on as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tarmac import environment
from tarmac.errors import UsageError

AUTO = "auto"
_current: list[str] = []  # state of this process


def current_device() -> str:
    """Return the device of this process: what its engine assigned, else `TARMAC_DEVICE`, else "cpu"."""
    return _current[-1] if _current else environment.device() or "cpu"


def use_device(device: str) -> None:
    """Set the device of this process."""
    _current[:] = [device]


@contextlib.contextmanager
def using_device(device: str) -> Iterator[None]:
    """Set the device of this process for a while."""
    before = _current[:]
    use_device(device)
    try:
        yield
    finally:
        _current[:] = before


def devices(spec: str | None) -> list[str]:
    """Return the devices of a list such as `cuda:0,cuda:1`.

    "auto" and None are `TARMAC_DEVICE`, else the GPUs that this process may use, else the CPU.
    """
    if spec not in (None, AUTO):
        assert spec is not None
        names = [name.strip() for name in spec.split(",")]
        if not all(names):
            raise UsageError(f"expected auto or devices such as cuda:0,cuda:1, got {spec!r}.", field="device")
        return names
    if chosen := environment.device():
        return [chosen]
    return [f"cuda:{number}" for number in range(environment.visible_gpus())] or ["cpu"]


def assign_device(spec: str | None, slot: int) -> str:
    """Return the device of one worker; `slot` is its number. Workers share devices if there are more workers."""
    names = devices(spec)
    return names[slot % len(names)]
