"""Every row of the table of differences in docs/pipelines.md is tested, here or close to the code."""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import webdataset as real

import tarmac
import tarmac.compat.wids as wids
import tarmac.webdataset as wds
from harness.shards import plain
from tarmac.errors import BadName, DecompressionBomb, EncodeFailed, NotATar, UnsupportedScheme

ROOT = Path(__file__).parents[2]
ROWS = {}
"""The tests of this file, by the first cell of their row."""
ELSEWHERE = {
    "shard order with `shardshuffle`": "stream/test_webdataset.py::test_shard_shuffle_differs_by_epoch_and_not_by_run",
    "order without a seed": "stream/test_webdataset.py::test_shard_shuffle_differs_by_epoch_and_not_by_run",
    "`shuffle(seed=…)`, `SimpleShardList(seed=…)`": (
        "stream/test_shuffle.py::test_issue_172_each_epoch_has_another_order"
    ),
    "`resampled=True, seed=…`": "compat/test_seeds.py::test_resampled_datasets_use_their_seed",
    "`WDS_SEED=7`": "stream/test_webdataset.py::test_seed_from_the_environment",
    "a `DirectoryShardList` that was left": (
        "stream/test_directory.py::test_the_path_of_a_dropped_iterator_stays_until_the_next_is_taken"
    ),
    "`SimpleShardList(urls, seed=…)`; `shuffle(…, seed=…)`; `WebDataset(…, shardshuffle=…, seed=…)`": (
        "compat/test_seeds.py::test_shardshuffle"
    ),
    "`detshuffle(…)`, with any `epoch`": "compat/test_seeds.py::test_detshuffle_in_every_epoch",
    "`ResampledShards(…, deterministic=True)`, with any `worker_seed` that is a number": (
        "compat/test_seeds.py::test_resampled_shards"
    ),
    "`shuffle(…, rng=…)`; `wds.utils.make_seed` of numbers": "compat/test_seeds.py::test_make_seed",
    "fewer shards than workers": "stream/test_split.py::test_issue_72_more_workers_than_shards",
    "a truncated shard or pipe": (
        "compat/test_regressions.py::test_issue_473_a_pipe_that_ends_between_members_is_an_error"
    ),
    "the sample at the truncation": (
        "compat/test_regressions.py::test_issue_432_no_half_sample_in_a_truncated_shard"
    ),
    "samples whose members are not contiguous": (
        "stream/test_non_contiguous.py::test_a_local_shard_yields_contiguous_samples_only"
    ),
    "hard links": "tar/test_links.py",
    "a shard without its end-of-archive marker; archives joined with `cat`": (
        "stream/test_non_contiguous.py::test_tar_options_of_every_reader"
    ),
    "dropped samples": "compat/test_regressions.py::test_warnings_do_not_sleep",
    "a writer that is never closed": "storage/test_unclosed.py",
    "pickles in shards, also in `pth` and `npy`": "compat/test_drop_in.py::test_a_variable_allows_pickles",
    "cached shards": ("compat/test_regressions.py::test_url_to_name_and_home_directories_have_an_effect"),
    "samples cached in memory": (
        "compat/test_regressions.py::test_cached_samples_are_not_changed_by_later_stages"
    ),
    "`batched(n)`": "stream/test_batch.py::test_batches_come_when_they_are_full",
    "`with_epoch`, `repeat`, `with_length`": (
        "compat/test_regressions.py::test_issue_361_pipelines_with_lengths_are_picklable"
    ),
    "`repeat=`, `verbose=`, `listed(partial=)`, `TarWriter(format=)`, `select(handler=)`": (
        "compat/test_regressions.py::test_handlers_of_every_stage_that_takes_one"
    ),
    "`s3://`": "storage/test_objects.py::test_s3_from_the_environment",
    "`GOPEN_REWRITE`": "storage/test_rewriting.py",
    "secure mode": "compat/test_secure_mode.py::test_what_only_tarmac_rejects",
    "`MultiLoader`": "compat/test_webdataset_multi.py",
    "`verbose=` of `ShardWriter`, `GOPEN_VERBOSE`": (
        "compat/test_drop_in.py::test_verbose_writers_name_their_shards"
    ),
}


def row(first_cell):
    def register(test):
        ROWS[first_cell] = test
        return test

    return register


def table():
    """Return the first cell of each row of the table of differences."""
    section = (
        (ROOT / "docs" / "pipelines.md").read_text().partition("## Coming from the webdataset library")[2]
    )
    return re.findall(r"^\| ([^|].*?) \| .* \|$", section, re.MULTILINE)


def test_every_row_is_tested():
    assert len(table()) > 35
    assert set(table()) <= {*ROWS, *ELSEWHERE}
    for test in ELSEWHERE.values():
        file, _, name = test.partition("::")
        path = ROOT / "tests" / file
        assert path.exists(), test
        assert not name or f"def {name}" in path.read_text(), test


@pytest.fixture(autouse=True)
def in_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.tar").write_bytes(plain([("a.txt", b"1")]))


def write(**fields):
    with wds.TarWriter(io.BytesIO()) as shard:
        shard.write({"__key__": "a", **fields})


@row("`map` to a dictionary")
def test_map_may_set_a_key():
    dataset = wds.WebDataset("x.tar", shardshuffle=False).map(lambda sample: {"__key__": "new"})
    assert list(dataset) == [{"__key__": "new"}]


@row("`dataset.pipeline`")
def test_stages():
    ours, theirs = (library.WebDataset("x.tar", shardshuffle=False).pipeline for library in (wds, real))
    assert (len(ours), len(theirs)) == (5, 8)
    assert ours[1:3] == [wds.single_node_only, wds.split_by_worker]
    assert len(wds.WebDataset("x.tar", shardshuffle=10).pipeline) == 7


@row("floats and booleans in `cls`, NaN in `json`, boolean masks in `png`")
@pytest.mark.parametrize(
    "fields", [{"cls": 1.5}, {"cls": True}, {"json": float("nan")}, {"png": np.ones((2, 2), bool)}]
)
def test_values_that_are_not_written(fields):
    with pytest.raises(EncodeFailed, match='"a"'):
        write(**fields)


@row("keys with dots in their last part")
def test_keys_with_dots():
    with pytest.raises(BadName):
        write(__key__="a.b", txt="x")
    with wds.TarWriter("dots.tar", split_name=tarmac.last_dot) as shard:
        shard.write({"__key__": "a.b", "txt": "x"})
    dataset = wds.WebDataset("dots.tar", shardshuffle=False, split_name=tarmac.last_dot)
    assert [sample["__key__"] for sample in dataset] == ["a.b"]


@row("images of more than 64 megapixels")
def test_large_images():
    stream = io.BytesIO()
    PIL.Image.new("1", (8200, 8200)).save(stream, "PNG")
    Path("large.tar").write_bytes(plain([("a.png", stream.getvalue())]))
    dataset = wds.WebDataset("large.tar", shardshuffle=False)
    with pytest.raises(DecompressionBomb):
        list(dataset.decode("pil"))
    limits = tarmac.Limits(pixels=10**8)
    assert next(iter(dataset.decode("pil", limits=limits)))["png"].size == (8200, 8200)


@row("writers")
def test_writers():
    with wds.ShardWriter("y-%d.tar", verbose=0) as shards:
        shards.write({"__key__": "a", "txt": "x"})
    assert (shards.count, shards.size) == (1, 1)
    assert not hasattr(wds.TarWriter(io.BytesIO()), "tarstream")


@row("unbalanced or escaped braces in patterns")
def test_braces():
    assert wds.SimpleShardList("x-{0..3.tar").urls == ["x-{0..3.tar"]
    assert wds.shardlists.expand_urls(r"x-\{0,1\}.tar") == [r"x-\{0,1\}.tar"]


@row("a name that begins with `@`")
def test_lists():
    Path("list.txt").write_text("x.tar\n")
    assert len(list(wds.WebDataset("@list.txt", shardshuffle=False))) == 1


@row("shards that the other library has cached")
def test_cache_directories(tmp_path):
    url = f"pipe:cat {tmp_path}/x.tar"
    Path("cache").mkdir()
    assert len(list(wds.WebDataset(url, shardshuffle=False, cache_dir="cache"))) == 1
    (entry,) = (path.name for path in Path("cache").iterdir() if path.is_file())
    assert entry != real.cache.url_to_cache_name(url)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@row("errors of shards in handlers")
@pytest.mark.parametrize("library", [real, wds])
def test_errors_end_with_a_url(library):
    Path("torn.tar").write_bytes(b"<html>" * 200)
    errors = []

    def handler(error):
        errors.append(error)
        return True

    with pytest.raises(ValueError):
        list(library.WebDataset("torn.tar", shardshuffle=False, handler=handler))
    (error,) = errors
    *_, stream, url = error.args
    assert (url, stream is None) == ("torn.tar", library is wds)
    if library is wds:
        assert (type(error), error.url) == (NotATar, "torn.tar")
        assert pickle.loads(pickle.dumps(error)).url == "torn.tar"


@row('`DecodingError("x.tar")`')
@pytest.mark.parametrize("library", [real, wds])
def test_decoding_errors_have_a_message(library):
    error = library.DecodingError(url="x.tar", key="a", k="cls", sample={})
    assert (error.url, error.key, error.k, error.sample) == ("x.tar", "a", "cls", {})
    error = library.DecodingError("x.tar")
    assert (error.url, str(error)) == (("x.tar", "x.tar") if library is real else (None, "x.tar"))


@row("`htgs://`, `GOPEN_BUFFER`")
def test_htgs():
    with pytest.raises(UnsupportedScheme):
        wds.gopen("htgs://bucket/x.tar")


@row("`import wids`")
def test_wids():
    assert not hasattr(wids.wids_dl, "default_cmds")
