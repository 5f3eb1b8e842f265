"""Which metadata an index takes from the samples: `jpg.width, json.caption, cls`, one column each.

A name is a field, or a field and an attribute after a dot. Fields may have dots too (`seg.png.width`), so
a name can be understood in more than one way; the longest field that a sample has decides. With
alternatives, `jpg;png.width`, the first field that a sample has decides.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Literal, NamedTuple, NoReturn

from tarmac.codecs.basic import json_loads
from tarmac.errors import BadCondition, CodecError, DecodeFailed
from tarmac.indexing.attributes import Lookup, attributes_of, is_json, read_field
from tarmac.indexing.promote import as_array
from tarmac.limits import DEFAULT_LIMITS, Limits

__all__ = ["Columns", "MetaColumn", "MetaPlan", "names_in", "parse_meta"]

_LONGEST_NAME = 1_000
_REASON = 200
_MOST_PATHS = 1_000


class _Origin(NamedTuple):
    """One way to understand a name."""

    field: str
    attribute: str
    is_size: bool
    """Whether the length of the field answers, without its bytes."""


def _origin(field: str, attribute: str) -> _Origin:
    return _Origin(field, attribute, attribute == "size" and not is_json(field))


def _makes_sense(origin: _Origin) -> bool:
    return origin.is_size or is_json(origin.field) or origin.attribute in attributes_of(origin.field)


class MetaColumn(NamedTuple):
    """A column, named as the user wrote it, and where its values may come from, the best first."""

    name: str
    origins: tuple[_Origin, ...]


@dataclass(frozen=True)
class MetaPlan:
    """The metadata columns of an index; `parse_meta` makes one from names."""

    columns: tuple[MetaColumn, ...] = ()
    on_bad: Literal["raise", "null"] = "raise"
    """What a damaged field (not an image, not JSON) gives: an error, or null."""
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        if self.on_bad not in ("raise", "null"):
            raise ValueError(f'on_bad must be "raise" or "null", got {self.on_bad!r}')

    def needs(self, field: str) -> bool:
        """Whether the bytes of a field are needed; for its size alone they are not."""
        return field in self._needed

    @cached_property
    def _needed(self) -> frozenset[str]:
        origins = (origin for column in self.columns for origin in column.origins)
        return frozenset(origin.field for origin in origins if not origin.is_size)


def parse_meta(
    names: str | Sequence[str],
    *,
    on_bad: Literal["raise", "null"] = "raise",
    limits: Limits = DEFAULT_LIMITS,
) -> MetaPlan:
    """Make a plan from names such as `"jpg.width, json.caption, cls"`, or from a list of them.

    There are width, height and channels of images; shape and dtype of npy; txt, cls and their like as
    they are; any path into JSON, `json.a.b.0`, or the JSON as a whole; and the size in bytes of any
    field but JSON, where `json.size` is what the JSON calls size.
    """
    listed = names.split(",") if isinstance(names, str) else names
    unique = dict.fromkeys(name.strip() for name in listed)
    return MetaPlan(tuple(_column(name) for name in unique if name), on_bad, limits)


def _column(name: str) -> MetaColumn:
    parts = [part.strip() for part in name.split(";")]
    if len(name) > _LONGEST_NAME or any(not part or part != part.strip(".") for part in parts):
        raise _senseless(name, name, "a name is a field, or a field, a dot and an attribute")
    *fields, last = parts
    origins = [origin for origin in _readings(last) if _makes_sense(origin)]
    if not origins:
        raise _senseless(name, last, _what_there_is(last))
    # Which dot of the last alternative ends its field is open; that of the shortest field is likely.
    others = [_origin(field, origins[-1].attribute) for field in fields]
    for other in others:
        if not _makes_sense(other):
            raise _senseless(name, f"{other.field}.{other.attribute}".strip("."), _what_there_is(other.field))
    return MetaColumn(name, (*others, *origins))


def _readings(name: str) -> Iterator[_Origin]:
    """Every way to split a name into field and attribute, the longest field first."""
    yield _origin(name, "")
    dot = name.rfind(".")
    while dot > 0:
        yield _origin(name[:dot], name[dot + 1 :])
        dot = name.rfind(".", 0, dot)


def _what_there_is(name: str) -> str:
    """Say what could have been asked of the field that the user probably means."""
    for field in sorted(origin.field for origin in _readings(name)):
        if there := attributes_of(field):
            names = [f"{field}.{attribute}".strip(".") for attribute in (*there, "size")]
            near = get_close_matches(name, names, 1) if name != field else []
            guess = f"did you mean {near[0]}? " if near else ""
            return f"{guess}there is {', '.join(names)}"
    return f"of this kind of field there is only {name.partition('.')[0]}.size"


def names_in(sample: Mapping[str, bytes]) -> list[str]:
    """Names that a plan could have for this sample: its fields with their attributes, and paths into JSON."""
    names: list[str] = []
    for field, data in sample.items():
        if field[:2] == "__":
            continue
        names += [f"{field}.{attribute}".strip(".") for attribute in attributes_of(field)]
        names.append(field if is_json(field) else f"{field}.size")
        if is_json(field):
            with contextlib.suppress(Exception):  # damaged JSON has no names
                names += itertools.islice(_paths(json_loads(bytes(data)), field), _MOST_PATHS)
    return names


def _paths(value: Any, before: str) -> Iterator[str]:
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield f"{before}.{name}"
        yield from _paths(inner, f"{before}.{name}")


def _senseless(name: str, part: str, why: str) -> BadCondition:
    of = "" if name == part else f', of "{name}",'
    return BadCondition(
        f'"{part[:100]}"{of} is no metadata; {why}.', hint="--meta jpg.width,json.caption,txt,cls,mp4.size"
    )


class Columns:
    """Gathers the metadata of a shard, sample by sample."""

    def __init__(self, plan: MetaPlan) -> None:
        self.plan = plan
        self.bad: Counter[str] = Counter()
        """Nulls put in place of damaged fields, by column."""
        self._values: dict[str, list[Any]] = {column.name: [] for column in plan.columns}

    def add(self, sample: Mapping[str, bytes], key: str, sizes: Mapping[str, int] | None = None) -> None:
        """Append one sample. If it raises, the columns are as before.

        The sample holds the bytes at least of the fields that the plan needs; `sizes` those of all
        fields, where they are known without the bytes.
        """
        if sizes is None:
            sizes = {field: len(data) for field, data in sample.items()}
        read: dict[str, Lookup] = {}
        row = [self._value(column, sample, sizes, read, key) for column in self.plan.columns]
        for column, value in zip(self.plan.columns, row, strict=True):
            self._values[column.name].append(value)

    def arrays(self) -> dict[str, Any]:
        """One Arrow array per column, its type inferred from the values: see `promote`."""
        return {name: as_array(values) for name, values in self._values.items()}

    def _value(
        self,
        column: MetaColumn,
        sample: Mapping[str, bytes],
        sizes: Mapping[str, int],
        read: dict[str, Lookup],
        key: str,
    ) -> Any:
        origin = _first(column.origins, sample, sizes)
        if origin is None:
            return None
        field, attribute, is_size = origin
        if is_size:
            return sizes[field]
        try:
            if field not in read:  # width and height come from one look at the image
                read[field] = read_field(field, sample[field], self.plan.limits)
            return read[field](attribute)
        except Exception as error:
            if self.plan.on_bad == "raise":
                _fail(error, column.name, field, key)
            self.bad[column.name] += 1
            return None


def _first(
    origins: Iterable[_Origin], sample: Mapping[str, bytes], sizes: Mapping[str, int]
) -> _Origin | None:
    return next((found for found in origins if found.field in (sizes if found.is_size else sample)), None)


def _fail(error: Exception, column: str, field: str, key: str) -> NoReturn:
    """Raise the error with its place; one that is ours keeps its type."""
    if isinstance(error, CodecError):
        failure, reason = type(error), error.what
    else:
        failure, reason = DecodeFailed, f"{type(error).__name__}: {error}"[:_REASON].rstrip(".: ") + "."
    placed = failure(
        f'field "{field}", for the column "{column}": {reason}',
        key=key,
        hint=getattr(error, "hint", None) or 'on_bad="null" puts null for fields that are damaged.',
    )
    placed.field = field
    raise placed from error
