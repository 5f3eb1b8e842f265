"""Listing samples."""

from __future__ import annotations

import gzip
import io

import numpy as np
import pytest
from PIL import Image

from harness.shards import plain
from tarmac.errors import MissingField, UrlError
from tarmac.tools.index import index
from tarmac.tools.select import Select
from tarmac.tools.show.show import (
    SampleLine,
    chosen,
    content,
    describe,
    raw_field,
    show,
    show_at,
    visible,
)


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


@pytest.fixture
def shards(tmp_path):
    urls = []
    for shard in range(2):
        files = [(f"{shard}{n:02d}.{name}", b"%d" % n) for n in range(3) for name in ("cls", "txt")]
        urls.append(str(tmp_path / f"s{shard}.tar"))
        (tmp_path / f"s{shard}.tar").write_bytes(plain(files))
    return urls


def keys(samples):
    return [sample["__key__"] for sample in samples]


def test_samples_that_are_asked_for(shards, tmp_path):
    assert keys(chosen(shards)) == ["000", "001", "002", "100", "101", "102"]
    assert keys(chosen(shards, count=2)) == ["000", "001"]
    assert keys(chosen(shards, select=Select(where="cls >= 1", slice="1:"))) == ["002", "101", "102"]
    assert keys(chosen(shards, select=Select(slice="-1:"))) == ["102"]
    assert keys(chosen(shards, select=Select(slice_shard="-1:"))) == ["002", "102"]
    (cut, *_) = chosen(shards, select=Select(fields="cls"))
    assert "txt" not in cut


def test_samples_by_number_and_key(shards, tmp_path):
    assert keys(chosen(shards, at=["-1", "1", "=101", "000"])) == ["102", "001", "101", "000"]
    assert keys(chosen(shards, at=["0"], select=Select(where="cls = 2"))) == ["002"]
    with pytest.raises(UrlError, match="no sample has the key '0000'"):
        list(chosen(shards, at=["0000"]))
    with pytest.raises(UrlError, match="asked for 100"):
        list(chosen(shards, at=["100"]))
    assert keys(chosen(shards, at=["=100"])) == ["100"]


def test_samples_of_a_stream(shards, tmp_path):
    packed = tmp_path / "x.tar.gz"
    packed.write_bytes(gzip.compress((tmp_path / "s1.tar").read_bytes()))
    assert keys(chosen(str(packed), at=["2", "=100"])) == ["100", "102"]
    with pytest.raises(UrlError, match="no sample 7, 00"):
        list(chosen(str(packed), at=["7", "00"]))
    with pytest.raises(UrlError, match="no end to count from"):
        list(chosen(str(packed), at=["-1"]))


def test_the_bytes_of_a_field(shards):
    (sample,) = chosen(shards, at=["1"])
    assert raw_field(sample, "txt") == b"1"
    with pytest.raises(MissingField, match=r'no field "jpg"; it has cls, txt'):
        raw_field(sample, "jpg")
    with pytest.raises(MissingField):
        raw_field(sample, "__key__")


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def test_what_is_in_a_field():
    stream = io.BytesIO()
    Image.new("L", (3, 2)).save(stream, "PNG")
    assert content("seg.png", stream.getvalue()) == "PNG image, 3x2, L"
    assert content("txt", "é\nx".encode()) == "é\nx"
    assert content("cls", b"") == ""
    assert content("json", b'{"a":[1]}') == '{\n  "a": [\n    1\n  ]\n}'
    assert content("npy", npy(np.arange(6.0).reshape(2, 3))) == "float64 array, 2x3, from 0 to 5, mean 2.5"
    assert content("npy", npy(np.array("x"))) == "<U1 array, one value"
    assert content("bin", bytes(40)) == f"40 bytes, {'00 ' * 32}…"
    assert content("txt", b"x" * 5000).endswith("… (5000 letters)")


def test_what_a_terminal_must_not_see():
    assert content("txt", b"a\x1b[31m\rb") == "a\\x1b[31m\\rb"
    assert content("json", b'"\\ud800\\u009b"') == '"\\ud800\\x9b"'
    assert visible("a\nb\udc80é") == "a\\nb\\udc80é"


@pytest.mark.parametrize("field", ["png", "jpg", "json", "npy", "npz"])
def test_fields_that_are_damaged(field):
    assert content(field, b"\x89PNG damaged").startswith(f"12 bytes that are no {field}: ")
