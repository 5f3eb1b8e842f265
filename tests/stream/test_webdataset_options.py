"""The options of WebDataset take effect where shards are read: in this process, in workers, and through a cache."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

import tarmac
import tarmac.webdataset as wds
from harness.faultserver import FaultServer
from harness.shards import plain
from tarmac.errors import LimitExceeded, Truncated, UsageError

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::tarmac.errors.TruncatedTail"),
]

DOTTED = plain([(f"v1.{n}.cls", b"%d" % n) for n in range(6)])
WAYS = ["direct", "workers", "cache"]


@pytest.fixture(params=WAYS)
def read(request, tmp_path):
    """Return a function that reads samples in one of the ways."""

    def read(url, **options):
        if request.param == "cache":
            options["cache_dir"] = tmp_path / "cache"
        dataset = tarmac.WebDataset(url, **options)
        if request.param == "workers":
            return list(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork"))
        return list(dataset)

    return read


def shard(tmp_path, content):
    path = tmp_path / "x.tar"
    path.write_bytes(content)
    return str(path)


def fields(samples):
    return sorted((sample["__key__"], name) for sample in samples for name in sample if name[:2] != "__")


def test_tar(read, tmp_path):
    url = shard(tmp_path, plain()[:-1024])
    with pytest.raises(Truncated):
        read(url)
    samples = read(url, tar=tarmac.TarOptions(end="lenient"))
    assert sorted(sample["__key__"] for sample in samples) == ["s0", "s1", "s2"]


def test_limits(read, tmp_path):
    url = shard(tmp_path, plain([("a.txt", b"x" * 100)]))
    assert len(read(url, empty_check=False)) == 1
    with pytest.raises(LimitExceeded):
        read(url, limits=tarmac.Limits(member_bytes=99))
    with pytest.raises(LimitExceeded):
        read(url, limits=tarmac.Limits(member_bytes=99), tar=tarmac.TarOptions(end="lenient"))


def test_storage(read):
    with FaultServer(DOTTED) as server:
        read(server.url, split_name=tarmac.last_dot, storage=tarmac.StorageOptions(headers={"X-Token": "t"}))
        assert {request.headers.get("x-token") for request in server.requests} == {"t"}


def test_split_name(read, tmp_path):
    url = shard(tmp_path, DOTTED)
    assert fields(read(url, empty_check=False)) == [("v1", f"{n}.cls") for n in range(6)]
    assert fields(read(url, split_name=tarmac.last_dot)) == [(f"v1.{n}", "cls") for n in range(6)]


def test_equal_batches_count_by_split_name(tmp_path):
    dataset = tarmac.WebDataset(shard(tmp_path, DOTTED), split_name=tarmac.last_dot).listed(2)
    assert [len(batch) for batch in dataset.with_equal_batches()] == [2, 2, 2]


def test_equal_batches_count_selected_and_complete_samples(tmp_path):
    """Both were counted as if every file was read, strictly."""
    options = {"split_name": tarmac.last_dot, "tar": tarmac.TarOptions(end="lenient")}
    all_but_one = tarmac.WebDataset(
        shard(tmp_path, DOTTED), select_files=lambda name: name != "v1.0.cls", **options
    )
    batches = list(all_but_one.listed(2).with_equal_batches(tail="drop"))
    assert fields(sample for batch in batches for sample in batch) == [
        (f"v1.{n}", "cls") for n in range(1, 5)
    ]
    cut = (
        tarmac.WebDataset(shard(tmp_path, DOTTED[:-1024]), **options)
        .listed(2)
        .with_equal_batches(tail="drop")
    )
    with pytest.warns(tarmac.errors.TruncatedTail):
        assert len(list(cut)) == 3


def test_limits_of_shard_lists(tmp_path):
    for urls in ("x-{0..9}.tar", {"datasets": [{"shards": "x-{0..9}.tar"}]}):
        with pytest.raises(tarmac.errors.TooManyShards):
            tarmac.WebDataset(urls, limits=tarmac.Limits(shards=9))
    with pytest.raises(tarmac.errors.TooManyShards):
        tarmac.WebDataset("x-{0..9}.tar", resampled=True, limits=tarmac.Limits(shards=9))


def test_storage_of_shard_lists():
    with FaultServer(b"http://x/a.tar\n") as server:
        options = tarmac.StorageOptions(headers={"X-Token": "t"})
        assert tarmac.WebDataset(f"@{server.url}", storage=options).pipeline[0].urls == ["http://x/a.tar"]
        assert {request.headers.get("x-token") for request in server.requests} == {"t"}


def test_limits_of_decoding(tmp_path):
    import io

    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (10, 10)).save(stream, "PNG")
    url = shard(tmp_path, plain([("a.png", stream.getvalue())]))
    limits = tarmac.Limits(pixels=99)
    with pytest.raises(tarmac.errors.DecodeFailed, match="a"):
        list(tarmac.WebDataset(url, limits=limits).decode("rgb8"))
    assert len(list(tarmac.WebDataset(url, limits=limits).decode("rgb8", limits=tarmac.Limits()))) == 1


def test_cache(tmp_path):
    with FaultServer(DOTTED) as server:
        cache = tarmac.Cache(tmp_path / "cache")
        for _ in range(2):
            assert len(list(tarmac.WebDataset(server.url, cache=cache))) == 1
        assert sum(request.method == "GET" for request in server.requests) == 1
    with pytest.raises(UsageError, match="cache_dir"):
        tarmac.WebDataset("x.tar", cache=cache, cache_dir=tmp_path)


def test_repr():
    dataset = tarmac.WebDataset("http://u:secret@x/{0..9}.tar", shardshuffle=True).shuffle(100).batched(4)
    assert repr(dataset.with_epoch(50)) == (
        "WebDataset(10 shards | PermuteShards | single_node_only | split_by_worker | ShardShuffle "
        "| TarSamples | check_empty | Shuffle(bufsize=100) | Batched(batchsize=4), epoch of 50 items)"
    )
    assert "1 shard, resampled" in repr(tarmac.WebDataset("http://x/a.tar", resampled=True))
    assert (
        repr(tarmac.DataPipeline(range(3), tuple).repeat(2))
        == "DataPipeline(range | tuple, repeated 2 times)"
    )
    assert repr(tarmac.DataPipeline(tarmac.DataPipeline(range(3)))) == "DataPipeline(DataPipeline(range))"


def test_repr_of_loaders_and_mixtures():
    dataset = tarmac.DataPipeline(range(3))
    loader = tarmac.WebLoader(dataset, batch_size=None).shuffle(5)
    assert repr(loader) == "WebLoader(LoaderSource(DataPipeline(range), num_workers=0) | Shuffle(bufsize=5))"
    mix = tarmac.DataPipeline(wds.RoundRobin([dataset, dataset], longest=True))
    assert repr(mix) == "DataPipeline(RoundRobin(DataPipeline(range), DataPipeline(range), longest=True))"


def test_html():
    dataset = tarmac.WebDataset("http://u:secret@x/<{0..9}>.tar").batched(4)
    table = dataset._repr_html_()
    assert "<td>10 shards: http://" in table
    assert "secret" not in table
    assert "&lt;9&gt;.tar" in table
    assert table.count("<tr>") == len(dataset.pipeline)
