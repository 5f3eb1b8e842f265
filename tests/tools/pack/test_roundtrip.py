"""What `export` writes, `pack` reads back to the same samples."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from tarmac.errors import DecodeFailed, TarmacError, UsageError
from tools.shards import write

_EXTENSIONS = {
    "jsonl": ".jsonl", "tsv": ".tsv", "csv": ".csv", "parquet": ".parquet",
    "hf": "", "dir": "", "sqlite": ".sqlite", "lmdb": ".lmdb", "tfrecord": ".tfrecord",
}  # fmt: skip
_part = st.text("abé0-_", min_size=1, max_size=4).filter(lambda part: not part.startswith("__"))
_keys = st.lists(_part, min_size=1, max_size=2).map("/".join)
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["\\t", "\\\\n", "a\tb", "\r\n", '"', "\ufeff", "YWJj", "\0"]
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
_TEXTUAL: dict[str, Any] = {
    "txt": _text.map(str.encode),
    "cls": st.integers(-(2**63), 2**63 - 1).map(lambda number: b"%d" % number),
    "json": _json.map(lambda value: json.dumps(value, indent=1).encode()),
    "meta.json": _json.map(lambda value: json.dumps(value).encode()),
}
_BINARY: dict[str, Any] = {
    name: st.binary(max_size=20) | st.just(b"YWJj") for name in ("jpg", "seg.png", "npy", "unknown", "mp3")
} | {"txt.gz": st.binary(max_size=9).map(lambda data: gzip.compress(data, mtime=0))}
_some = st.fixed_dictionaries({}, optional=_TEXTUAL | _BINARY).filter(bool)
_all = st.fixed_dictionaries(_TEXTUAL)


def _comparable(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample whose integers and JSON are values, since exports may write them in another way."""
    parse = {"cls": int, "json": json.loads, "meta.json": json.loads}
    return {
        name: parse.get(name, bytes)(data)
        for name, data in sample.items()
        if name not in ("__key__", "__url__")
    }


def _read(url: Any) -> dict[str, dict[str, Any]]:
    return {sample["__key__"]: _comparable(sample) for sample in tarmac.read(str(url))}


def _check(folder: Path, format: str, samples: dict[str, dict[str, bytes]]) -> None:
    shard = write(folder / "in.tar", samples.items())
    output = folder / f"exported{_EXTENSIONS[format]}"
    tarmac.export(shard, output, format, jobs=1, progress=False)
    tarmac.pack(output, folder / "out.tar", jobs=1, progress=False)
    assert _read(folder / "out.tar") == _read(shard)


@pytest.mark.parametrize("format", _EXTENSIONS)
def test_every_export_reads_back(format, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path_factory.mktemp("home")))
    fields = _all if format in ("csv", "tsv") else _some

    @settings(max_examples=12, deadline=None)
    @given(st.dictionaries(_keys, fields, min_size=1, max_size=4))
    def law(samples):
        with tempfile.TemporaryDirectory() as folder:
            _check(Path(folder), format, samples)

    law()


AWKWARD: dict[str, dict[str, bytes]] = {
    "1e5/007": {"0.jpg": b"", "1.jpg": b"J", "2.jpg": b"YWJj"},
    "日本/e\u0301": {"rowid": b"", "oid": b"\0", "path": b"photos/a.jpg", "bytes": b"12"},
    "null": {"@txt": b"nothing.txt", "@jpg": b"nothing.jpg", "__x": b"1", "__base64__x": b"2"},
    "a b": {
        "image": b"I",
        "score": b"0.5",
        "txt": b"007",
        "text": b"nan",
        "json": b'{"a.b": 1e2, "": [null]}',
    },
    "\ufeffk": {"TXT": b"\xef\xbb\xbf", "CLS": b"7", "JPG": b"\xff\xd8", "Meta.JSON": b"[]"},
    "NaN": {"txt": b"\\N", "cls": b"-9223372036854775808", "x.y.z": b"\0\0", "a-b": b"null"},
}
"""Fields without bytes, several images in a sample, numbers as text, keys in Unicode, names that tables use."""


@pytest.mark.parametrize("format", [name for name in _EXTENSIONS if name not in ("csv", "tsv")])
def test_awkward_samples_read_back(format, tmp_path):
    _check(tmp_path, format, AWKWARD)


@pytest.mark.parametrize("format", ["sqlite", "tfrecord", "parquet", "jsonl"])
def test_a_field_called_key(format, tmp_path):
    samples = {"007": {"key": b"\x80", "txt": b"a"}, "b": {"key": b"text"}}
    if format != "sqlite":
        _check(tmp_path, format, samples)
        return
    with pytest.raises(UsageError, match=r"`fields` other=key"):  # the layout has a column of this name
        _check(tmp_path, format, samples)


def test_files_are_read_only_for_marked_columns_of_other_tables(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    for name, column in (("exported", "__key__"), ("others", "name")):
        (tmp_path / f"{name}.csv").write_text(f"{column},@txt\na,secret.txt\n")
        tarmac.pack(tmp_path / f"{name}.csv", tmp_path / f"{name}.tar", progress=False)
    assert _read(tmp_path / "exported.tar") == {"a": {"@txt": b"secret.txt"}}
    assert next(iter(_read(tmp_path / "others.tar").values()))["txt"] == b"secret"


def test_an_empty_cell_of_a_text_table_is_empty_text_or_a_missing_field(tmp_path):
    (tmp_path / "t.csv").write_text("__key__,txt,cls,jpg\na,,,\n")
    tarmac.pack(tmp_path / "t.csv", tmp_path / "o.tar", progress=False)
    assert _read(tmp_path / "o.tar") == {"a": {"txt": b""}}


def test_escapes_of_other_tables_stay(tmp_path):
    (tmp_path / "t.tsv").write_text("name\ttxt\na\tC:\\temp\\new\n")
    tarmac.pack(tmp_path / "t.tsv", tmp_path / "o.tar", key="name", progress=False)
    assert _read(tmp_path / "o.tar") == {"a": {"txt": rb"C:\temp\new"}}


@pytest.mark.parametrize("column", ["key", "__key__"])
def test_keys_are_recognised(tmp_path, column):
    (tmp_path / "t.csv").write_text(f"{column},txt\na,x\n")
    tarmac.pack(tmp_path / "t.csv", tmp_path / "o.tar", progress=False)
    assert _read(tmp_path / "o.tar") == {"a": {"txt": b"x"}}


def test_paths_are_refused_and_base64_is_decoded(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("key,jpg\na,YWJj\n")
    tarmac.pack(table, tmp_path / "o.tar", progress=False)
    assert _read(tmp_path / "o.tar") == {"a": {"jpg": b"abc"}}
    table.write_text("key,jpg\na,photos/cat.jpg\n")
    with pytest.raises(TarmacError, match=r'sample "a".*photos/cat\.jpg.*--files jpg=jpg'):
        tarmac.pack(table, tmp_path / "p.tar", progress=False)
    assert not (tmp_path / "p.tar").exists()


def test_structs_of_files(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"image": {"bytes": b"1", "path": "a/x.y.PNG"}, "label": 3, "info": {"lang": "en"}},
        {"image": {"bytes": b"2", "path": "b.jpg"}, "label": 4, "info": None},
        {"image": None, "label": 5, "info": {"lang": "fr"}},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")

    def pack(name, **options):
        return tarmac.pack(tmp_path / "t.parquet", tmp_path / name, progress=False, **options)

    pack("o.tar", columns=["image", "label"])
    assert list(_read(tmp_path / "o.tar").values()) == [
        {"image.png": b"1", "label": b"3"}, {"image.jpg": b"2", "label": b"4"}, {"label": b"5"}
    ]  # fmt: skip
    pack("p.tar", columns={"image.bytes": "jpg", "info.lang": "txt"})
    assert list(_read(tmp_path / "p.tar").values()) == [
        {"jpg": b"1", "txt": b"en"}, {"jpg": b"2"}, {"txt": b"fr"}
    ]  # fmt: skip
    pack("q.tar", columns={"image": "*", "label": "cls"})
    assert [set(sample) for sample in _read(tmp_path / "q.tar").values()] == [
        {"png", "cls"}, {"jpg", "cls"}, {"cls"}
    ]  # fmt: skip
    with pytest.raises(TarmacError, match="no part 'byts'"):
        pack("r.tar", columns={"image.byts": "jpg"})
    with pytest.raises(UsageError, match="no column"):
        pack("r.tar", columns={"picture.bytes": "jpg"})


def test_structs_without_bytes_are_refused(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"image": {"bytes": null, "path": "a.jpg"}}\n')
    with pytest.raises(TarmacError, match=r"a\.jpg.*image\.path"):
        tarmac.pack(tmp_path / "t.jsonl", tmp_path / "o.tar", progress=False)
    (tmp_path / "a.jpg").write_bytes(b"1")
    tarmac.pack(
        tmp_path / "t.jsonl",
        tmp_path / "o.tar",
        files=["image.path"],
        columns={"image.bytes": "x"},
        progress=False,
    )
    assert list(_read(tmp_path / "o.tar").values()) == [{"jpg": b"1"}]


def test_damaged_databases_are_named(tmp_path):
    for name in ("t.sqlite", "t.lmdb", "t.tfrecord"):
        (tmp_path / name).write_bytes(b"no database" * 1000)
        with pytest.raises(DecodeFailed, match=name.replace(".", r"\.")):
            tarmac.pack(tmp_path / name, tmp_path / "o.tar", progress=False)


def test_examples_of_other_programs(tmp_path):
    import google_crc32c

    from tarmac.tools.export.tfrecord import masked_crc

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    floats = field(2, field(1, b"\0\0\x80\x3f\0\0\0\x40"))
    unpacked = field(3, b"\x08\x05\x08\x06")
    entries = {b"f": floats, b"n": unpacked, b"txt": field(1, field(1, b"a") + field(1, b"b")), b"empty": b""}
    record = field(1, b"".join(field(1, field(1, name) + field(2, value)) for name, value in entries.items()))
    length = len(record).to_bytes(8, "little")
    crc = google_crc32c.value
    (tmp_path / "t.tfrecord").write_bytes(length + masked_crc(crc(length)) + record + masked_crc(crc(record)))
    with pytest.raises(TarmacError, match="txt"):  # two values are no text
        tarmac.pack(tmp_path / "t.tfrecord", tmp_path / "o.tar", progress=False, columns=["txt"])
    tarmac.pack(tmp_path / "t.tfrecord", tmp_path / "o.tar", progress=False, columns=["f", "n"])
    assert _read(tmp_path / "o.tar") == {"000000000": {"f": b"[1.0, 2.0]", "n": b"[5, 6]"}}
