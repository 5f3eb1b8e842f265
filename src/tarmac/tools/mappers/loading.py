"""Load tokenizers and models that the user names."""

from __future__ import annotations

import os
from typing import Any

from tarmac.errors import TarmacError, UsageError
from tarmac.tools.map.fingerprint import arguments_digest
from tarmac.tools.map.functions import Function, load_function


def load_object(source: Any, field: str) -> Any:
    """Return an object, also if its class or `module:Class` is given; errors name this argument."""
    if isinstance(source, str | os.PathLike):
        try:
            source = load_function(os.fspath(source))
        except UsageError as error:
            error.field = field
            raise
    if not isinstance(source, type):
        return source
    try:
        return source()
    except TypeError as error:
        what = f"{source.__name__} cannot be called without arguments: {error}."
        raise UsageError(what, field=field) from error
    except TarmacError:
        raise
    except Exception as error:
        what = f"{source.__name__}() raised {type(error).__name__}: {error}."
        raise UsageError(what, field=field) from error


def set_up(model: Any, device: str, field: str) -> None:
    """Call `setup` of a model, if it has one; an error says which argument and which device it is about."""
    setup = getattr(model, "setup", None)
    if not callable(setup):
        return
    try:
        setup(device)
    except TarmacError:
        raise
    except Exception as error:
        what = f"`setup` on the device {device!r} raised {type(error).__name__}: {error}."
        raise UsageError(what, field=field) from error


def fingerprint(source: Any) -> str:
    """Return what identifies a tokenizer or mapper in a ledger: its name, its source, and what the object was given."""
    named = source if isinstance(source, str) or callable(source) else _Described(source)
    return str(Function(named).options()["py"])


class _Described:
    """Has the name, the module and the version of an object, for its fingerprint, but can be called."""

    def __init__(self, described: Any) -> None:
        kind = type(described)
        self.__module__, self.__qualname__ = kind.__module__, kind.__qualname__
        own = getattr(described, "version", None)
        self.version = f"{own} {arguments_digest(described)}"

    def __call__(self, _sample: Any) -> None:
        """Do nothing."""
