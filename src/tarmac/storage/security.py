"""Secure mode: no URL may run a command, and no redirect may lead into a private network."""

from __future__ import annotations

from tarmac import environment

_enforced = False


def enforce_security(on: bool = True) -> None:
    """Turn secure mode on for this process. The environment can turn it on, too, but never off."""
    global _enforced
    _enforced = on


def is_secure() -> bool:
    """Return whether secure mode is on."""
    return _enforced or environment.secure()
