"""Follow the hints of indexes, manifests, metadata and conditions."""

from __future__ import annotations

import ast
import gzip
import io
import json
import shlex
from pathlib import Path

import pytest
from PIL import Image

import tarmac
from harness.commands import run
from harness.hints import follows, hinted
from harness.shards import header_offsets, plain


def picture(form: str = "jpeg") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (4, 3)).save(stream, form)
    return stream.getvalue()


FILES = [
    ("a.cls", b"1"),
    ("a.jpg", picture()),
    ("a.json", b'{"caption": "dog"}'),
    ("a.png", picture("png")),
    ("a.txt", b"seven"),
    ("b.cls", b"2"),
    ("b.jpg", picture()),
    ("b.json", b'{"caption": "cat"}'),
    ("b.png", picture("png")),
    ("b.txt", b"7"),
]


@pytest.fixture(autouse=True)
def shard(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    Path("x.tar").write_bytes(plain(FILES))
    return "x.tar"


def keys(dataset) -> list[str]:
    return [sample["__key__"] for sample in dataset]


def index(*arguments: str) -> int:
    return run(["index", *arguments, "-j", "1"])


NAMES = "`meta` takes names such as jpg.width, json.caption, txt, cls, mp4.size."


@follows("`meta` takes names such as jpg.width, json.caption, txt, cls, mp4.size.")
def test_an_invalid_column(shard, capsys):
    with hinted(NAMES):
        tarmac.Dataset(shard, meta=["jpg.widht"])
    names = NAMES.partition("such as ")[2].rstrip(".").split(", ")
    assert keys(tarmac.Dataset(shard, meta=names).where("caption = 'dog' and jpg.width = 4")) == ["a"]
    assert index(shard, "-o", "x.json", "--meta", "jpg.widht") == 2
    assert "Try: --meta takes names such as" in capsys.readouterr().err
    assert index(shard, "-o", "x.json", "--meta", ",".join(names)) == 0


@follows("{}")
def test_columns_as_one_string(shard):
    with hinted("['jpg.width', 'cls']") as caught:
        tarmac.index(shard, meta="jpg.width, cls")
    tarmac.index(shard, meta=ast.literal_eval(caught.value.hint), jobs=1)
    assert len(tarmac.Dataset(shard).where("cls = 2")) == 1


@follows("tarmac index --on-bad-meta null stores null for damaged fields.")
def test_a_damaged_field(shard):
    Path(shard).write_bytes(plain([("a.json", b"{"), ("b.json", b'{"n": 1}')]))
    with hinted("tarmac index --on-bad-meta null stores null for damaged fields."):
        tarmac.Dataset(shard, meta=["json.n"])
    assert index(shard, "-o", "x.json", "--meta", "json.n") == 1
    assert index(shard, "-o", "x.json", "--meta", "json.n", "--on-bad-meta", "null") == 0
    for source in ("x.json", shard):
        assert keys(tarmac.Dataset(source).where("n is null")) == ["a"]


@follows("rebuild the index with it: tarmac index SHARDS --meta {}")
@pytest.mark.parametrize(
    ("condition", "name", "names"),
    [
        ("cls = 2", "cls", "cls"),
        ("width = 4 and key = 'b'", "jpg.width", "FIELD.width, or width if it is a field"),
        ("json.caption = 'cat'", "json.caption", "json.caption"),
    ],
)
def test_a_column_that_the_index_lacks(shard, condition, name, names):
    with hinted(f"rebuild the index with it: tarmac index SHARDS --meta {names}"):
        tarmac.Dataset(shard).where(condition)
    assert index(shard, "--meta", name) == 0
    assert keys(tarmac.Dataset(shard).where(condition)) == ["b"]


@follows("use the full name of the column.")
def test_an_ambiguous_column(shard):
    dataset = tarmac.Dataset(shard, meta=["jpg.width", "png.width"])
    with hinted("use the full name of the column."):
        dataset.where("width = 4")
    assert len(dataset.where("png.width = 4")) == 2


@follows("single quotes for text: '{}'")
def test_text_in_double_quotes(shard):
    dataset = tarmac.Dataset(shard, meta=["json.caption"])
    with hinted("single quotes for text: 'dog'") as caught:
        dataset.where('caption = "dog"')
    assert keys(dataset.where(f"caption = {caught.value.hint.partition(': ')[2]}")) == ["a"]


@follows("{} is null, to select samples without it.")
def test_a_column_without_values(shard):
    dataset = tarmac.Dataset(shard, meta=["mp4.size"])
    with hinted("mp4.size is null, to select samples without it.") as caught:
        dataset.where("mp4.size > 1")
    assert len(dataset.where(caught.value.hint.partition(",")[0])) == 2


@follows("number({}), which is null for text that is not a number.")
def test_text_and_a_number(shard):
    dataset = tarmac.Dataset(shard, meta=["txt"])
    with hinted("number(txt), which is null for text that is not a number.") as caught:
        dataset.where("txt > 6")
    assert keys(dataset.where(f"{caught.value.hint.partition(',')[0]} > 6")) == ["b"]
    assert keys(dataset.where("number(txt) is null")) == ["a"]


@follows("tarmac index SHARDS -o FILE.json")
def test_json_that_is_not_a_manifest(shard):
    Path("other.json").write_text("{}")
    with hinted("tarmac index SHARDS -o FILE.json"):
        tarmac.Dataset("other.json")
    assert index(shard, "-o", "FILE.json") == 0
    assert len(tarmac.Dataset("FILE.json")) == 2


@follows("use a newer tarmac, or tarmac index SHARDS -o NEW.json")
def test_a_manifest_of_a_newer_version(shard):
    index(shard, "-o", "x.json")
    content = json.loads(Path("x.json").read_text())
    content["tarmac"]["version"] = 2
    Path("x.json").write_text(json.dumps(content))
    with hinted("use a newer tarmac, or tarmac index SHARDS -o NEW.json"):
        tarmac.Dataset("x.json")
    assert index(shard, "-o", "NEW.json") == 0
    assert len(tarmac.Dataset("NEW.json")) == 2


@follows("use a newer tarmac, or run tarmac index with this one.")
def test_an_index_of_a_newer_version(shard):
    index(shard, "-o", "x.json")
    sidecar = Path("x.tar.arrow")
    sidecar.write_bytes(sidecar.read_bytes().replace(b'"version": 1', b'"version": 2'))
    with hinted("use a newer tarmac, or run tarmac index with this one."):
        tarmac.Dataset("x.json")[0]
    assert index(shard, "-o", "x.json") == 0
    assert tarmac.Dataset("x.json")[0]["__key__"] == "a"


@follows("use another name, or remove the file.")
def test_a_manifest_over_another_file(shard):
    Path("x.csv").write_text("a,b\n")
    with hinted("use another name, or remove the file."):
        tarmac.index(shard, "x.csv", jobs=1)
    tarmac.index(shard, "y.json", jobs=1)
    Path("x.csv").unlink()
    tarmac.index(shard, "x.csv", jobs=1)
    assert len(tarmac.Dataset(tarmac.read_manifest("x.csv"))) == len(tarmac.Dataset("y.json")) == 2


@follows("tarmac index --drop builds an index without the existing columns.")
def test_an_index_with_a_column_of_another_version(shard):
    index(shard, "--meta", "jpg.width")
    sidecar = Path("x.tar.arrow")
    sidecar.write_bytes(sidecar.read_bytes().replace(b"jpg.width", b"jpg.swirl"))
    Path(shard).write_bytes(
        plain([("c.cls", b"1"), ("d.cls", b"2")])
    )  # the values are those of another shard
    with hinted("tarmac index --drop builds an index without the existing columns."):
        tarmac.index(shard, meta=["cls"], jobs=1)
    assert index(shard, "--meta", "cls", "--drop") == 0
    assert len(tarmac.Dataset(shard).where("cls = 1")) == 1


@follows("index the shard without `dali`, or run wds2idx of a newer DALI.")
def test_an_old_index_of_dali(shard, capsys):
    files = [("a.cls", b"1"), ("b.cls", b"2")]
    Path(shard).write_bytes(plain(files))
    offsets = [offset + 512 for offset in header_offsets(plain(files))]
    Path("x.idx").write_text("v1.1 2\n" + "".join(f"cls {start} 1\n" for start in offsets))
    with hinted("index the shard without `dali`, or run wds2idx of a newer DALI."):
        tarmac.index(shard, "x.json", dali=True, jobs=1)
    assert index(shard, "-o", "x.json", "--dali") == 1
    assert "Try: index the shard without --dali, or run wds2idx" in capsys.readouterr().err
    assert index(shard, "-o", "x.json") == 0
    newer = [f"cls {start} 1 {name}\n" for start, (name, _) in zip(offsets, files, strict=True)]
    Path("x.idx").write_text("v1.2 2\n" + "".join(newer))
    assert index(shard, "-o", "y.json", "--dali") == 0
    assert keys(tarmac.Dataset("x.json")) == keys(tarmac.Dataset("y.json")) == ["a", "b"]


@follows("split_name=tarmac.last_dot for keys that contain dots.")
def test_too_many_fields(shard, capsys):
    count = 32_010
    with tarmac.TarWriter(shard, encoder=False, split_name=tarmac.last_dot) as writer:
        for number in range(count):
            writer.write({"__key__": f"frame.{number}", "cls": b"1"})
    with hinted("split_name=tarmac.last_dot for keys that contain dots."):
        tarmac.Dataset(shard)
    assert index(shard, "-o", "x.json") == 1
    assert "Try: --split-name last-dot for keys" in capsys.readouterr().err
    assert index(shard, "-o", "x.json", "--split-name", "last-dot") == 0
    assert len(tarmac.Dataset(shard, split_name=tarmac.last_dot)) == count


@follows("tarmac copy {} -o {}")
def test_a_compressed_shard():
    Path("a b.tar.gz").write_bytes(gzip.compress(plain(FILES)))
    with hinted("tarmac copy {} -o {}") as caught:
        tarmac.Dataset("a b.tar.gz")
    verb, *arguments = shlex.split(caught.value.hint)
    assert verb == "tarmac"
    assert run([*arguments, "-j", "1"]) == 0
    assert keys(tarmac.Dataset("a b.tar")) == ["a", "b"]


@follows("rename it to {}.tar.{}, and decompress that with tarmac copy.")
def test_a_compressed_shard_with_another_name(shard):
    Path(shard).write_bytes(gzip.compress(plain(FILES)))
    with hinted("rename it to x.tar.gz, and decompress that with tarmac copy."):
        tarmac.Dataset(shard)
    Path(shard).rename("x.tar.gz")
    assert run(["copy", "x.tar.gz", "-o", "x.tar", "-j", "1"]) == 0
    assert keys(tarmac.Dataset("x.tar")) == ["a", "b"]
