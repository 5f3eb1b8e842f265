"""Listing samples."""

from __future__ import annotations

from harness.shards import plain
from tarmac.tools.show import SampleLine, show


def test_lines(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    lines = list(show(path))
    assert lines[0] == SampleLine("s0", str(path), {"cls": 1, "txt": 17})
    assert len(lines) == 3
    assert list(show(path, count=1)) == lines[:1]
    assert list(show(path, count=0)) == []
