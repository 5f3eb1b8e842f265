"""Parse the values of flags into the Python values that verbs take."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import click

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGTP", 1)
    for suffix, base in (("", 1000), ("B", 1000), ("iB", 1024))
}
_NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_UNITS_BY_LOWER = {unit.lower(): size for unit, size in _UNITS.items()}


class _Type(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A value that `parse` understands; a ValueError says what was expected."""

    expected = ""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(
                f"invalid {self.name} {value!r}: {str(error) or f'expected {self.expected}'}.", param, ctx
            )

    def parse(self, text: str) -> Any:
        raise NotImplementedError

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return self.name.upper()


class _Number(_Type):
    """A whole number, with an optional unit: `1e4`, `100MB`, `2GiB`."""

    expected = "a number such as 1000, 1e4, 100MB or 2GiB"

    def __init__(self, name: str, minimum: int = 1) -> None:
        self.name, self.minimum = name, minimum

    def parse(self, text: str) -> int:
        match = _NUMBER.fullmatch(text)
        size = _UNITS_BY_LOWER.get(match[2].lower()) if match else None
        if match is None or size is None:
            raise ValueError
        number = float(match[1]) * size if not match[1].isdigit() else int(match[1]) * size
        if number != int(number):
            raise ValueError
        if number < self.minimum:
            raise ValueError(f"expected at least {self.minimum}")
        return int(number)


class _Seconds(_Type):
    name, expected = "seconds", "a positive number"

    def parse(self, text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            raise ValueError from None
        if not seconds > 0:
            raise ValueError
        return seconds


class _Slice(_Type):
    name, expected = "slice", "START:STOP[:STEP], such as 100:200 or ::10"
    _pattern = re.compile(r"\s*(-?\d*)\s*:\s*(-?\d*)\s*(?::\s*(-?\d*)\s*)?")

    def parse(self, text: str) -> slice:
        if re.fullmatch(r"-?\d+", text.strip()):
            number = int(text)
            return slice(number, number + 1 or None)
        match = self._pattern.fullmatch(text)
        if match is None:
            raise ValueError
        return slice(*(int(number) if number else None for number in match.groups()))


class _Names(_Type):
    name, expected = "names", "NAME[,NAME...]"

    def parse(self, text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        if not all(names):
            raise ValueError
        return names


class _Fields(_Type):
    """Fields to keep: `cls,jpg`; with new names: `img=jpg|png,cls`."""

    name, expected = "fields", "FIELD or NEW=OLD[|OLD...], separated by commas"

    def parse(self, text: str) -> Mapping[str, Sequence[str]]:
        fields: dict[str, Sequence[str]] = {}
        for item in text.split(","):
            new, equal, old = (part.strip() for part in item.partition("="))
            names = [name.strip() for name in (old if equal else new).split("|")]
            if not new or not all(names) or (not equal and len(names) > 1):
                raise ValueError
            if new in fields:
                raise ValueError(f"two fields are named {new!r}")
            fields[new] = names
        return fields


class _Pairs(_Type):
    name, expected = "pairs", "NAME=VALUE[,NAME=VALUE...]"

    def parse(self, text: str) -> dict[str, str]:
        pairs: dict[str, str] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, equal, value = (part.strip() for part in item.partition("="))
            if not (name and equal):
                raise ValueError
            pairs[name] = value
        return pairs


class _Columns(_Type):
    """Columns of a table and the names of their fields: `img=jpg,cls`."""

    name, expected = "columns", "COLUMN[=FIELD], separated by commas"

    def parse(self, text: str) -> dict[str, str]:
        columns: dict[str, str] = {}
        for item in text.split(","):
            column, equal, field = (part.strip() for part in item.partition("="))
            if not column or (equal and not field):
                raise ValueError
            if column in columns:
                raise ValueError(f"{column!r} is named twice")
            columns[column] = field or column
        return columns


class _Split(_Type):
    name, expected = "split", "NAME=SHARE[,NAME=SHARE...], such as train=0.9,val=0.1"

    def parse(self, text: str) -> dict[str, float]:
        try:
            return {name: float(share) for name, share in PAIRS.parse(text).items()}
        except ValueError:
            raise ValueError from None


class _Task(_Type):
    name, expected = "task", "I/N, such as 0/8, with I from 0 to N - 1"

    def parse(self, text: str) -> tuple[int, int]:
        index, _, count = text.partition("/")
        if not (index.isdigit() and count.isdigit() and int(index) < int(count)):
            raise ValueError
        return int(index), int(count)


class _Splitter(_Type):
    name, expected = "split-name", "first-dot or last-dot"

    def parse(self, text: str) -> Any:
        import tarmac

        if text not in ("first-dot", "last-dot"):
            raise ValueError
        return getattr(tarmac, text.replace("-", "_"))

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "[first-dot|last-dot]"


class Settings(_Type):
    """Fields of an options class of tarmac, as `NAME=VALUE,...`."""

    name, expected = "settings", "NAME=VALUE[,NAME=VALUE...]"

    def __init__(self, class_name: str) -> None:
        self._class_name = class_name

    def parse(self, text: str) -> Any:
        import dataclasses
        import typing

        import tarmac

        options_class = getattr(tarmac, self._class_name)
        hints = typing.get_type_hints(options_class)
        known = {field.name for field in dataclasses.fields(options_class)}
        values = {}
        for name, value in PAIRS.parse(text).items():
            if name not in known:
                raise ValueError(f"unknown setting {name!r}, expected one of {', '.join(sorted(known))}")
            values[name] = _setting(name, value, str(hints[name]))
        return options_class(**values)


def _setting(name: str, value: str, hint: str) -> Any:
    if "bool" in hint:
        if value.lower() not in ("true", "false"):
            raise ValueError(f"{name}: expected true or false, got {value!r}")
        return value.lower() == "true"
    if "int" in hint and "float" not in hint:
        return _Number("number", 0).parse(value)
    if "float" in hint:
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"{name}: expected a number, got {value!r}") from None
    return value


COUNT, SIZE, NUMBER, SECONDS = _Number("count"), _Number("size"), _Number("number", 0), _Seconds()
SLICE, NAMES, FIELDS, PAIRS, COLUMNS = _Slice(), _Names(), _Fields(), _Pairs(), _Columns()
SPLIT, SPLITTER, TASK = _Split(), _Splitter(), _Task()


def manifest_url(url: str) -> str:
    """Return the URL of a manifest; raise if it would run a command."""
    if url.lower().startswith("pipe:"):
        raise click.UsageError(f"a manifest is a file or an object, not a command: {url!r}.")
    return url
