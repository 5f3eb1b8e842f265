"""Compare the texts of samples in shards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import xxhash

from tarmac.deduplicating import texts
from tarmac.deduplicating.options import Options
from tarmac.deduplicating.pairs import Pairs, read_facts, read_table, write_table
from tarmac.deduplicating.sources import Numbers, check_keys
from tarmac.errors import CodecError, UsageError
from tarmac.indexing.attributes import read_field
from tarmac.indexing.manifest import Inputs
from tarmac.indexing.meta import meta_plan
from tarmac.jobs.statuses import status_fingerprint, statuses_of
from tarmac.runtime.types import Integers
from tarmac.samples.grouping import Sample
from tarmac.tools.options import Access
from tarmac.tools.output import fields_of

_BLOCK = 1 << 12
_KEY, _LENGTH, _SCORE = "key", "length", "score"


@dataclass
class Shards:
    """The shards of the source, and those to compare it with.

    Keys, lengths and scores are written to a table beside the result, so that another threshold needs no shards.
    """

    sources: Inputs
    against: Inputs | None
    options: Options
    access: Access
    table: str
    """The path of the table."""
    _rows: Any = field(default=None, repr=False)

    @cached_property
    def inputs(self) -> str:
        """A hash of all samples and of how they are compared, but for the threshold."""
        urls = [[str(url) for url in each.urls] for each in (self.sources, self.against) if each is not None]
        statuses = [status_fingerprint(statuses_of(each, self.access.storage)) for each in urls]
        how = ("shards", statuses, self.options.text, self.options.pieces)
        return xxhash.xxh3_128_hexdigest(repr(how).encode())

    @property
    def own(self) -> int:
        return int(self._facts["own"])

    @property
    def count(self) -> int:
        return len(self._read_rows())

    @property
    def _facts(self) -> dict[str, Any]:
        facts = read_facts(self.table)
        if facts is None or facts["inputs"] != self.inputs or facts["score"] != self.options.score:
            for _ in self._texts():
                """Reading all texts writes the table."""
            facts = read_facts(self.table) or {}
        return facts

    def _read_rows(self) -> Any:
        if self._rows is None:
            _ = self._facts
            self._rows, _ = read_table(self.table)
        return self._rows

    def pairs(self, work: str, progress: bool | None) -> tuple[Pairs, int]:
        options = self.options
        return texts.near_pairs(
            self._texts(), self._checked, options.least, options.cutter,
            work=work, most=options.max_pairs, progress=progress,
        )  # fmt: skip

    def _checked(self) -> int:
        check_keys(self)
        return self.own

    def _texts(self) -> Iterator[Sequence[str | None]]:
        """Yield blocks of texts, and write the table of their samples at the end."""
        import pyarrow as pa

        rows: dict[str, list[Any]] = {_KEY: [], _LENGTH: [], _SCORE: []}
        blocks, own, fields, usable = [], 0, list[str](), False
        for index, inputs in enumerate((self.sources, self.against)):
            block: list[str | None] = []
            for sample in self.access.reader(inputs.urls) if inputs is not None else ():
                block.append(_text(sample, str(self.options.text)))
                fields, usable = fields or list(fields_of(sample)), usable or block[-1] is not None
                rows[_KEY].append(sample["__key__"].encode("utf-8", "surrogateescape"))
                rows[_LENGTH].append(len(block[-1] or ""))
                rows[_SCORE].append(self._score(sample) if index == 0 else None)
                own += index == 0
                if len(block) == _BLOCK:
                    yield block
                    blocks.append(_table(rows))
                    block = []
            if block:
                yield block
            blocks.append(_table(rows))
        if not own:
            raise UsageError("the shards have no samples.", field="sources")
        if not usable:
            what = f"no sample has the field {self.options.text!r}; the first has {', '.join(fields)}."
            raise UsageError(what, field="text")
        facts = {"inputs": self.inputs, "score": self.options.score, "own": own}
        os.makedirs(os.path.dirname(self.table), exist_ok=True)
        write_table(self.table, pa.concat_tables(blocks), facts)
        self._rows = None

    def _score(self, sample: Sample) -> float | None:
        if self.options.score is None:
            return None
        for name, attribute, is_size in meta_plan([self.options.score]).columns[0].origins:
            if name in sample:
                try:
                    value = len(sample[name]) if is_size else read_field(name, sample[name])(attribute)
                    return None if value is None else float(value)
                except (CodecError, ValueError, TypeError) as error:
                    what = f"expected a number in {self.options.score!r}: {str(error)[:200]}."
                    raise UsageError(
                        what, field="score", url=sample.get("__url__"), key=sample["__key__"]
                    ) from None
        return None

    def values(self) -> Numbers | None:
        preferred = self.options.preferred
        if preferred == "first":
            return None
        column = self._read_rows().column(_SCORE if preferred == "score" else _LENGTH)
        values = column.to_numpy()[: self.own].astype(np.float64)
        if preferred == "score" and np.isnan(values).all():
            raise UsageError(f"no sample has {self.options.score!r}.", field="score")
        return values  # type: ignore[no-any-return]

    def key_blocks(self) -> Iterator[list[str]]:
        for start in range(0, self.own, 1 << 16):
            yield self.keys(np.arange(start, min(start + (1 << 16), self.own)))

    def keys(self, numbers: Integers) -> list[str]:
        chosen = self._read_rows().column(_KEY).take(numbers)
        return [key.decode("utf-8", "surrogateescape") for key in chosen.to_pylist()]


def _text(sample: Sample, name: str) -> str | None:
    """Return the text of a field, or of the first of several with `;` between them."""
    data = next((sample[each] for each in name.split(";") if each in sample), None)
    return None if data is None else data.decode("utf-8", "replace")


def _table(rows: dict[str, list[Any]]) -> Any:
    """Return a table of rows, and forget them."""
    import pyarrow as pa

    types = {_KEY: pa.binary(), _LENGTH: pa.int64(), _SCORE: pa.float64()}
    table = pa.table({name: pa.array(values, types[name]) for name, values in rows.items()})
    for values in rows.values():
        values.clear()
    return table
