"""Give single objects a length, which the others of their class do not have.

Frameworks ask `hasattr(dataset, "__len__")` or `isinstance(dataset, Sized)`, so only a class can answer: `add_length`
moves an object to a subclass with `__len__`, which has the same name and can be pickled.
"""

from __future__ import annotations

from typing import Any


def add_length(obj: Any) -> None:
    """Make `len(obj)` return `obj.length`."""
    _set_class(obj, _with_length(type(obj)))


def _with_length(cls: type[Any]) -> type[Any]:
    if hasattr(cls, "_length_added"):
        return cls
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    methods = {"__len__": _length, "__reduce_ex__": _reduce, "_length_added": cls}
    return type(cls.__name__, (cls,), {**names, **methods})


def _length(self: Any) -> int:
    length: int = self.length
    return length


def _reduce(self: Any, _protocol: Any) -> tuple[Any, ...]:
    return _restore, (self._length_added,), self.__getstate__()


def _restore(cls: type[Any]) -> Any:
    return object.__new__(_with_length(cls))


# Datasets have a `__class__` of their own (see `StreamSource`).
_set_class = object.__dict__["__class__"].__set__
