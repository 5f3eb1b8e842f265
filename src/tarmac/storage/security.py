"""Secure mode: when on, no URL may start a command, and no redirect leads into a private network."""

from __future__ import annotations

from tarmac import environment

__all__ = ["enforce_security", "is_secure"]

_enforced = False


def enforce_security(on: bool = True) -> None:
    """Switch secure mode on for this process. The environment can switch it on too, never off."""
    global _enforced
    _enforced = on


def is_secure() -> bool:
    """Whether commands are refused."""
    return _enforced or environment.secure()
