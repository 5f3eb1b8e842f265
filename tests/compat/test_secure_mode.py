"""In secure mode, the functions of the webdataset library reject the same as there, with the same messages."""

from __future__ import annotations

import io
import pickle

import pytest
import torch
import webdataset as real

import tarmac
import tarmac.webdataset as wds
from harness.shards import plain
from tarmac.errors import UnsafeCodec, UnsafeUrl
from tarmac.storage import enforce_security

# The library does not close the files that it opens.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
libraries = pytest.mark.parametrize("library", [real, wds], ids=["webdataset", "tarmac"])
LOCAL = "gopen: unsafe_gopen is False, cannot open local files"
PIPE = "gopen_pipe: unsafe_gopen is False, cannot open pipe URLs"
REWRITE = "rewrite_url: unsafe_gopen is False, cannot rewrite URLs using environment variables"


def torch_file(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def secure(monkeypatch):
    monkeypatch.setattr(real.utils, "enforce_security", True)
    enforce_security()
    yield
    enforce_security(False)


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(plain([("a.pyd", pickle.dumps(1)), ("a.pth", torch_file(torch.ones(2)))]))
    return str(path)


def composed(library, url):
    return library.DataPipeline(library.SimpleShardList(url), library.tarfile_to_samples())


@libraries
def test_local_files(library, shard, tmp_path):
    for open_local in (
        lambda: library.gopen(shard),
        lambda: library.gopen(f"file:{shard}"),
        lambda: library.gopen(str(tmp_path / "y.tar"), "wb"),
        lambda: library.TarWriter(str(tmp_path / "y.tar")),
        lambda: library.ShardWriter(str(tmp_path / "y-%d.tar")),
        lambda: list(composed(library, shard)),
        lambda: list(library.tariterators.url_opener([{"url": shard}])),
    ):
        with pytest.raises(ValueError, match=LOCAL):
            open_local()
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar"]


@libraries
def test_local_shards_of_datasets_are_read(library, shard, tmp_path):
    assert len(list(library.WebDataset(shard, shardshuffle=False))) == 1
    assert len(list(library.WebDataset(shard, shardshuffle=False, cache_dir=str(tmp_path)))) == 1
    assert len(list(library.cache.StreamingOpen()([{"url": shard}]))) == 1


@libraries
def test_commands(library, tmp_path):
    for run in (
        lambda: library.gopen("pipe:true"),
        lambda: library.TarWriter("pipe:cat > /dev/null"),
        lambda: list(composed(library, "pipe:true")),
        lambda: list(library.WebDataset("pipe:true", shardshuffle=False)),
        lambda: list(library.cache.StreamingOpen()(["pipe:true"])),
        lambda: library.cache.FileCache(str(tmp_path)).get_file("pipe:true"),
    ):
        with pytest.raises(ValueError, match=PIPE):
            run()


@libraries
def test_rewriting(library, shard, monkeypatch):
    monkeypatch.setenv("GOPEN_REWRITE", "http://a=http://b")
    for url in (shard, "http://c/x.tar"):
        with pytest.raises(ValueError, match=REWRITE):
            library.gopen(url)
    with pytest.raises(ValueError, match=REWRITE):
        list(library.WebDataset("http://c/x.tar", shardshuffle=False))


@libraries
@pytest.mark.parametrize(
    ("field", "message"), [("pth", "torch.loads is not allowed"), ("pyd", "Unpickling is not")]
)
def test_fields(library, shard, field, message):
    dataset = library.WebDataset(shard, shardshuffle=False)
    with pytest.raises(library.DecodingError) as caught:
        list(dataset.decode(only=field))
    assert caught.value.k == field
    assert message in str(caught.value if library is wds else caught.value.__cause__)
    loads = {"pth": library.torch_loads, "pyd": library.autodecode.unpickle_loads}[field]
    with pytest.raises(ValueError, match=message):
        loads(b"")


def test_what_only_tarmac_rejects(shard):
    with pytest.raises(UnsafeUrl, match="command"):
        wds.gopen("sftp://host/x.tar")
    with pytest.raises(UnsafeCodec):
        wds.filters.decode_pickle(io.BytesIO(pickle.dumps(1)))


def test_the_doors_of_tarmac_read_local_files(shard, tmp_path):
    (sample,) = tarmac.WebDataset(shard, shardshuffle=False).decode(only="pth")
    assert sample["pth"].tolist() == [1, 1]
    with tarmac.TarWriter(tmp_path / "y.tar") as writer:
        writer.write({"__key__": "a", "txt": "x"})


def test_rules_end_with_the_mode(shard):
    dataset = wds.WebDataset(shard, shardshuffle=False).decode(only="pth")
    enforce_security(False)
    assert next(iter(dataset))["pth"].tolist() == [1, 1]
    enforce_security()
    with pytest.raises(wds.DecodingError):
        list(dataset)
