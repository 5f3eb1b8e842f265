"""Tables of text."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tarmac.errors import UsageError
from tarmac.tools.export.formats import FORMATS, RowOptions
from tools.export.samples import TEXT, odd, run, write


def unescaped(cell):
    for letter, code in (("t", "\t"), ("n", "\n"), ("r", "\r")):
        cell = cell.replace("\\\\", "\0").replace(f"\\{letter}", code).replace("\0", "\\\\")
    return cell.replace("\\\\", "\\")


def test_tsv_is_one_line_for_each_sample(tmp_path):
    run(write(tmp_path, [2, 1]), "tsv", tmp_path / "x.tsv", drop_fields=["png"])
    rows = [line.split("\t") for line in (tmp_path / "x.tsv").read_bytes().decode().split("\n")]
    assert rows.pop() == [""]
    assert rows[0] == ["__key__", "cls", "txt", "json"]
    for number, (key, cls, txt, text) in enumerate(rows[1:]):
        assert (key, cls, unescaped(txt)) == (f"k/{number:03d}", str(number), f"{TEXT}{number}")
        assert json.loads(unescaped(text))["n"] == number


def test_csv_read_by_another_reader(tmp_path):
    run(write(tmp_path, [3]), "csv", tmp_path / "x.csv", drop_fields=["png"])
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["txt"] for row in rows] == [f"{TEXT}{number}" for number in range(3)]
    assert [json.loads(row["json"])["n"] for row in rows] == [0, 1, 2]


def test_no_key_and_no_header(tmp_path):
    run(write(tmp_path, [2]), "tsv", tmp_path / "x.tsv", fields=["cls"], key=False, header=False)
    assert (tmp_path / "x.tsv").read_text() == "0\n1\n"


def test_bytes_have_no_column(tmp_path):
    urls = write(tmp_path, [1])
    with pytest.raises(UsageError, match=r'"png".*`drop_fields`'):
        run(urls, "csv", tmp_path / "x.csv")
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.is_file()) == [".tar"]
    shard = odd(tmp_path, [("a.bin", b'q"')])
    run(shard, "csv", tmp_path / "y.csv", kinds={"bin": "text"})
    assert (tmp_path / "y.csv").read_text() == '__key__,bin\na,"q"""\n'


def test_a_missing_field_is_empty_and_one_that_comes_late_has_its_column(tmp_path):
    shard = odd(tmp_path, [("a.txt", b"x"), ("b.cls", b"1"), ("c.txt", b"y"), ("c.md", b"z")])
    run(shard, "tsv", tmp_path / "x.tsv")
    assert (tmp_path / "x.tsv").read_text() == "__key__\ttxt\tcls\tmd\na\tx\t\t\nb\t\t1\t\nc\ty\t\tz\n"


class Kept:
    """Keeps what a writer writes."""

    def __init__(self):
        self.text = ""

    def write(self, data):
        self.text += data.decode()
        return len(data)


TEXTS = st.text(st.one_of(st.sampled_from("\r\n\t\"\\', ;\0\x0b\x85\u2028"), st.characters(codec="utf-8")))


def written(name, rows):
    file = Kept()
    writer = FORMATS[name].open(file, RowOptions(columns=("txt", "md")))
    for key, txt, md in rows:
        writer.add({"__key__": key, "__url__": "", "txt": txt.encode(), "md": md.encode()})
    writer.finish()
    return io.StringIO(file.text, newline="")  # as a file is to be opened for the csv module


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS)))
@example([("a", "b\rc", ""), ("\r", "", "\n")])
def test_every_text_is_read_back(rows):
    head = ["__key__", "txt", "md"]
    assert list(csv.reader(written("csv", rows))) == [head, *map(list, rows)]
    lines = csv.reader(written("tsv", rows), delimiter="\t", quoting=csv.QUOTE_NONE)
    assert [[_unescape(cell) for cell in line] for line in lines] == [head, *map(list, rows)]


def _unescape(cell):
    meaning = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}
    return re.sub(r"\\(.)", lambda match: meaning[match[1]], cell)


def test_a_bare_carriage_return(tmp_path):
    run(odd(tmp_path, [("a.txt", b"x\ry")]), "csv", tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_bytes() == b'__key__,txt\na,"x\ry"\n'
