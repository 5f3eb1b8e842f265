"""Chunks are bounded by the number of samples and by their bytes."""

from __future__ import annotations

from tarmac.tools.chunks import chunks


def test_by_number_and_by_size():
    samples = [{"__key__": str(n), "__url__": "x" * 99, "bin": bytes(n)} for n in range(10)]
    assert [len(some) for some in chunks(samples, 4, 1000)] == [4, 4, 2]
    assert [len(some) for some in chunks(samples, 100, 10)] == [5, 2, 2, 1]
    assert [sample for some in chunks(samples, 3, 9) for sample in some] == samples
    assert list(chunks([], 3, 9)) == []


def test_samples_are_read_only_when_needed():
    taken = []

    def samples():
        for number in range(10):
            taken.append(number)
            yield {"__key__": str(number), "bin": b"x"}

    next(chunks(samples(), 3, 100))
    assert taken == [0, 1, 2]
