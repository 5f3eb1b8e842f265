"""Every row of the table of differences in docs/pipelines.md is tested, here or close to the code."""

from __future__ import annotations

import io
import os
import pickle
import random
import re
import tarfile
from itertools import islice
from operator import itemgetter
from pathlib import Path
from unittest import mock

import numpy as np
import PIL.Image
import pytest
import webdataset as real

import tarmac
import tarmac.compat.wids as wids
import tarmac.webdataset as wds
from harness.shards import plain
from tarmac.errors import (
    BadName,
    DecompressionBomb,
    EncodeFailed,
    NotATar,
    SplitSample,
    TrailingData,
    Truncated,
    UnsafeCodec,
    UnsafeUrl,
    UnsupportedScheme,
)

ROOT = Path(__file__).parents[2]
ROWS = {}
"""The tests of this file, by the first cell of their row."""
ELSEWHERE = {
    "order without a seed": "stream/test_webdataset.py::test_shard_shuffle_differs_by_epoch_and_not_by_run",
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
    "whole samples whose key occurs again in a shard": (
        "samples/test_repeated.py::test_samples_are_those_of_webdataset"
    ),
    "dropped samples": "compat/test_regressions.py::test_warnings_do_not_sleep",
    "a writer that is never closed": "storage/test_unclosed.py::test_unclosed_writers_are_published_with_a_warning",
    "cached shards": ("compat/test_regressions.py::test_url_to_name_and_home_directories_have_an_effect"),
    "`s3://`": "storage/test_objects.py::test_s3_from_the_environment",
    "secure mode": "compat/test_secure_mode.py::test_what_only_tarmac_rejects",
    "`MultiLoader`": "compat/test_webdataset_multi.py::test_a_worker_that_dies_raises_immediately",
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
    rows = table()
    assert len(rows) > 40
    assert len(set(rows)) == len(rows)
    assert set(rows) == {*ROWS, *BOTH, *ELSEWHERE}
    for test in ELSEWHERE.values():
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), test


@pytest.fixture(autouse=True)
def in_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.tar").write_bytes(plain([("a.txt", b"1")]))


def write(**fields):
    with wds.TarWriter(io.BytesIO()) as shard:
        shard.write({"__key__": "a", **fields})


def keys(dataset):
    return [sample["__key__"] for sample in dataset]


def fields(dataset):
    return [sorted(name for name in sample if name[0] != "_") for sample in dataset]


def read(library, path="many.tar", **options):
    return library.WebDataset(path, **{"shardshuffle": False, **options})


def skipping(library, path):
    return fields(read(library, path, handler=library.ignore_and_continue, empty_check=False))


def two_epochs(dataset):
    first, second = list(dataset), list(dataset)
    return first == second


def shuffled_shards(library):
    urls = [f"{number}" for number in range(20)]
    return library.DataPipeline(library.SimpleShardList(urls, seed=3))


def resampled_twice(library):
    urls = [f"{number}.tar" for number in range(20)]
    first, second = (read(library, urls, resampled=True, seed=3).stage(0) for _ in range(2))
    return [*islice(first, 20)] == [*islice(second, 20)]


def drawn_after_seed(library):
    def draw():
        random.seed(3)
        return list(library.rsample(0.5)(range(100)))

    first = draw()
    random.seed(4)
    other = list(library.rsample(0.5)(range(100)))
    return draw() == first != other


def read_for_first_batch(library):
    taken = []
    data = ((taken.append(number) or number,) for number in range(9))
    next(iter(library.DataPipeline(lambda: data, library.batched(4))))
    return len(taken)


def sample_counts(library):
    def count(sample):
        sample["n"] = sample.get("n", 0) + 1
        return sample

    dataset = read(library).mcached()
    list(dataset.map(count))
    return {sample["n"] for sample in dataset.map(count)}


def with_variables(**variables):
    return mock.patch.dict(os.environ, variables)


def second_worker(library):
    with with_variables(WORKER="1", NUM_WORKERS="2"):
        return keys(read(library))


def rewritten(library):
    with with_variables(GOPEN_REWRITE="http://x/=pipe:cat "), library.gopen("http://x/many.tar") as stream:
        return len(stream.read()) > 0


def seed_of_variable(library):
    with with_variables(WDS_SEED="7"):
        return read(library).seed


def assigned_workers(library):
    loader = library.WebLoader(read(library), batch_size=None)
    loader.pipeline[0].num_workers = 0
    return "assigned"


def shard_after_no_samples(library):
    with library.ShardWriter("s-%d.tar", verbose=0):
        pass
    return keys(read(library, "s-0.tar", empty_check=False))


BOTH = {
    "shard order with `shardshuffle`": (
        lambda lib: two_epochs(read(lib, "s-{0..9}.tar", shardshuffle=10, seed=3).map(itemgetter("__url__"))),
        True,
        False,
    ),
    "`shuffle(seed=…)`, `SimpleShardList(seed=…)`": (
        lambda lib: two_epochs(shuffled_shards(lib)),
        True,
        False,
    ),
    "`resampled=True, seed=…`": (resampled_twice, False, True),
    "`WDS_SEED=7`": (seed_of_variable, "7", 7),
    "`random.seed(…)`": (drawn_after_seed, True, False),
    "fewer shards than workers": (second_worker, ValueError, ["1", "3"]),
    "a truncated shard or pipe": (lambda lib: keys(read(lib, "between.tar")), ["0", "1"], Truncated),
    "the sample at the truncation": (lambda lib: skipping(lib, "within.tar"), [["cls"]], []),
    "samples whose members are not contiguous": (
        lambda lib: keys(read(lib, "split.tar")),
        ["a", "b", "a"],
        SplitSample,
    ),
    "hard links": (lambda lib: fields(read(lib, "link.tar")), [["txt"]], [["cls", "txt"]]),
    "a shard without its end-of-archive marker": (
        lambda lib: keys(read(lib, "no-end.tar")),
        ["a"],
        Truncated,
    ),
    "archives joined with `cat`": (lambda lib: keys(read(lib, "joined.tar")), ["a"], TrailingData),
    "samples cached in memory": (sample_counts, {2}, {1}),
    "`batched(n)`": (read_for_first_batch, 5, 4),
    "`map` to a dictionary": (
        lambda lib: keys(read(lib).map(lambda sample: {"__key__": "new"})),
        ["0", "1", "2", "3"],
        ["new"] * 4,
    ),
    "`with_epoch`, `repeat`, `with_length`": (
        lambda lib: (
            len(list(read(lib).repeat(1, 2))),
            len(pickle.loads(pickle.dumps(read(lib).with_length(3, silent=True)))),
        ),
        pickle.PicklingError,
        (2, 3),
    ),
    "`repeat=`, `verbose=`, `listed(partial=)`, `TarWriter(format=)`, `select(handler=)`": (
        lambda lib: (
            len(list(islice(read(lib, repeat=True), 10))),
            len(list(read(lib).listed(3, partial=False))),
        ),
        (4, 2),
        (10, 1),
    ),
    "pickles in shards, also in `pth`": (
        lambda lib: next(iter(read(lib, "pyd.tar").decode()))["pyd"],
        3,
        UnsafeCodec,
    ),
    "`GOPEN_REWRITE`": (rewritten, True, UnsafeUrl),
    "a `ShardWriter` without samples": (shard_after_no_samples, [], ["0"]),
    "the first stage of a `WebLoader`": (assigned_workers, "assigned", ValueError),
}
"""Rows that both libraries are compared by: a function of the library, and what it gives or raises in each."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.processes
@pytest.mark.parametrize("library", [real, wds], ids=["webdataset", "tarmac"])
@pytest.mark.parametrize("row", BOTH)
def test_both_libraries(row, library):
    archive = plain([("a.txt", b"1"), ("a.cls", b"1")])
    files = {
        "many": plain([(f"{i}.txt", b"1") for i in range(4)]),
        "between": plain([(f"{i}.txt", b"1") for i in range(4)])[:2048],
        "within": plain([("a.cls", b"1"), ("a.txt", b"x" * 2000)])[:2500],
        "split": plain([("a.txt", b"1"), ("b.txt", b"1"), ("a.cls", b"1")]),
        "no-end": archive[:2048],
        "pyd": plain([("a.pyd", pickle.dumps(3))]),
        **{f"s-{i}": plain([(f"{i}.txt", b"1")]) for i in range(10)},
        "joined": archive + plain([("b.txt", b"1")]),
    }
    for name, content in files.items():
        Path(f"{name}.tar").write_bytes(content)
    with tarfile.open("link.tar", "w") as shard:
        shard.addfile(tarfile.TarInfo("a.txt"))
        link = tarfile.TarInfo("a.cls")
        link.type, link.linkname = tarfile.LNKTYPE, "a.txt"
        shard.addfile(link)
    function, *expected = BOTH[row]
    result = expected[library is wds]
    if isinstance(result, type):
        with pytest.raises(result):
            function(library)
    else:
        assert function(library) == result


@row("`multi.reader`, `multi.EOF`, `tariterators.trace`, `utils.safe_eval`")
def test_internal_names():
    assert not {"EOF", "reader"} & set(vars(wds.multi))
    assert not hasattr(wds.tariterators, "trace")
    assert not hasattr(wds.utils, "safe_eval")


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
