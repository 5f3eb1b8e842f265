"""Listing samples."""

from __future__ import annotations

import pytest

from harness.shards import plain
from tarmac.errors import UrlError
from tarmac.tools.index import index
from tarmac.tools.show import SampleLine, describe, show, show_at


def test_lines(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    lines = list(show(path))
    assert lines[0] == SampleLine("s0", str(path), {"cls": 1, "txt": 17})
    assert len(lines) == 3
    assert list(show(path, count=1)) == lines[:1]
    assert list(show(path, count=0)) == []


def test_samples_by_number(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    lines = list(show(path))
    assert list(show_at(path, [2, -3, 0])) == [lines[2], lines[0], lines[0]]
    with pytest.raises(UrlError, match="there are 3 samples, numbered from 0; asked for 3"):
        list(show_at(path, [3]))


def test_what_a_manifest_says(tmp_path):
    (tmp_path / "a.tar").write_bytes(plain())
    manifest = str(tmp_path / "all.json")
    made = index(str(tmp_path / "a.tar"), manifest, name="few", info={"by": "hand"}).manifest
    found = describe(manifest)
    assert (found.name, found.shards, found.samples, found.info) == ("few", 1, 3, {"by": "hand"})
    assert found.size == (tmp_path / "a.tar").stat().st_size
    assert found.fingerprint == made.fingerprint
