"""Read samples from shards in separate steps, with custom steps in between."""

from __future__ import annotations

import io
import pickle

import pytest

from harness.shards import plain
from tarmac.compat.webdataset.tariterators import (
    base_plus_ext,
    group_by_keys,
    tar_file_expander,
    tar_file_iterator,
    url_opener,
    valid_sample,
)
from tarmac.errors import DuplicateField, SplitSample, TarmacError, Truncated
from tarmac.steps.handlers import ignore_and_continue, ignore_and_stop
from tarmac.steps.stage import pipelinefilter
from tarmac.stream.pipeline import DataPipeline
from tarmac.stream.webdataset import WebDataset

FILES = [(f"{i}.{field}", f"{i}{field}".encode()) for i in range(4) for field in ("cls", "TXT")]


@pytest.fixture
def shards(tmp_path):
    urls = []
    for name in "ab":
        path = tmp_path / f"{name}.tar"
        path.write_bytes(plain([(f"{name}{file}", data) for file, data in FILES]))
        urls.append({"url": str(path)})
    return urls


def samples(shards, handler=None, **kw):
    options = {} if handler is None else {"handler": handler}
    streams = url_opener(shards, **options)
    return group_by_keys(tar_file_expander(streams, **options), **options, **kw)


def keys(result):
    return [sample["__key__"] for sample in result]


def test_the_steps_yield_the_samples_of_the_dataset(shards):
    whole = list(WebDataset([shard["url"] for shard in shards], shardshuffle=False))
    result = list(samples(shards))
    assert [{**sample, "__local_path__": sample["__url__"]} for sample in result] == whole


def test_steps_in_a_pipeline_are_picklable(shards):
    expand = pipelinefilter(tar_file_expander)
    pipeline = DataPipeline(
        [pickle.loads(pickle.dumps(stage)) for stage in (url_opener, expand(), group_by_keys)]
    )
    pipeline.pipeline.insert(0, iter(shards))
    assert len(list(pipeline)) == 8


def test_names():
    assert base_plus_ext("a/b.c.jpg") == ("a/b", "c.jpg")
    assert base_plus_ext("a.b/c") == (None, None)
    assert valid_sample({"x": 1})
    assert not any(map(valid_sample, (None, {}, {"x": 1, "__bad__": True}, "x")))


def test_shards_that_cannot_be_opened(shards):
    missing = [shards[0], {"url": "/none/x.tar"}, shards[1]]
    with pytest.raises(FileNotFoundError):
        list(samples(missing))
    assert len(list(samples(missing, ignore_and_continue))) == 8
    assert len(list(samples(missing, ignore_and_stop))) == 4


def test_streams_are_closed_after_reading(shards):
    streams = []

    def opened():
        for shard in url_opener(shards):
            streams.append(shard["stream"])
            yield shard

    files = tar_file_expander(opened())
    next(files)
    files.close()
    list(tar_file_expander(opened()))
    assert len(streams) == 3
    assert all(stream.closed for stream in streams)


def test_a_stream_of_the_caller_stays_open():
    stream = io.BytesIO(plain([("a.txt", b"1")]))
    assert [file.get("fname") for file in tar_file_expander([{"url": "x", "stream": stream}])] == [
        "a.txt",
        None,
    ]
    assert not stream.closed


def test_selecting_and_renaming(shards):
    def rename(name):
        return name.lower().replace("txt", "text")

    streams = url_opener(shards[:1])
    files = tar_file_expander(streams, select_files=lambda name: name.endswith("text"), rename_files=rename)
    assert [sorted(sample) for sample in group_by_keys(files)] == [["__key__", "__url__", "text"]] * 4

    def bad(name):
        raise KeyError(name)

    assert list(tar_file_expander(url_opener(shards), bad_handler, select_files=bad, eof_value=None)) == []
    assert list(tar_file_expander(url_opener(shards), ignore_and_stop, select_files=bad)) == []
    with pytest.raises(KeyError):
        list(tar_file_expander(url_opener(shards), rename_files=bad))


def bad_handler(exn):
    return isinstance(exn, KeyError)


def test_files_of_an_archive():
    data = plain([("__meta__/x.json", b"{}"), ("a.txt", b"1"), ("b", b"2")])
    assert [file["fname"] for file in tar_file_iterator(io.BytesIO(data))] == ["a.txt", "b"]
    assert len(list(tar_file_iterator(io.BytesIO(data), skip_meta=None))) == 3
    torn = io.BytesIO(data[:-1600])
    with pytest.raises(Truncated):
        list(tar_file_iterator(torn))
    assert len(list(tar_file_iterator(io.BytesIO(data[:-1600]), handler=ignore_and_continue))) == 1


def test_the_separator_between_shards(shards):
    files = list(tar_file_expander(url_opener(shards)))
    assert [file == {} for file in files].count(True) == 2
    end = files[-1]
    # A custom grouping that does not know the separator sees a file that belongs to no sample.
    assert base_plus_ext(end["fname"]) == (None, None)
    assert end["data"] == b""
    with pytest.raises(KeyError):
        end["__url__"]
    assert len(list(tar_file_expander(url_opener(shards), eof_value=None))) == 16


def test_no_step_yields_half_a_sample(tmp_path, shards):
    data, errors = (tmp_path / "a.tar").read_bytes(), []
    for cut in range(0, 8 * 1024 + 1, 64):
        (tmp_path / "a.tar").write_bytes(data[:cut])
        errors.clear()
        files = list(tar_file_expander(url_opener(shards), handler=lambda exn: errors.append(exn) or True))
        assert [isinstance(error, TarmacError) for error in errors] == [True], cut
        names = [file["fname"] for file in files if file]
        assert len(names) % 2 == 0
        assert [key for key, _ in map(base_plus_ext, names)][1::2] == keys(group_by_keys(files))
        assert names[-8:] == [f"b{name}" for name, _ in FILES]


def test_samples_do_not_continue_in_the_next_shard(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain([("k.txt", b"1")]))
    again = [{"url": str(path)}] * 3
    assert keys(samples(again)) == ["k"] * 3
    other = tmp_path / "b.tar"
    other.write_bytes(plain([("k.cls", b"1")]))
    files = tar_file_expander(url_opener([{"url": str(path)}, {"url": str(other)}]), eof_value=None)
    assert keys(group_by_keys(files)) == ["k", "k"]


def test_grouping_rules(shards):
    assert sorted(next(samples(shards, lcase=False))) == ["TXT", "__key__", "__url__", "cls"]
    assert sorted(next(samples(shards, suffixes={"cls"}))) == ["__key__", "__url__", "cls"]
    result = list(samples(shards, keys=lambda name: (name[0], name[1:])))
    assert keys(result) == ["a", "b"]
    assert len(result[0]) == 2 + 8

    def picky(name):
        if "2" in name:
            raise ValueError(name)
        return base_plus_ext(name)

    with pytest.raises(ValueError, match="a2"):
        list(samples(shards, keys=picky))
    assert keys(samples(shards, ignore_and_continue, keys=picky)) == ["a0", "a1", "a3", "b0", "b1", "b3"]
    assert keys(samples(shards, ignore_and_stop, keys=picky)) == ["a0"]  # the incomplete sample is left out


def test_damaged_samples_are_errors():
    twice = [{"fname": name, "data": b"", "__url__": "u"} for name in ("a.x", "a.y", "a.x", "b.x")]
    with pytest.raises(DuplicateField):
        list(group_by_keys(twice))
    assert keys(group_by_keys(twice, handler=ignore_and_continue)) == ["b"]
    split = [{"fname": name, "data": b"", "__url__": "u"} for name in ("a.x", "b.x", "a.y", "c.x")]
    with pytest.raises(SplitSample):
        list(group_by_keys(split))
    assert keys(group_by_keys(split, handler=ignore_and_continue)) == ["a", "b"]


def test_parts_of_shards(shards):
    parts = [keys(samples([{**shards[0], "part": (index, 3)}])) for index in range(3)]
    assert parts == [["a0", "a3"], ["a1"], ["a2"]]


def test_many_files_of_one_key_are_yielded():
    data = plain([(f"a.{i}", b"") for i in range(2500)])
    read = []

    class Stream(io.BytesIO):
        def read(self, size=-1):
            read.append(size)
            return super().read(size)

    files = tar_file_expander([{"url": "x", "stream": Stream(data)}])
    assert len(list(files)) == 2501
