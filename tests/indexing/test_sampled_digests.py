"""An index matches its shard after any kind of copy, and no other shard."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness.datasets import archives, items, write_shards
from harness.faultserver import FaultServer
from harness.servers import required, seaweed_s3
from harness.shards import header_offsets, plain
from tarmac import index
from tarmac.errors import ArchiveError, IndexStale, SampleError
from tarmac.indexing import sampled_digests
from tarmac.indexing.sampled_digests import MEMBERS, SampledDigest, parse_digests, sampled_spans
from tarmac.indexing.sidecar import open_sidecar
from tarmac.storage import StorageOptions, open_read, open_write, stat
from tarmac.tools.index import stale_shards

COPIES = {
    "cp -r": 'cp -r "$1" "$2"',
    "cp -a": 'cp -a "$1" "$2"',
    "mv": 'cp -a "$1" "$2.x" && mv "$2.x" "$2"',
    "tar": 'mkdir "$2" && tar -C "$1" -cf - . | tar -C "$2" -xf -',
    "tar without times": 'mkdir "$2" && tar -C "$1" -cf - . | tar -C "$2" -xmf -',
    "symbolic links into a store": 'cp -r "$1" "$2.objects" && cp -rs "$2.objects" "$2"',
    "cat": 'mkdir "$2" && for f in "$1"/*; do cat "$f" > "$2/${f##*/}"; done',
}


@pytest.fixture
def folder(tmp_path):
    """Shards with digests and columns, and their manifest."""
    folder = tmp_path / "a"
    folder.mkdir()
    urls = write_shards(folder, [40, 3, 1], size=7000, index=False)
    index(urls, str(folder / "train.json"), digests=True, meta=["cls"])
    return folder


def contents(samples):
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in samples]


@pytest.mark.parametrize("how", COPIES)
def test_an_index_survives_every_kind_of_copy(folder, tmp_path, how):
    copy = tmp_path / "b"
    subprocess.run(["sh", "-c", COPIES[how], "sh", folder, copy], check=True)
    before = {path.name: path.read_bytes() for path in copy.glob("*.arrow")}
    for source in (copy / "train.json", str(copy / "*.tar")):
        ds = tarmac.Dataset(source, verify=True)
        assert contents(ds) == contents(tarmac.Dataset(folder / "train.json"))
        assert len(ds.where("cls >= 40")) == 4
    assert list(stale_shards(str(copy / "train.json"))) == []
    assert {path.name: path.read_bytes() for path in copy.glob("*.arrow")} == before


@pytest.fixture(scope="module")
def s3():
    with required(seaweed_s3()) as server:
        server.make_bucket("one")
        server.make_bucket("two")
        yield server


def carry(source, target, storage):
    sink = open_write(target, storage)
    with open_read(source, storage) as opened:
        while chunk := opened.read(1 << 20):
            sink.write(chunk)
    sink.commit()


def test_an_index_survives_buckets(folder, tmp_path, s3):
    storage = StorageOptions(config=s3.config(), backoff=0.01, retries=3)
    expected = contents(tarmac.Dataset(folder / "train.json"))
    names = sorted(path.name for path in folder.iterdir())
    back = tmp_path / "back"
    back.mkdir()
    for source, target in (
        (str(folder), "s3://one/d"),  # uploaded
        ("s3://one/d", "s3://two/d"),  # copied to another bucket
        ("s3://two/d", str(back)),  # downloaded
    ):
        for name in names:
            carry(f"{source}/{name}", f"{target}/{name}", storage)
        ds = tarmac.Dataset(f"{target}/train.json", storage=storage, verify=True)
        assert contents(ds) == expected
        assert len(ds.where("cls >= 40")) == 4
    # An index built in the store, too, where versions are ETags.
    index("s3://two/d/*.tar", "s3://two/d/train.json", storage=storage, drop=True)
    for name in names:
        carry(f"s3://two/d/{name}", str(back / name), storage)
    assert contents(tarmac.Dataset(back / "train.json")) == expected
    # Another shard of the same size is rejected in every location.
    shard = (folder / "s000.tar").read_bytes()
    (tmp_path / "other.tar").write_bytes(shard.replace(b"00039.txt", b"0003x.txt"))
    carry(str(tmp_path / "other.tar"), "s3://one/d/s000.tar", storage)
    carry("s3://one/d/s000.tar", str(back / "s000.tar"), storage)
    for directory in ("s3://one/d", str(back)):
        with pytest.raises(IndexStale, match=r"s00[01]\.tar"):
            _ = tarmac.Dataset(f"{directory}/train.json", storage=storage)[0]


def test_few_requests_compare_a_remote_copy(folder):
    data = (folder / "s000.tar").read_bytes()
    sidecar = open_sidecar(str(folder / "s000.tar.arrow"))
    assert len(sidecar.facts.sampled_digests) > sampled_digests.REMOTE
    with FaultServer(data) as server:
        info = stat(server.url)
        server.clear()
        sidecar.check_shard(info, server.url)
        assert len(server.requests) == sampled_digests.REMOTE
        server.clear()
        sidecar.check_shard(info, server.url, content=data)
        assert server.requests == []


@settings(max_examples=60, deadline=None)
@given(data=archives(), draw=st.data())
def test_a_changed_header_is_stale_or_the_data_is_right(tmp_path_factory, data, draw):
    """Change any byte of any header, append, cut, or put another shard of the same size in its place."""
    folder = tmp_path_factory.mktemp("changed")
    shard = folder / "a.tar"
    shard.write_bytes(data)
    try:
        manifest = str(folder / "m.json")
        index(str(shard), manifest)
    except SampleError:
        return
    headers = [offset for start in header_offsets(data) for offset in range(start, start + 512)]
    kind = draw.draw(st.sampled_from(["flip", "append", "cut", "reverse"]))
    changed = bytearray(data)
    if kind == "flip" and headers:
        changed[draw.draw(st.sampled_from(headers))] ^= draw.draw(st.integers(1, 255))
    elif kind == "append":
        changed += bytes(draw.draw(st.integers(1, 1024)))
    elif kind == "cut":
        del changed[-draw.draw(st.integers(1, len(changed) - 1)) :]
    else:
        changed.reverse()
    shard.write_bytes(changed)
    os.utime(shard, ns=(1, 1))
    try:
        samples = items(tarmac.Dataset(manifest))
    except IndexStale:
        return
    try:
        assert samples == items(tarmac.read(str(shard)))
    except ArchiveError:
        pytest.fail("a damaged shard was accepted")


def test_a_large_shard_is_recognised_by_headers_and_payload_throughout(tmp_path):
    path, size = tmp_path / "a.tar", 9000
    samples = [(f"{number:03d}.txt", b"%03d" % number * (size // 3)) for number in range(400)]
    data = plain(samples)
    path.write_bytes(data)
    index(str(path), str(tmp_path / "m.json"))
    sampled = open_sidecar(f"{path}.arrow").facts.sampled_digests
    assert len(sampled) >= MEMBERS
    assert sum(stop - start for start, stop, _ in sampled) <= (MEMBERS + 2) * 2 * sampled_digests.AROUND
    for shift in (1, 200):  # other keys for the same payload, other payload for the same keys
        others = [
            (f"{(number + shift) % 400:03d}.txt", content) for number, (_, content) in enumerate(samples)
        ]
        swapped = [(name, samples[(n + shift) % 400][1]) for n, (name, _) in enumerate(samples)]
        for changed in (plain(others), plain(swapped)):
            assert len(changed) == len(data)
            path.write_bytes(changed)
            os.utime(path, ns=(shift, shift))
            with pytest.raises(IndexStale, match=r"a\.tar: .*byte \d"):
                _ = tarmac.Dataset(tmp_path / "m.json")[0]


def test_an_unchanged_shard_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(sampled_digests, "_digests", None)
    assert len(tarmac.Dataset(str(folder / "*.tar"))[0]) == 4
    assert len(list(tarmac.Dataset(folder / "train.json"))) == 44


class Quiet(SimpleHTTPRequestHandler):
    """A server without ranges and ETags."""

    def log_message(self, *_):
        pass


def test_a_server_without_ranges_and_a_cached_copy(folder, tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/s001.tar"
        manifest = index(url, sidecars=str(tmp_path / "idx")).manifest
        sidecar = manifest.shards[0].index
        assert open_sidecar(sidecar).facts.sampled_digests == ()
        shutil.copy(folder / "s001.tar.arrow", sidecar)
        shards = contents(tarmac.Dataset(folder / "train.json"))[40:43]
        cached = {"cache": tarmac.Cache(str(tmp_path / "cache"))}
        assert contents(tarmac.Dataset(manifest, **cached)) == shards
        shard = folder / "s001.tar"
        shard.write_bytes(shard.read_bytes().replace(b"00042.txt", b"0004x.txt"))
        for options in ({"cache": tarmac.Cache(str(tmp_path / "other"))}, {"in_memory": True}):
            with pytest.raises(IndexStale, match=r"s00[01]\.tar"):
                list(tarmac.Dataset(manifest, **options))
        server.shutdown()


@given(
    st.lists(st.integers(0, 1 << 40), max_size=100).map(sorted),
    st.integers(0, 1 << 41),
)
@settings(deadline=None)
def test_spans_are_disjoint_and_inside_the_shard(offsets, size):
    spans = sampled_spans(offsets, size)
    assert all(0 <= start < stop <= size for start, stop in spans)
    assert all(one[1] < two[0] for one, two in itertools.pairwise(spans))
    assert bool(spans) == bool(size)
    assert not size or (spans[0][0], spans[-1][1]) == (0, size)


@pytest.mark.parametrize(
    "wrong",
    [None, {}, 3, [3], [[1, 2]], [[0, 9, "x"]], [[-1, 2, "x"]], [[2, 2, "x"]], [[0.0, 1, "x"]], [[0, 1, 7]],
     [[0, True, "x"]], [[0, 1, "x"]] * 2000],
)  # fmt: skip
def test_invalid_sampled_digests(wrong):
    with pytest.raises((ValueError, TypeError)):
        parse_digests(wrong, 8)
    assert parse_digests([[0, 8, "x"]], 8) == (SampledDigest(0, 8, "x"),)
    with pytest.raises(ValueError, match="cover"):
        parse_digests([[0, 1 << 40, "x"]], 1 << 40)
