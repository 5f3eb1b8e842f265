"""What is left out is counted and can be told; samples are read a few at a time, and large ones alone."""

from __future__ import annotations

from tarmac.tools.pack.sources.source import HANDFUL, SMALL, Skipped, load_each


def test_counts_and_examples():
    skipped = Skipped()
    assert not skipped
    skipped.add("hidden", "a/.DS_Store")
    skipped.add("hidden", "b/.DS_Store")
    skipped.add("without an extension", "README")
    assert skipped.counts == {"hidden": 2, "without an extension": 1}
    assert str(skipped) == "2 hidden ('a/.DS_Store'), 1 without an extension ('README')"


def test_small_samples_are_read_by_the_handful_and_large_ones_alone():
    sizes = [1] * 40 + [SMALL] * 5 + [1] * 2 + [SMALL]
    begun = []

    def read(key, where):
        begun.append(key)
        return {"__key__": key, "bin": bytes(where[0])}

    ahead = []
    planned = ((f"{number:03d}", (size,)) for number, size in enumerate(sizes))
    for number, sample in enumerate(load_each(read, planned)):
        assert sample == {"__key__": f"{number:03d}", "bin": bytes(sizes[number])}
        ahead.append(len(begun) - number - 1)
    assert len(ahead) == len(begun) == len(sizes)
    assert ahead[:HANDFUL] == list(range(HANDFUL - 1, -1, -1))
    assert ahead[40:45] == [0] * 5  # never two large ones in memory
    assert ahead[45:] == [2, 1, 0]
    assert list(load_each(read, [])) == []
