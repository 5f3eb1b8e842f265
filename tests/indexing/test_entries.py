"""Samples gathered one by one become the columns of a sidecar."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.errors import BadName
from tarmac.indexing.entries import Entries

FIELDS = st.sampled_from(["cls", "jpg", "seg.png", "t\udc80xt"])
PLACES = st.tuples(st.integers(0, 1 << 50), st.integers(0, 1 << 40), st.integers(0, (1 << 64) - 1))
SAMPLES = st.lists(
    st.tuples(st.text(max_size=5) | st.just("k\udcff"), st.dictionaries(FIELDS, PLACES, min_size=1)),
    max_size=6,
)


def gathered(samples):
    entries = Entries()
    for key, places in samples:
        entries.add(key, places)
    return entries


def text(name):
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


@settings(max_examples=100, derandomize=True, deadline=None)
@given(SAMPLES)
def test_nothing_is_lost_or_changed(samples):
    columns = gathered(samples).columns()
    assert [text(key) for key in columns["key"].to_pylist()] == [key for key, _ in samples]
    found = [
        {text(m["field"]): (m["offset"], m["size"], m["digest"]) for m in members}
        for members in columns["members"].to_pylist()
    ]
    assert [list(sample.items()) for sample in found] == [list(places.items()) for _, places in samples]


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True), max_size=5))
def test_the_layout_is_what_all_samples_have(orders):
    entries = gathered([(str(i), dict.fromkeys(order, (0, 0, 0))) for i, order in enumerate(orders)])
    alike = bool(orders) and all(order == orders[0] for order in orders)
    assert entries.layout() == (orders[0] if alike else None)


def test_members_that_only_line_up_are_no_layout():
    entries = gathered(
        [("0", {"a": (0, 0, 0), "b": (0, 0, 0)}), ("1", {"a": (0, 0, 0)}), ("2", {"b": (0, 0, 0)})]
    )
    assert list(entries.field_of) == [0, 1, 0, 1]
    assert entries.layout() is None


def test_too_many_fields_mean_a_wrong_naming_rule():
    entries = Entries()
    with pytest.raises(BadName, match="naming rule") as caught:
        for number in range(40_000):
            entries.add(f"k{number}", {f"f{number}": (0, 0, 0)})
    assert caught.value.key == "k32001"
