"""Every line is a sample."""

from __future__ import annotations

from tarmac.tools.pack.sources.lines import Lines
from tools.pack.sources.packing import near, read_all


def test_lines(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\ntwo\r\n\xff three \nlast")
    samples, _ = read_all(Lines(str(path), near(path)), order=[4, 0, 1, 2, 3])
    assert [sample["txt"] for sample in samples] == [b"last", b"one", b"", b"two", b"\xff three "]
