"""Show samples through `tarmac.show`."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import tarmac
from harness.shards import plain
from tarmac.errors import MissingField, UsageError
from tarmac.tools.show.describe import describe


@pytest.fixture
def shards(tmp_path):
    urls = []
    for shard in range(2):
        files = [(f"{shard}{n:02d}.{name}", b"%d" % n) for n in range(3) for name in ("cls", "txt")]
        urls.append(str(tmp_path / f"s{shard}.tar"))
        (tmp_path / f"s{shard}.tar").write_bytes(plain(files))
    return urls


def keys(samples):
    return [sample.key for sample in samples]


def test_samples_have_key_url_and_fields(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    first, *others = tarmac.show(path)
    assert (first.key, first.url, first.sizes) == ("s0", str(path), {"cls": 1, "txt": 17})
    assert len(others) == 2
    assert keys(tarmac.show(path, 1)) == ["s0"]
    assert keys(tarmac.show(path, 0)) == []
    assert next(iter(tarmac.read(path))) == first.to_sample()
    assert "s0" in repr(first)
    with pytest.raises(UsageError, match="`n`"):
        tarmac.show(path, -1)


def test_selections(shards):
    assert keys(tarmac.show(shards)) == ["000", "001", "002", "100", "101", "102"]
    assert keys(tarmac.show(shards, 2)) == ["000", "001"]
    assert keys(tarmac.show(shards, where="cls >= 1", slice=slice(1, None))) == ["002", "101", "102"]
    assert keys(tarmac.show(shards, slice=slice(-1, None))) == ["102"]
    assert keys(tarmac.show(shards, slice_shard=slice(-1, None))) == ["002", "102"]
    assert keys(tarmac.show(shards, keys=["101", "000"])) == ["000", "101"]
    assert keys(tarmac.show(shards, where="cls = 7")) == []
    assert next(tarmac.show(shards, fields=["cls"])).sizes == {"cls": 1}


def test_samples_by_number_and_key(shards, tmp_path):
    assert keys(tarmac.show(shards, at=[-1, 1, "101", "000"])) == ["102", "001", "101", "000"]
    assert keys(tarmac.show(shards, at=[0], where="cls = 2")) == ["002"]
    for unknown in ("0000", 100, -7):
        with pytest.raises(UsageError, match=f"`at`.* {unknown!r}"):
            list(tarmac.show(shards, at=[unknown]))
    assert keys(tarmac.show(shards, at=["100"], fields=["txt"])) == ["100"]


def test_samples_of_a_manifest_use_its_indexes(shards, tmp_path):
    manifest = tmp_path / "all.json"
    tarmac.index(shards, manifest, sidecars=str(tmp_path / "indexes"))
    assert keys(tarmac.show(manifest, at=[-1, "001"])) == ["102", "001"]
    assert keys(tarmac.show(tarmac.read_manifest(str(manifest)))) == keys(tarmac.show(shards))


def test_samples_of_a_stream(tmp_path, shards):
    packed = tmp_path / "x.tar.gz"
    packed.write_bytes(gzip.compress((tmp_path / "s1.tar").read_bytes()))
    assert keys(tarmac.show(packed, at=[2, "100"])) == ["100", "102"]
    with pytest.raises(UsageError, match=r"`at`: .*\b7, .*'00'"):
        list(tarmac.show(packed, at=[7, "00"]))
    with pytest.raises(UsageError, match="`at`"):
        list(tarmac.show(packed, at=[-1]))


def test_the_bytes_of_a_field(shards):
    (sample,) = tarmac.show(shards, at=[1])
    assert sample.field("txt") == b"1"
    for name in ("jpg", "__key__"):
        with pytest.raises(MissingField, match=f'"{name}"'):
            sample.field(name)


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def test_descriptions():
    stream = io.BytesIO()
    Image.new("L", (3, 2)).save(stream, "PNG")
    assert describe("seg.png", stream.getvalue()) == "PNG image, 3x2, L"
    assert describe("txt", "é\nx".encode()) == "é\nx"
    assert describe("cls", b"") == ""
    assert describe("json", b'{"a":[1]}') == '{\n  "a": [\n    1\n  ]\n}'
    assert describe("npy", npy(np.arange(6.0).reshape(2, 3))) == "float64 array, 2x3, from 0 to 5, mean 2.5"
    assert describe("npy", npy(np.array("x"))) == "<U1 array, scalar"
    assert describe("bin", bytes(40)) == f"40 bytes, {'00 ' * 32}…"
    assert describe("txt", b"x" * 5000).endswith("… (5000 characters)")


def test_descriptions_escape_control_characters():
    assert describe("txt", b"a\x1b[31m\rb") == "a\\x1b[31m\\rb"
    assert describe("json", b'"\\ud800\\u009b"') == '"\\ud800\\x9b"'


@pytest.mark.parametrize("field", ["png", "jpg", "json", "npy", "npz"])
def test_descriptions_of_damaged_fields(field):
    assert describe(field, b"\x89PNG damaged").startswith(f"12 bytes, invalid {field}: ")


def test_a_listing_imports_no_heavy_library(shards):
    """Listing a small shard takes less time than importing numpy and pyarrow."""
    program = "import sys, tarmac; next(tarmac.show(sys.argv[1], 1)); print({'numpy', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program, shards[0]], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_samples_are_written_to_files(tmp_path):
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "PNG")
    with tarmac.TarWriter(str(tmp_path / "a.tar")) as writer:
        for key in "abc":
            writer.write({"__key__": key, "png": stream.getvalue(), "txt": key})
    source = str(tmp_path / "a.tar")
    assert tarmac.show(source, 2).extract(str(tmp_path / "out")) == (2, 4)
    assert (tmp_path / "out" / "b.txt").read_text() == "b"
    assert tarmac.show(source).write_sheet(str(tmp_path / "a.png"), 2) == 2
    with Image.open(tmp_path / "a.png") as page:
        assert page.format == "PNG"
