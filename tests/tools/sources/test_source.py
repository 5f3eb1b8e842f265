"""What is left out is counted and can be told."""

from __future__ import annotations

from tarmac.tools.sources.source import Skipped


def test_counts_and_examples():
    skipped = Skipped()
    assert not skipped
    skipped.add("hidden", "a/.DS_Store")
    skipped.add("hidden", "b/.DS_Store")
    skipped.add("without an extension", "README")
    assert skipped.counts == {"hidden": 2, "without an extension": 1}
    assert str(skipped) == "2 hidden ('a/.DS_Store'), 1 without an extension ('README')"
