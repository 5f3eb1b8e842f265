"""tarmac and the webdataset library read each other's shards."""

from __future__ import annotations

import tarfile

import numpy as np
import pytest
import webdataset as wds

import tarmac.webdataset

# The webdataset library leaves shards open.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SAMPLES = [
    {
        "__key__": f"dir/{i:03d}",
        "txt": f"text {i} ü",
        "cls": i,
        "json": {"i": i, "nested": [1, {"a": None}]},
        "npy": np.arange(i, dtype="f4").reshape(1, -1),
        "npz": {"a": np.arange(i), "b": np.ones((2, 2))},
        "ten": [np.arange(i, dtype="i8"), np.ones((2, 3), "f4")],
        "mp": {"a": [1, 2]},
        "pyd": {"x": (1, 2)},
        "png": np.full((4, 5, 3), i, "uint8"),
        "seg.png": np.full((4, 5), i, "uint8"),
        "bin": bytes([i]) * i,
        "json.gz": {"z": i},
    }
    for i in range(12)
]


def decoded(path):
    # webdataset warns unless shardshuffle is given.
    return list(wds.WebDataset(str(path), shardshuffle=False).decode("rgb8"))


@pytest.mark.parametrize("format", ["auto", "ustar", "gnu", "pax"])
@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_webdataset_reads_shards_of_tarmac(tmp_path, format, suffix):
    path = tmp_path / f"a.{suffix}"
    with tarmac.TarWriter(path, format=format) as shard:
        for sample in SAMPLES:
            shard.write(sample)
    back = decoded(path)
    assert [sample["__key__"] for sample in back] == [sample["__key__"] for sample in SAMPLES]
    for ours, theirs in zip(SAMPLES, back, strict=True):
        assert theirs["txt"] == ours["txt"]
        assert theirs["cls"] == ours["cls"]
        assert theirs["json"] == ours["json"]
        assert theirs["json.gz"] == ours["json.gz"]
        assert theirs["mp"] == ours["mp"]
        assert theirs["pyd"] == ours["pyd"]
        assert theirs["bin"] == ours["bin"]
        assert (theirs["npy"] == ours["npy"]).all()
        assert all((theirs["npz"][name] == ours["npz"][name]).all() for name in ("a", "b"))
        assert all((a == b).all() for a, b in zip(theirs["ten"], ours["ten"], strict=True))
        assert (theirs["png"] == ours["png"]).all()


@pytest.mark.parametrize("compress", [False, "gz", "bz2", "xz"])
@pytest.mark.parametrize("mtime", [None, 0, 1.5])
def test_tarmac_reads_shards_of_webdataset(tmp_path, compress, mtime):
    path = str(tmp_path / "a.tar")
    with wds.TarWriter(path, compress=compress, mtime=mtime) as shard:
        for sample in SAMPLES:
            shard.write(sample)
    raw = list(wds.WebDataset(path, shardshuffle=False))
    ours = list(tarmac.read(path))
    drop = ("__url__", "__local_path__")
    assert [{k: v for k, v in s.items() if k not in drop} for s in ours] == [
        {k: v for k, v in s.items() if k not in drop} for s in raw
    ]


def test_plain_payload_bytes_are_equal(tmp_path):
    ours, theirs = tmp_path / "ours.tar", tmp_path / "theirs.tar"
    plain = [{k: s[k] for k in ("__key__", "txt", "cls", "json", "npy", "ten", "mp", "bin")} for s in SAMPLES]
    plain = [{**s, "json": {"i": s["cls"]}} for s in plain]
    for writer, path in ((tarmac.TarWriter, ours), (wds.TarWriter, theirs)):
        with writer(str(path)) as shard:
            for sample in plain:
                shard.write(sample)
    with tarfile.open(ours) as a, tarfile.open(theirs) as b:
        for mine, other in zip(a, b, strict=True):
            assert mine.name == other.name
            assert a.extractfile(mine).read() == b.extractfile(other).read(), mine.name
    assert ours.stat().st_size < theirs.stat().st_size * 0.7


def test_shard_writers_start_new_shards_alike(tmp_path):
    for writer, name in ((tarmac.webdataset.ShardWriter, "ours"), (wds.ShardWriter, "theirs")):
        with writer(str(tmp_path / f"{name}-%02d.tar"), maxcount=5, maxsize=10_000, verbose=0) as shards:
            for sample in SAMPLES:
                shards.write({"__key__": sample["__key__"], "txt": sample["txt"], "bin": bytes(3000)})
    counts = {
        name: [len(list(tarmac.read(path))) for path in sorted(tmp_path.glob(f"{name}-*.tar"))]
        for name in ("ours", "theirs")
    }
    assert counts["ours"] == counts["theirs"]
