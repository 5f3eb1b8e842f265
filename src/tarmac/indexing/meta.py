"""Collect metadata columns of samples for an index: `jpg.width`, `json.caption`, `cls`.

The name of a column is a field, or a field, a dot and an attribute. Fields may contain dots, too
(`seg.png.width`), so a name may be ambiguous; the longest field that a sample has is used. With alternatives,
`jpg;png.width`, the first field that a sample has is used.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, NoReturn

from tarmac.codecs.basic import json_loads, text_loads
from tarmac.errors import BadCondition, CodecError, DecodeFailed, UsageError
from tarmac.indexing.attributes import Lookup, attributes_of, has_type, is_json, read_field
from tarmac.indexing.entries import Extent
from tarmac.indexing.promote import as_array
from tarmac.limits import DEFAULT_LIMITS, Limits

_MAX_NAME = 1_000
_MAX_REASON = 200
_MAX_PATHS = 1_000


class _Origin(NamedTuple):
    """One way to interpret the name of a column."""

    field: str
    attribute: str
    is_size: bool
    """Whether the size of the field is the value, so that its bytes are not needed."""


def _origin(field: str, attribute: str) -> _Origin:
    return _Origin(field, attribute, attribute == "size" and not is_json(field))


def _is_valid(origin: _Origin) -> bool:
    return origin.is_size or is_json(origin.field) or origin.attribute in attributes_of(origin.field)


class MetaColumn(NamedTuple):
    """A column, named as the user wrote it, and the possible origins of its values, best first."""

    name: str
    origins: tuple[_Origin, ...]


@dataclass(frozen=True)
class MetaPlan:
    """The metadata columns of an index; `meta_plan` builds one from their names."""

    columns: tuple[MetaColumn, ...] = ()
    on_bad: Literal["raise", "null"] = "raise"
    """Whether a damaged field (an invalid image, invalid JSON) raises or becomes null."""
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        if self.on_bad not in ("raise", "null"):
            raise UsageError(f'expected "raise" or "null", got {self.on_bad!r}.', field="on_bad")

    def needs(self, field: str) -> bool:
        """Return whether the bytes of a field are needed, and not only its size."""
        return field in self._needed

    @cached_property
    def _needed(self) -> frozenset[str]:
        origins = (origin for column in self.columns for origin in column.origins)
        return frozenset(origin.field for origin in origins if not origin.is_size)


def meta_plan(
    names: Sequence[str],
    *,
    on_bad: Literal["raise", "null"] = "raise",
    limits: Limits = DEFAULT_LIMITS,
) -> MetaPlan:
    """Return the plan for columns with these names: `["jpg.width", "json.caption", "cls"]`.

    Images have `width`, `height` and `channels`; npy arrays have `shape` and `dtype`; text and numbers are
    values themselves, and so is a field without an extension, such as `score`. JSON has any path into it,
    `json.a.b.0`, or is a value as a whole. Every field but JSON has a `size` in bytes; `json.size` is the value that
    the JSON calls size.
    """
    if isinstance(names, str):
        listed = [name.strip() for name in names.split(",")]
        raise UsageError(f"expected a list of columns, got {names!r}.", field="meta", hint=f"{listed}")
    return MetaPlan(tuple(map(_column, dict.fromkeys(map(str.strip, names)))), on_bad, limits)


def _column(name: str, *, strict: bool = False) -> MetaColumn:
    """Interpret the name of a column; only if not `strict`, it may be a field without an extension."""
    parts = [part.strip() for part in name.split(";")]
    if not name or len(name) > _MAX_NAME or any(not part or part != part.strip(".") for part in parts):
        raise _invalid(name, name, "expected FIELD or FIELD.ATTRIBUTE")
    *fields, last = parts
    origins = [origin for origin in _interpretations(last) if _is_valid(origin)]
    if not origins and "." not in name and not strict and not has_type(name):
        origins = [_origin(name, "")]
    if not origins:
        raise _invalid(name, last, _suggestion(last))
    # Which dot of the last alternative ends its field is ambiguous; the shortest field is the most likely.
    others = [_origin(field, origins[-1].attribute) for field in fields]
    for other in others:
        if not _is_valid(other):
            raise _invalid(name, f"{other.field}.{other.attribute}".strip("."), _suggestion(other.field))
    return MetaColumn(name, (*others, *origins))


def is_column(name: str) -> bool:
    """Return whether this is the full name of a column, in samples that have its field: `jpg.width`, not `width`."""
    try:
        _column(name, strict=True)
    except BadCondition:
        return False
    return True


def _interpretations(name: str) -> Iterator[_Origin]:
    """Yield every way to split a name into field and attribute, the longest field first."""
    yield _origin(name, "")
    dot = name.rfind(".")
    while dot > 0:
        yield _origin(name[:dot], name[dot + 1 :])
        dot = name.rfind(".", 0, dot)


def _suggestion(name: str) -> str:
    """Return the columns that exist for the field that the user probably means."""
    from difflib import get_close_matches

    for field in sorted(origin.field for origin in _interpretations(name)):
        if attributes := attributes_of(field):
            names = [f"{field}.{attribute}".strip(".") for attribute in (*attributes, "size")]
            similar = get_close_matches(name, names, 1) if name != field else []
            guess = f"did you mean {similar[0]}? " if similar else ""
            return f"{guess}available: {', '.join(names)}"
    return f"available for this type of field: {name.partition('.')[0]}.size"


def names_in(sample: Mapping[str, bytes]) -> list[str]:
    """Return the columns that a plan could have for this sample, with all paths into its JSON."""
    names: list[str] = []
    for field, data in sample.items():
        if field[:2] == "__":
            continue
        names += [f"{field}.{attribute}".strip(".") for attribute in attributes_of(field)]
        names.append(field if is_json(field) else f"{field}.size")
        if not has_type(field) and "." not in field and _is_text(data):
            names.append(field)
        if is_json(field):
            with contextlib.suppress(Exception):  # damaged JSON has no paths
                names += itertools.islice(_paths(json_loads(bytes(data)), field), _MAX_PATHS)
    return names


def _is_text(data: bytes) -> bool:
    try:
        text_loads(bytes(data))
    except ValueError:
        return False
    return True


def _paths(value: Any, prefix: str) -> Iterator[str]:
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield f"{prefix}.{name}"
        yield from _paths(inner, f"{prefix}.{name}")


def _invalid(name: str, part: str, why: str) -> BadCondition:
    of = "" if name == part else f' in "{name}"'
    return BadCondition(
        f'invalid metadata column "{part[:100]}"{of}: {why}.',
        hint="`meta` takes names such as jpg.width, json.caption, txt, cls, mp4.size.",
    )


class Columns:
    """The metadata of a shard, collected sample by sample."""

    def __init__(self, plan: MetaPlan) -> None:
        self.plan = plan
        self._values: dict[str, list[Any]] = {column.name: [] for column in plan.columns}

    def add(self, sample: Mapping[str, bytes], key: str, sizes: Mapping[str, int] | None = None) -> None:
        """Append a sample; if that raises, the columns are unchanged.

        `sample` needs the bytes only of the fields that the plan needs; `sizes` has the sizes of all fields.
        """
        if sizes is None:
            sizes = {field: len(data) for field, data in sample.items()}
        read: dict[str, Lookup] = {}
        row = [self._value(column, sample, sizes, read, key) for column in self.plan.columns]
        for column, value in zip(self.plan.columns, row, strict=True):
            self._values[column.name].append(value)

    def add_located(self, extents: Mapping[str, Extent], key: str, read: Callable[[int, int], bytes]) -> None:
        """Append a sample whose needed fields `read(offset, size)` returns."""
        located = {field: (offset, size) for field, (offset, size, _) in extents.items()}
        needed = {field: read(*where) for field, where in located.items() if self.plan.needs(field)}
        self.add(needed, key, {field: size for field, (_, size) in located.items()})

    def arrays(self) -> dict[str, Any]:
        """Return an Arrow array per column; its type is inferred from the values (see `promote`)."""
        return {name: as_array(values) for name, values in self._values.items()}

    def _value(
        self,
        column: MetaColumn,
        sample: Mapping[str, bytes],
        sizes: Mapping[str, int],
        read: dict[str, Lookup],
        key: str,
    ) -> Any:
        origins = (each for each in column.origins if each.field in (sizes if each.is_size else sample))
        origin = next(origins, None)
        if origin is None:
            return None
        field, attribute, is_size = origin
        if is_size:
            return sizes[field]
        try:
            if field not in read:  # width and height are read together
                read[field] = read_field(field, sample[field], self.plan.limits)
            return read[field](attribute)
        except Exception as error:
            if self.plan.on_bad == "raise":
                _fail(error, column.name, field, key)
            return None


def _fail(error: Exception, column: str, field: str, key: str) -> NoReturn:
    """Raise the error with its location; a CodecError keeps its type."""
    if isinstance(error, CodecError):
        failure, reason = type(error), error.what
    else:
        failure, reason = DecodeFailed, f"{type(error).__name__}: {error}"[:_MAX_REASON].rstrip(".: ") + "."
    located = failure(
        f'field "{field}", for the column "{column}": {reason}',
        key=key,
        hint=getattr(error, "hint", None)
        or "tarmac index --on-bad-meta null stores null for damaged fields.",
    )
    located.field = field
    raise located from error
