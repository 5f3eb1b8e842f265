"""Index shards whose samples are not contiguous."""

from __future__ import annotations

import random
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness.datasets import SAMPLES
from harness.shards import members, plain
from tarmac.errors import DuplicateField, Truncated
from tarmac.exact.indexed import IndexedShard
from tarmac.indexing.build import IndexOptions, index_shard
from tarmac.indexing.meta import meta_plan
from tarmac.indexing.sidecar import read_sidecar
from tarmac.storage import open_read
from tarmac.tools.regroup import index_scattered


@settings(max_examples=60, derandomize=True, deadline=None)
@given(SAMPLES, st.integers(0, 99))
def test_any_order_of_the_files_gives_the_same_samples(tmp_path_factory, samples, seed):
    path = tmp_path_factory.mktemp("law") / "a.tar"
    files = [
        (tarfile.REGTYPE, f"{k}.{f}", data) for k, fields in samples.items() for f, data in fields.items()
    ]
    random.Random(seed).shuffle(files)
    path.write_bytes(members([*files, (tarfile.REGTYPE, "README", b"")], tarfile.GNU_FORMAT))
    sidecar = read_sidecar(index_scattered(str(path)), str(path))
    shard = IndexedShard(str(path), sidecar, open_read(str(path)), mapped=False)
    samples_read = {s.pop("__key__"): {k: v for k, v in s.items() if k != "__url__"} for s in shard}
    assert samples_read == {
        key: {f.lower(): data for f, data in fields.items()} for key, fields in samples.items()
    }
    firsts = dict.fromkeys(name.partition(".")[0] if name[:2] != "./" else name for _, name, _ in files)
    assert len(samples_read) == len(samples) <= len(firsts) or not samples


def test_of_a_shard_in_order_it_is_the_usual_index(tmp_path):
    path = str(tmp_path / "a.tar")
    with tarmac.TarWriter(path) as writer:
        for number in range(5):
            writer.write({"__key__": f"{number}", "cls": number, "txt": "x"})
    for options in (IndexOptions(), IndexOptions(digests=True)):
        assert index_scattered(path, options) == index_shard(path, options)


def test_metadata_and_errors(tmp_path):
    path = tmp_path / "a.tar"
    files = [("a.cls", b"1"), ("b.cls", b"2"), ("a.json", b'{"w": 3}'), ("b.txt", b"xyz")]
    path.write_bytes(plain(files))
    sidecar = read_sidecar(
        index_scattered(str(path), IndexOptions(meta=meta_plan(["cls", "json.w", "txt.size"]))), "a"
    )
    columns = [sidecar.column(name).to_pylist() for name in ("cls", "json.w", "txt.size")]
    assert columns == [[1, 2], [3, None], [None, 3]]
    path.write_bytes(plain([*files, ("a.CLS", b"9")]))
    with pytest.raises(DuplicateField) as caught:
        index_scattered(str(path))
    assert (caught.value.key, caught.value.url) == ("a", str(path))
    path.write_bytes(plain(files)[:-2000])
    with pytest.raises(Truncated):
        index_scattered(str(path))
