"""Collected samples become the columns of a sidecar."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.errors import BadName
from tarmac.indexing.entries import Entries

FIELDS = st.sampled_from(["cls", "jpg", "seg.png", "t\udc80xt"])
EXTENTS = st.tuples(st.integers(0, 1 << 50), st.integers(0, 1 << 40), st.integers(0, (1 << 64) - 1))
SAMPLES = st.lists(
    st.tuples(st.text(max_size=5) | st.just("k\udcff"), st.dictionaries(FIELDS, EXTENTS, min_size=1)),
    max_size=6,
)


def collected(samples):
    entries = Entries()
    for key, extents in samples:
        entries.add(key, extents)
    return entries


def text(name):
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


@settings(max_examples=100, derandomize=True, deadline=None)
@given(SAMPLES)
def test_nothing_is_lost_or_changed(samples):
    columns = collected(samples).columns()
    assert [text(key) for key in columns["key"].to_pylist()] == [key for key, _ in samples]
    stored = [
        {text(m["field"]): (m["offset"], m["size"], m["digest"]) for m in members}
        for members in columns["members"].to_pylist()
    ]
    assert [list(sample.items()) for sample in stored] == [list(extents.items()) for _, extents in samples]


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True), max_size=5))
def test_the_layout_is_the_common_order_of_fields(orders):
    entries = collected([(str(i), dict.fromkeys(order, (0, 0, 0))) for i, order in enumerate(orders)])
    alike = bool(orders) and all(order == orders[0] for order in orders)
    assert entries.layout() == (orders[0] if alike else None)


def test_members_that_only_line_up_have_no_layout():
    entries = collected(
        [("0", {"a": (0, 0, 0), "b": (0, 0, 0)}), ("1", {"a": (0, 0, 0)}), ("2", {"b": (0, 0, 0)})]
    )
    assert list(entries.field_of) == [0, 1, 0, 1]
    assert entries.layout() is None


def test_too_many_fields_are_rejected():
    entries = Entries()
    with pytest.raises(BadName, match="k32001") as caught:
        for number in range(40_000):
            entries.add(f"k{number}", {f"f{number}": (0, 0, 0)})
    assert caught.value.key == "k32001"
