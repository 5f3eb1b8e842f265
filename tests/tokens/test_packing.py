"""Packing: every token of every document is in one sequence, and the sequences are as full as best fit makes them."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import rounds
from tarmac.errors import UsageError
from tarmac.exact.packing import pack_lengths


def best_fit(lengths, size):
    """Count the sequences of best fit, longest first, one document at a time."""
    pieces = [piece for length in lengths for piece in [size] * (length // size) + [length % size] if piece]
    rooms: list[int] = []
    for piece in sorted(pieces, reverse=True):
        fitting = [number for number, room in enumerate(rooms) if room >= piece]
        if fitting:
            rooms[min(fitting, key=rooms.__getitem__)] -= piece
        else:
            rooms.append(size - piece)
    return len(rooms)


@settings(max_examples=rounds(200), deadline=None)
@given(
    lengths=st.lists(st.integers(0, 90), max_size=60),
    size=st.integers(1, 40),
    across=st.booleans(),
)
def test_every_token_once(lengths, size, across):
    packing = pack_lengths(np.array(lengths, np.int64), size, across_documents=across)
    pieces = defaultdict(list)
    for number in range(len(packing)):
        inside = slice(packing.bounds[number], packing.bounds[number + 1])
        assert 0 < packing.lengths[inside].sum() <= size
        order = list(zip(packing.documents[inside].tolist(), packing.starts[inside].tolist(), strict=True))
        assert order == sorted(order)
        for (document, start), length in zip(order, packing.lengths[inside].tolist(), strict=True):
            pieces[document].append((start, start + length))
    for document, length in enumerate(lengths):
        parts = sorted(pieces[document])
        assert [n for start, stop in parts for n in range(start, stop)] == list(range(length))
        if not across:  # a document is divided only if it is longer than a sequence
            assert len(parts) == -(-length // size)
    if across:
        assert len(packing) == -(-sum(lengths) // size)
    else:
        assert len(packing) == best_fit(lengths, size)


def test_sequences_are_full():
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(6, 1, 20_000), 1, 20_000).astype(np.int64)
    assert pack_lengths(lengths, 2048).fill > 0.995


def test_sequences_are_in_the_order_of_documents():
    rng = np.random.default_rng(0)
    packing = pack_lengths(rng.integers(1, 100, 1000), 128)
    firsts = packing.documents[packing.bounds[:-1]]
    assert (np.diff(firsts) > 0).all()


def test_sizes_are_positive():
    with pytest.raises(UsageError):
        pack_lengths(np.array([1]), 0)
