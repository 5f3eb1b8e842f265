"""Skipped files are counted; small samples are read in chunks, and large ones alone."""

from __future__ import annotations

from tarmac.tools.pack.sources.source import _CHUNK, _CHUNK_BYTES, Skipped, load_each


def test_counts_and_examples():
    skipped = Skipped()
    assert not skipped
    skipped.add("hidden", "a/.DS_Store")
    skipped.add("hidden", "b/.DS_Store")
    skipped.add("without an extension", "README")
    assert skipped.counts == {"hidden": 2, "without an extension": 1}
    assert str(skipped) == "2 hidden ('a/.DS_Store'), 1 without an extension ('README')"


def test_small_samples_are_read_in_chunks_and_large_ones_alone():
    sizes = [1] * 40 + [_CHUNK_BYTES] * 5 + [1] * 2 + [_CHUNK_BYTES]
    started = []

    def read(key, location):
        started.append(key)
        return {"__key__": key, "bin": bytes(location[0])}

    ahead = []
    planned = ((f"{number:03d}", (size,)) for number, size in enumerate(sizes))
    for number, sample in enumerate(load_each(read, planned)):
        assert sample == {"__key__": f"{number:03d}", "bin": bytes(sizes[number])}
        ahead.append(len(started) - number - 1)
    assert len(ahead) == len(started) == len(sizes)
    assert ahead[:_CHUNK] == list(range(_CHUNK - 1, -1, -1))
    assert ahead[40:45] == [0] * 5  # never two large ones in memory
    assert ahead[45:] == [2, 1, 0]
    assert list(load_each(read, [])) == []
