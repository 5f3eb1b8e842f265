"""Copies of pictures are recognised, others are not, and memory does not grow with their number."""

from __future__ import annotations

import random

import pytest
from bench.cases.copies import recognise
from hypothesis import given
from hypothesis import strategies as st

from harness import rounds
from tarmac.downloading.hashes import NEAR, is_flat
from tarmac.downloading.seen import Seen

BITS = st.integers(0, (1 << 64) - 1)


@pytest.mark.long
def test_copies_are_recognised_and_others_are_not():
    result = recognise(rounds(500) if rounds(1) == 1 else 20_000)
    print(result)
    assert not result.fault


@given(shown=BITS, bits=st.sets(st.integers(0, 63), max_size=8), kept=st.booleans(), others=st.lists(BITS))
def test_pictures_are_near_if_their_hashes_differ_in_few_bits(shown, bits, kept, others):
    other = shown ^ sum(1 << bit for bit in bits)
    with Seen(near=True) as seen:
        pictures = [(number, each) for number, each in enumerate([*others, shown])]
        if kept:
            seen.keep(pictures)
        else:
            for each in pictures:
                seen.add(*each)
        near = any(
            (each ^ other).bit_count() <= NEAR
            for each in [*others, shown]
            if not is_flat(each) and not is_flat(other)
        )
        assert seen.has(1 << 63, other) == near
        assert seen.has(len(others), None)  # the same bytes
        assert not seen.has(1 << 63, None)


def test_an_unfinished_shard_is_forgotten():
    with Seen() as seen:
        seen.keep([(1, None)])
        seen.add(2, None)
        assert seen.has(2, None)
        seen.forget()
        assert seen.has(1, None)
        assert not seen.has(2, None)


@pytest.mark.heavy
def test_memory_does_not_grow_with_the_number_of_pictures():
    from harness.memory import peak, reset_peak

    number = random.Random(1)

    def shard():
        return [(number.getrandbits(64), number.getrandbits(64)) for _ in range(10_000)]

    with Seen(near=True) as seen:
        for _ in range(5):
            seen.keep(shard())
        before = reset_peak()
        for _ in range(rounds(20)):
            seen.keep(shard())
        grown = peak() - before
        (pages,), (size,) = (
            seen.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
        )
    count = (5 + rounds(20)) * 10_000
    print(f"{count} pictures: {grown / 1e6:.0f} MB more, {pages * size / count:.0f} bytes on disk each")
    assert grown < 150e6
