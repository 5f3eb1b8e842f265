"""Conditions on metadata columns: `width >= 512 and lang = 'en'`, answered from the index alone.

As in SQL, a comparison with null is neither true nor false, and only true chooses a sample. Numbers that
are not a number count as null, and so does a division by zero; `/` keeps fractions; in patterns of `like`
a backslash takes the meaning from the character after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from tarmac.errors import BadCondition, IndexingError
from tarmac.indexing.grammar import Column, Node, Unary, parse
from tarmac.indexing.tokens import problem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Condition", "parse_where", "resolve"]

_INTERNAL = "members"
_HAS = "has:"
_LISTED = 20


@dataclass(frozen=True)
class Condition:
    """A condition that was understood. Equal texts are equal conditions; it pickles as its text."""

    text: str
    tree: Node = field(repr=False, compare=False)
    places: Mapping[str, int] = field(repr=False, compare=False)
    """The columns as written, and where each is first named."""

    @property
    def columns(self) -> frozenset[str]:
        """The columns as written, among them `has:jpg` for each `has(jpg)`."""
        return frozenset(self.places)

    @property
    def compared(self) -> frozenset[str]:
        """The columns whose values matter: those of which more is asked than whether they are null."""
        return frozenset(name for name in _compared(self.tree) if not name.startswith(_HAS))

    def nowhere(self, values: Mapping[str, int], samples: int, names: Iterable[str]) -> BadCondition | None:
        """The error that no sample has a value in a column, if that is so: nobody can have meant that.

        `values` are the numbers of samples that have one; `names` are those that there are instead.
        """
        for name in sorted(self.compared, key=self.places.__getitem__):
            if not values.get(name, 0):
                guess = _guess(name, [other for other in names if other != name]).strip()
                what = f'"{name}" is missing in all {samples} samples{f"; {guess}" if guess else ""}'
                hint = f"{name} is null, to choose samples without it."
                return problem(self.text, self.places[name], what.removesuffix("?"), hint)
        return None

    def resolve(self, available: Iterable[str]) -> dict[str, str]:
        """For each column as written its full name among those there are."""
        there = list(available)
        found = {}
        for name, place in self.places.items():
            try:
                found[name] = resolve(name, there)
            except IndexingError as error:
                quoted = self.text[place] == '"'
                hint = f"single quotes for text: '{name}'" if quoted else error.hint
                raise problem(self.text, place, error.what.rstrip("."), hint) from None
        return found

    def mask(self, table: Any, types: Mapping[str, Any] | None = None) -> NDArray[np.bool_]:
        """For each row of an Arrow table or batch, whether the condition is true.

        `types`, from `promote.common_types`, are those of the columns in all shards together: with them
        the shards of a dataset answer alike although their own types differ.
        """
        from tarmac.indexing.evaluate import evaluate

        return evaluate(self.tree, table, self.text, self.resolve(table.schema.names), types or {})

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return parse_where, (self.text,)


def _compared(node: Node) -> Iterator[str]:
    if isinstance(node, Column):
        yield node.name
    elif not (isinstance(node, Unary) and node.operator == "is null"):
        for value in (getattr(node, each.name) for each in fields(node)):
            for child in value if isinstance(value, tuple) else (value,):
                if isinstance(child, Node):
                    yield from _compared(child)


def parse_where(text: str) -> Condition:
    """Understand a condition, or say at which character it cannot be understood."""
    return Condition(text, *parse(text))


def resolve(name: str, available: Iterable[str]) -> str:
    """Return the column of this name, or the only one that ends in it: `width` for `jpg.width`."""
    there = list(available)
    if name in there:
        return name
    if name.startswith(_HAS):
        raise IndexingError(f'the table does not say which samples have the field "{name[len(_HAS) :]}".')
    there = [column for column in there if column != _INTERNAL and not column.startswith(_HAS)]
    found = [column for column in there if column.endswith(f".{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise IndexingError(
            f'"{name}" may be any of {", ".join(sorted(found))}.', hint="the whole name of the column."
        )
    raise IndexingError(
        f'the index has no column "{name}"; {_guess(name, there)}there is {_listed(there)}.',
        hint=f"index again with it: tarmac index SHARDS --meta {name if '.' in name else f'FIELD.{name}'}",
    )


def _guess(name: str, there: list[str]) -> str:
    endings = {column.rpartition(".")[2]: column for column in there}
    near = get_close_matches(name, [*there, *endings], 1)
    return f"did you mean {endings.get(near[0], near[0])}? " if near else ""


def _listed(there: list[str]) -> str:
    more = len(there) - _LISTED
    return ", ".join(sorted(there)[:_LISTED]) + (f" and {more} more" if more > 0 else "")
