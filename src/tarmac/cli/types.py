"""Parse the values of flags into the Python values that verbs take."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click

from tarmac.display import display_url
from tarmac.errors import UsageError
from tarmac.limits import parse_number

_SLICE = re.compile(r"\s*(-?\d*)\s*:\s*(-?\d*)\s*(?::\s*(-?\d*)\s*)?")


class _InvalidError(ValueError):
    """Raised with a specific reason."""


class _Type(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A flag value, parsed by a function that raises ValueError for invalid text."""

    def __init__(self, name: str, expected: str, parse: Callable[[str], Any], metavar: str = "") -> None:
        self.name, self._expected, self._parse = name, expected, parse
        self._metavar = metavar or name.upper()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            reason = f"expected {self._expected}"
            if isinstance(error, _InvalidError):
                reason = str(error)
            elif isinstance(error, UsageError):  # of an options class
                reason = f"{error.field}: {error.what}" if error.field else error.what
            self.fail(f"invalid {self.name} {display_url(value)!r}: {reason.rstrip('.')}.", param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return self._metavar


def _number(text: str, minimum: int = 0) -> int:
    """Parse an integer, with an optional unit."""
    number = parse_number(text)
    if number < minimum:
        raise _InvalidError(f"expected at least {minimum}")
    return number


def _sample(text: str) -> float | int:
    """Parse a share, which has a point, or a number of rows."""
    return float(text) if "." in text and not text.endswith("B") else _number(text, minimum=1)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise ValueError
    return seconds


def _slice(text: str) -> slice:
    if re.fullmatch(r"-?\d+", text.strip()):
        number = int(text)
        one = f"{number}:{number + 1 or ''}"
        raise _InvalidError(
            f"expected a slice, got a number. Try: {one} for this sample, :{number} for those before it"
        )
    match = _SLICE.fullmatch(text)
    if match is None:
        raise ValueError
    return slice(*(int(number) if number else None for number in match.groups()))


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError
    return names


def _renamed(text: str) -> Iterator[tuple[str, str]]:
    """Yield the sides of `a=b,c`; without an equals sign they are the same."""
    for item in text.split(","):
        left, equal, right = (part.strip() for part in item.partition("="))
        if not left or (equal and not right):
            raise ValueError
        yield left, right or left


def _fields(text: str) -> Mapping[str, Sequence[str]]:
    """Parse fields to keep: `cls,jpg|png`; with new names: `img=jpg|png,cls`."""
    fields: dict[str, Sequence[str]] = {}
    for new, old in _renamed(text):
        names = [name.strip() for name in old.split("|")]
        if not all(names):
            raise ValueError
        if new in fields:
            raise _InvalidError(f"two fields are named {new!r}")
        fields[new] = names
    return fields


def _columns(text: str) -> dict[str, str]:
    """Parse columns of a table and the names of their fields: `img=jpg,cls`."""
    columns: dict[str, str] = {}
    for column, field in _renamed(text):
        if column in columns:
            raise _InvalidError(f"{column!r} is given twice")
        columns[column] = field
    return columns


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equal, value = (part.strip() for part in item.partition("="))
        if not (name and equal):
            raise ValueError
        pairs[name] = value
    return pairs


def _splitter(text: str) -> Any:
    import tarmac

    name = text.replace("-", "_")
    if name not in ("first_dot", "last_dot"):
        raise ValueError
    return getattr(tarmac, name)


def _settings(class_name: str, text: str) -> Any:
    """Parse fields of an options class of tarmac, as `NAME=VALUE,...`."""
    import dataclasses
    import typing

    import tarmac

    options_class = getattr(tarmac, class_name)
    hints = typing.get_type_hints(options_class)
    known = {field.name for field in dataclasses.fields(options_class)}
    values = {}
    for name, value in _pairs(text).items():
        if name not in known:
            raise _InvalidError(f"unknown setting {name!r}, expected one of {', '.join(sorted(known))}")
        values[name] = _setting(name, value, str(hints[name]))
    return options_class(**values)


def _setting(name: str, value: str, hint: str) -> Any:
    if "bool" in hint:
        if value.lower() not in ("true", "false"):
            raise _InvalidError(f"{name}: expected true or false, got {value!r}")
        return value.lower() == "true"
    try:
        if "float" in hint:
            return float(value)
        return _number(value) if "int" in hint else value
    except ValueError:
        raise _InvalidError(f"{name}: expected a number, got {value!r}") from None


_A_NUMBER = "a number such as 1000, 1e4, 100MB or 2GiB"
COUNT = _Type("count", _A_NUMBER, partial(_number, minimum=1))
SIZE = _Type("size", _A_NUMBER, partial(_number, minimum=1))
NUMBER = _Type("number", _A_NUMBER, _number)
SAMPLE = _Type("sample", "a share such as 0.1, or a number such as 1000", _sample)
SECONDS = _Type("seconds", "a positive number", _seconds)
SLICE = _Type("slice", "START:STOP[:STEP], such as 100:200 or ::10", _slice)
NAMES = _Type("names", "NAME[,NAME...]", _names)
FIELDS = _Type("fields", "FIELD[|FIELD...] or NEW=OLD[|OLD...], separated by commas", _fields)
COLUMNS = _Type("columns", "COLUMN[=FIELD], separated by commas", _columns)
PAIRS = _Type("pairs", "NAME=VALUE[,NAME=VALUE...]", _pairs)
SPLIT = _Type(
    "split",
    "NAME=SHARE[,NAME=SHARE...], such as train=0.9,val=0.1",
    lambda text: {name: float(share) for name, share in _pairs(text).items()},
)
SPLITTER = _Type("split-name", "first-dot or last-dot", _splitter, "[first-dot|last-dot]")


def settings(class_name: str) -> _Type:
    """Return the type of an options class of tarmac, given as `NAME=VALUE,...`."""
    return _Type("settings", "NAME=VALUE[,NAME=VALUE...]", partial(_settings, class_name))


def manifest_url(url: str) -> str:
    """Return the URL of a manifest; raise if it would run a command."""
    if url.lower().startswith("pipe:"):
        raise click.UsageError(f"a manifest is a file or an object, not a command: {display_url(url)!r}.")
    return url
