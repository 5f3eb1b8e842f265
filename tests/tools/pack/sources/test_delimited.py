"""Tables of text: cells stay as they are written, whatever is in them."""

from __future__ import annotations

import csv

import pytest

from tarmac.errors import DecodeFailed, UrlError
from tarmac.tools.pack.sources.columns import Columns
from tarmac.tools.pack.sources.delimited import Csv, Tsv
from tarmac.tools.pack.sources.source import Skipped
from tools.pack.sources.packing import grow, near, read_all


def table(tmp_path, text, kind=Csv, columns=None):
    path = tmp_path / "t"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return kind(str(path), near(path), columns or Columns())


def test_quotes_newlines_and_marks(tmp_path):
    rows = [["a", "007", 'say "hi",\nthen\r\ngo\u2028on'], ["b", "1.50", ""], ["c", "-0", "é, " * 100_000]]
    with open(tmp_path / "t", "w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([["id", "cls", "txt"], *rows])
    source = Csv(str(tmp_path / "t"), near(tmp_path / "t"), Columns("id", sized=True))
    samples, _ = read_all(source, order=[2, 0, 1])
    assert [[sample["__key__"], sample["cls"].decode(), sample["txt"].decode()] for sample in samples] == [
        rows[2], rows[0], rows[1],
    ]  # fmt: skip
    sizes = [item[1] for item in source.items(Skipped())]
    assert sizes == [len(cls.encode()) + len(txt.encode()) for _, cls, txt in rows]


def test_tabs_and_files(tmp_path):
    grow(tmp_path, {"1.jpg": b"J", "m.png": b"M"})
    text = '@jpg\tmask\ttxt\n1.jpg\tm.png\ta "quote\n\n\t\tx\n'
    samples, _ = read_all(table(tmp_path, text, Tsv, Columns("", {"mask": "png"})))
    assert samples == [
        {"__key__": "000000000", "jpg": b"J", "png": b"M", "txt": b'a "quote'},
        {"__key__": "000000001", "txt": b"x"},
    ]


@pytest.mark.parametrize(
    "text", ["a,b\n1,2\n1\n", "a,b\n1,2\n1,2,3\n", 'a,b\n1,2\n"1,2\n', b"a,b\n1,2\n1,\xff\n"]
)
def test_rows_that_do_not_fit(tmp_path, text):
    with pytest.raises(DecodeFailed, match="row 2"):
        read_all(table(tmp_path, text))


def test_nothing(tmp_path):
    with pytest.raises(UrlError, match="empty"):
        read_all(table(tmp_path, ""))
