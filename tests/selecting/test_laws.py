"""Laws of selections: every row is accounted for, and a shuffle depends on the rows and the seed alone."""

from __future__ import annotations

import hashlib
import math
import tempfile
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from selecting.tables import contents, removed, rows

pytestmark = pytest.mark.long
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "é", "a/b", "'", '"', "\\", "\n", "NULL"]))
SIDES = st.one_of(st.none(), st.sampled_from([0.0, -1.0, 1.0, 150.0, 300.0, math.nan, math.inf, -0.0]))
ROWS = st.lists(
    st.fixed_dictionaries(
        {"URL": TEXTS, "TEXT": TEXTS, "WIDTH": SIDES, "HEIGHT": SIDES, "n": st.integers(0, 3)}
    ),
    min_size=1,
    max_size=30,
)
SCHEMA = pa.schema(
    [
        ("URL", pa.string()),
        ("TEXT", pa.string()),
        ("WIDTH", pa.float64()),
        ("HEIGHT", pa.float64()),
        ("n", pa.int64()),
    ]
)


def write(table: list[dict[str, object]], folder: str, cuts: list[int]) -> list[Path]:
    """Write rows to several tables."""
    borders = [0, *sorted(cut % (len(table) + 1) for cut in cuts), len(table)]
    paths = []
    for number, (start, stop) in enumerate(pairwise(borders)):
        paths.append(Path(folder) / f"t{number}.parquet")
        pq.write_table(pa.Table.from_pylist(table[start:stop], SCHEMA), paths[-1])
    return paths


def shown(row: dict[str, object]) -> str:
    """A row as text, in which NaN equals NaN."""
    return str([row[name] for name in SCHEMA.names])


def position(row: dict[str, object], seed: int) -> str:
    """The order of a shuffle, as the documents state it."""
    key = [str(seed), *(str(row[name]) for name in ("URL", "TEXT") if row[name] is not None)]
    return hashlib.md5("/".join(key).encode()).hexdigest()


def passes(row, nulls):
    """What the documents say about the filters of the first law."""
    sides = [row["WIDTH"], row["HEIGHT"]]
    known = all(side is not None and 0 < side <= 1e9 for side in sides)
    return (min(sides) >= 100 if known else nulls == "keep") and row["n"] < 3


@settings(max_examples=25)
@given(
    ROWS,
    st.integers(0, 5),
    st.booleans(),
    st.sampled_from(["drop", "keep"]),
    st.one_of(st.none(), st.integers(1, 9)),
)
def test_every_row_is_written_or_removed_by_one_filter(table, seed, shuffled, nulls, sample):
    with tempfile.TemporaryDirectory() as folder:
        (path,) = write(table, folder, [])
        options = {"dedup": "URL,TEXT", "nulls": nulls, "sample": sample, "rows_per_file": 4}
        if not any(passes(row, nulls) for row in table):
            with pytest.raises(tarmac.errors.UsageError, match="no rows are left"):
                tarmac.select(path, f"{folder}/out", min_size=100, where="n < 3", **options)
            return
        seeds = {"shuffle": seed} if shuffled else {}
        report = tarmac.select(path, f"{folder}/out", min_size=100, where="n < 3", **seeds, **options)
        counts, results = removed(f"{folder}/out"), rows(f"{folder}/out")
    assert report.read == len(table) == report.written + sum(counts.values())
    kept = [row for row in table if passes(row, nulls)]
    links = {(row["URL"], row["TEXT"]) for row in kept}
    assert len(results) == min(len(links), sample or len(links))
    assert len({(row["URL"], row["TEXT"]) for row in results}) == len(results)
    assert set(map(shown, results)) <= set(map(shown, kept))
    if shuffled:
        places = [position(row, seed) for row in results]
        assert (
            places
            == sorted(position({"URL": url, "TEXT": text}, seed) for url, text in links)[: len(results)]
        )
    elif sample is None:
        firsts = list({(row["URL"], row["TEXT"]): row for row in reversed(kept)}.values())
        assert [*map(shown, results)] == [shown(row) for row in kept if any(row is first for first in firsts)]


@settings(max_examples=20)
@given(
    ROWS,
    st.permutations(range(30)),
    st.lists(st.integers(0, 30), max_size=3),
    st.integers(0, 3),
    st.booleans(),
)
def test_a_shuffle_does_not_depend_on_how_tables_divide_the_rows(table, order, cuts, seed, unique):
    options = {"shuffle": seed, "dedup": "URL,TEXT" if unique else (), "rows_per_file": 7}
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        tarmac.select(write(table, one, []), f"{one}/out", **options)
        moved = [table[number] for number in order if number < len(table)]
        tarmac.select(list(reversed(write(moved, other, cuts))), f"{other}/out", **options)
        assert contents(f"{one}/out") == contents(f"{other}/out")
