"""Select samples by conditions on metadata columns: `width >= 512 and lang = 'en'`, using only the index.

As in SQL, a comparison with null is neither true nor false, and only true selects a sample. NaN and the result
of a division by zero are null; `/` keeps fractions; in patterns of `like` a backslash escapes the next
character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tarmac.display import visible
from tarmac.errors import BadCondition, IndexingError
from tarmac.indexing.grammar import Node, condition_error, parse
from tarmac.indexing.meta import is_column

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_INTERNAL = "members"
_HAS = "has:"
_LISTED = 20


@dataclass(frozen=True)
class Condition:
    """A parsed condition. Conditions with equal texts are equal; a condition pickles as its text."""

    text: str
    tree: Node = field(repr=False, compare=False)
    positions: Mapping[str, int] = field(repr=False, compare=False)
    """The columns as written, and where each is named first."""

    @property
    def columns(self) -> frozenset[str]:
        """The columns as written, among them `has:jpg` for each `has(jpg)`."""
        return frozenset(self.positions)

    @property
    def compared(self) -> frozenset[str]:
        """The columns whose values are used, not only whether they are null."""
        return frozenset(name for name in _compared(self.tree) if not name.startswith(_HAS))

    def missing_column(
        self, values: Mapping[str, int], samples: int, names: Iterable[str]
    ) -> BadCondition | None:
        """Return an error if no sample has a value in one of the columns, which is probably misspelled.

        `values` has the number of samples with a value; `names` are the columns that exist.
        """
        for name in sorted(self.compared, key=self.positions.__getitem__):
            if not values.get(name, 0):
                guess = _guess(name, [other for other in names if other != name]).strip()
                what = f'"{name}" is missing in all {samples} samples{f"; {guess}" if guess else ""}'
                hint = f"{name} is null, to select samples without it."
                return condition_error(self.text, self.positions[name], what.removesuffix("?"), hint)
        return None

    def resolve(self, available: Iterable[str], *, indexed: bool = True) -> dict[str, str]:
        """Return the full name of each column as written.

        The names that are `available` are those of an index, or otherwise those that samples offer.
        """
        names = list(available)
        return {name: self._full_name(name, names, indexed) for name in self.positions}

    def _full_name(self, name: str, names: list[str], indexed: bool) -> str:
        try:
            return resolve(name, names, indexed=indexed)
        except IndexingError as error:
            position = self.positions[name]
            quoted = self.text[position] == '"'
            hint = f"single quotes for text: '{name}'" if quoted else error.hint
            what = visible(error.what.rstrip("."))  # names of fields, in a message of several lines
            raise condition_error(self.text, position, what, hint) from None

    @property
    def metadata_names(self) -> list[str]:
        """The metadata columns as written."""
        return [name for name in self.positions if name != "key" and not name.startswith(_HAS)]

    @property
    def short_names(self) -> list[str]:
        """The metadata columns that may stand for others: `width`, and `caption`, which may be a field, too."""
        return [name for name in self.metadata_names if "." not in name or not is_column(name)]

    def metadata(self, names: Callable[[], Iterable[str]], indexed: Iterable[str] = ()) -> list[str]:
        """Return the full names of the metadata columns, which an index or `Columns` can have.

        Short names are completed by the columns of an index, if they can be, as in a dataset, and otherwise by those
        that samples offer. `names` returns these, and is called only if necessary.
        """
        short, known = set(self.short_names), list(indexed)
        offered: list[str] | None = None
        result = []
        for name in self.metadata_names:
            if name in short and len(_matches(name, known)) == 1:
                name = _matches(name, known)[0]
            elif name in short:
                offered = list(names()) if offered is None else offered
                if not is_column(name) or _matches(name, offered):
                    name = self._full_name(name, offered, indexed=False)
            result.append(name)
        return result

    def mask(self, table: Any, types: Mapping[str, Any] | None = None) -> NDArray[np.bool_]:
        """Return for each row of an Arrow table or batch whether the condition is true.

        `types`, from `promote.common_types`, are the column types over all shards, so that shards with
        different types give consistent results.
        """
        from tarmac.indexing.evaluate import evaluate

        return evaluate(self.tree, table, self.text, self.resolve(table.schema.names), types or {})

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return parse_where, (self.text,)


def _compared(node: Node) -> Iterator[str]:
    if node.operator == "column":
        yield node.value
    elif node.operator != "is null":
        for operand in node.operands:
            yield from _compared(operand)


def parse_where(text: str) -> Condition:
    """Parse a condition; an error points at the character that is invalid."""
    return Condition(text, *parse(text))


def resolve(name: str, available: Iterable[str], *, indexed: bool = True) -> str:
    """Return the column of this name, or the only one that ends in it: `jpg.width` for `width`."""
    columns = list(available)
    if name in columns:
        return name
    if name.startswith(_HAS):
        raise IndexingError(f'the index does not record which samples have the field "{name[len(_HAS) :]}".')
    columns = [column for column in columns if column != _INTERNAL and not column.startswith(_HAS)]
    matches = _matches(name, columns)
    if len(matches) == 1:
        return matches[0]
    head, _, last = name.rpartition(".")
    if not indexed and not matches and head and last.isdecimal():  # items of lists are not listed
        return f"{resolve(head, columns, indexed=False)}.{last}"
    if matches:
        raise IndexingError(
            f'"{name}" is ambiguous: {", ".join(sorted(matches))}.', hint="use the full name of the column."
        )
    if not indexed:
        what = f'the samples have no column "{name}"; {_guess(name, columns)}available: {_listed(columns)}.'
        raise IndexingError(what)
    raise IndexingError(
        f'the index has no column "{name}"; {_guess(name, columns)}available: {_listed(columns)}.',
        hint=f"rebuild the index with it: tarmac index SHARDS --meta {_full_names(name)}",
    )


def _matches(name: str, columns: list[str]) -> list[str]:
    """Return the column of this name, or those that end in it."""
    return [name] if name in columns else [column for column in columns if column.endswith(f".{name}")]


def _full_names(name: str) -> str:
    """Return what a column may be called in an index."""
    return name if "." in name or is_column(name) else f"FIELD.{name}, or {name} if it is a field"


def _guess(name: str, columns: list[str]) -> str:
    from difflib import get_close_matches

    parts = {column.partition(".")[0]: column for column in sorted(columns, key=len, reverse=True)}
    parts |= {column.rpartition(".")[2]: column for column in columns}
    similar = get_close_matches(name, [*columns, *parts], 1)
    return f"did you mean {similar[0] if similar[0] in columns else parts[similar[0]]}? " if similar else ""


def _listed(columns: list[str]) -> str:
    more = len(columns) - _LISTED
    return (", ".join(sorted(columns)[:_LISTED]) or "none") + (f" and {more} more" if more > 0 else "")
