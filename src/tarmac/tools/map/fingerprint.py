"""Tell two functions of the same source apart: by their arguments, the values that they captured, and their code.

A job that continues with `partial(resize, 256)` must not complete what `partial(resize, 224)` began. Only plain values
count, because only those are the same in every process: numbers, text, bytes, containers of them, and functions.
"""

from __future__ import annotations

import dis
import enum
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import xxhash

_SCALARS = (type(None), bool, int, float, complex, str, bytes, os.PathLike)
_DEEPEST = 8
"""Values in values that are looked at."""


def arguments_digest(function: Any) -> str:
    """Return a hash of what a function was given besides samples: arguments and captured values."""
    return xxhash.xxh3_64_hexdigest("\n".join(_given(function, 0)).encode("utf-8", "surrogatepass"))


def code_digest(function: Any) -> str:
    """Return a hash of the code of a function that no file defines; empty if it has none."""
    code = getattr(function, "__code__", None)
    return "" if code is None else xxhash.xxh3_64_hexdigest(_code(code).encode("utf-8", "surrogatepass"))


def _given(function: Any, depth: int) -> Iterator[str]:
    """Yield the values that a callable uses besides its source, each with its name."""
    if depth > _DEEPEST:
        return
    if isinstance(function, partial):
        yield f"args {_value(function.args, depth)}"
        yield f"keywords {_value(function.keywords, depth)}"
        yield from _given(function.func, depth + 1)
    elif isinstance(function, MethodType):
        yield from _given(function.__self__, depth + 1)
        yield from _given(function.__func__, depth + 1)
    elif isinstance(function, FunctionType):
        named = (inspect.unwrap(function).__code__, function.__code__)
        stored = {name for code in named for name in _stored(code)}
        for name, value in _captured(function):
            if name not in stored and _is_fixed(value) and (text := _value(value, depth)):
                yield f"{name} {text}"
    elif not isinstance(function, type) and getattr(function, "version", None) is None:
        for name, value in _attributes(function):
            if _is_fixed(value) and (text := _value(value, depth)):
                yield f"{name} {text}"


def _captured(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the values of enclosing functions by name; of a function without a file also defaults and constants.

    Those of a file are in its source, where they may be computed: the time, the number of cores.
    """
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    if _has_file(function):
        return
    yield "defaults", function.__defaults__
    yield "keyword defaults", function.__kwdefaults__
    for name in sorted(_names(function.__code__)):
        value = function.__globals__.get(name)
        if value is not None and _is_constant(value):
            yield name, value


def _has_file(function: FunctionType) -> bool:
    path = getattr(sys.modules.get(function.__module__ or ""), "__file__", None)
    return path is not None and os.path.isfile(path)


def _is_fixed(value: Any) -> bool:
    """Return whether a value that a function holds is a setting. Lists and sets are often what it has collected."""
    if isinstance(value, Mapping):
        return all(map(_is_fixed, value.values()))
    return _is_constant(value) or isinstance(value, FunctionType | MethodType | partial)


def _is_constant(value: Any) -> bool:
    """Return whether a value is plain and cannot be changed in place: lists may be filled by the function."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_constant, value))
    return isinstance(value, _SCALARS)


def _attributes(instance: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a constructor that an object has kept under their names; others may be its state."""
    try:
        names = list(inspect.signature(type(instance)).parameters)
    except (ValueError, TypeError):
        return
    for name in names:
        for attribute in (name, f"_{name}"):
            values = getattr(instance, "__dict__", {})
            if attribute in values:
                yield name, values[attribute]
                break


def _value(value: Any, depth: int) -> str:
    """Return a text that is equal for equal plain values; empty for what may differ between processes."""
    if depth > _DEEPEST:
        return ""
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, os.PathLike):
        return repr(os.fspath(value))
    if isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, Mapping):
        items = ((_value(key, depth + 1), _value(each, depth + 1)) for key, each in value.items())
        return f"{{{', '.join(f'{key}: {each}' for key, each in sorted(items))}}}"
    if isinstance(value, set | frozenset):
        return f"set({', '.join(sorted(_value(each, depth + 1) for each in value))})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(each, depth + 1) for each in value)}]"
    if isinstance(value, FunctionType | MethodType | partial):
        code = getattr(value, "__code__", None)
        own = "" if code is None else code_digest(value)
        return f"function({own}; {'; '.join(_given(value, depth + 1))})"
    return ""


def _code(code: CodeType) -> str:
    """Return a text that is equal for equal code: the usual one of a nested function has its address."""
    constants = [_code(each) if isinstance(each, CodeType) else _value(each, 0) for each in code.co_consts]
    return f"{code.co_code!r} {constants} {code.co_names}"


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _nested(each)


def _names(code: CodeType) -> set[str]:
    return {
        str(each.argval)
        for part in _nested(code)
        for each in dis.get_instructions(part)
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }


def _stored(code: CodeType) -> set[str]:
    """Return the names that a function assigns outside of itself, such as counters."""
    return {
        str(each.argval)
        for part in _nested(code)
        for each in dis.get_instructions(part)
        if each.opname in ("STORE_GLOBAL", "STORE_DEREF")
    }
