"""What programs written for the webdataset library rely on, compared with the library itself where possible."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import webdataset as real

import tarmac
import tarmac.webdataset as wds
from harness.shards import plain
from tarmac.codecs import registry
from tarmac.errors import UnsafeCodec
from tarmac.storage import enforce_security

# The library does not close the files that it opens.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(plain([(f"{i}.{field}", b"%d" % i) for i in range(4) for field in ("cls", "txt")]))
    return str(path)


def write(path, *files):
    path.write_bytes(plain(list(files)))
    return str(path)


def read(url, **options):
    return wds.WebDataset(url, shardshuffle=False, **options)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"<html>" * 200, b"torn", b""])
@pytest.mark.parametrize("library", [real, wds])
def test_damaged_archives_are_tarfile_errors(tmp_path, library, content):
    path = tmp_path / "x.tar"
    path.write_bytes(plain([("a.txt", b"x" * 1000)])[:1000] if content == b"torn" else content)
    with pytest.raises(tarfile.ReadError):
        list(library.WebDataset(str(path), shardshuffle=False))


@pytest.mark.parametrize("library", [real, wds])
def test_a_missing_field_is_a_key_error(library, shard):
    with pytest.raises(KeyError) as caught:
        list(library.WebDataset(shard, shardshuffle=False).map_dict(jpg=len))
    if library is wds:
        assert str(caught.value).endswith('x.tar, sample "0": no field "jpg"; the sample has cls, txt.')


@pytest.mark.parametrize("library", [real, wds])
def test_decoding_errors_name_the_field_and_hold_the_sample(library, tmp_path):
    url = write(tmp_path / "x.tar", ("a.cls", b"no number"))
    with pytest.raises(library.DecodingError) as caught:
        list(library.WebDataset(url, shardshuffle=False).decode())
    error = caught.value
    assert (error.url, error.key, error.k, error.sample["cls"]) == (url, "a", "cls", b"no number")
    assert pickle.loads(pickle.dumps(error)).k == "cls" or library is real


def test_refused_pickles_are_decoding_errors(tmp_path):
    url = write(tmp_path / "x.tar", ("a.pyd", pickle.dumps(1)))
    with pytest.raises(wds.DecodingError) as caught:
        list(read(url).decode())
    assert (type(caught.value), caught.value.k, caught.value.key) == (UnsafeCodec, "pyd", "a")
    assert caught.value.sample["__key__"] == "a"
    with pytest.raises(UnsafeCodec) as caught:
        list(tarmac.WebDataset(url, shardshuffle=False).decode())
    assert caught.value.sample is None  # errors of tarmac hold no data


# -- pickles -----------------------------------------------------------------------------------------------------------


def test_a_variable_allows_pickles_to_programs_for_the_library(tmp_path, monkeypatch):
    url = write(tmp_path / "x.tar", ("a.pyd", pickle.dumps({"x": 1})))
    monkeypatch.setenv("TARMAC_ALLOW_PICKLE", "1")
    assert next(iter(read(url).decode()))["pyd"] == {"x": 1}
    assert next(iter(wds.DataPipeline(wds.SimpleShardList(url), wds.tarfile_to_samples(), wds.decode())))[
        "pyd"
    ] == {"x": 1}
    with pytest.raises(UnsafeCodec):
        list(tarmac.WebDataset(url, shardshuffle=False).decode())
    try:
        enforce_security()
        with pytest.raises(UnsafeCodec):
            list(read(url).decode())
    finally:
        enforce_security(False)
    monkeypatch.setenv("TARMAC_ALLOW_PICKLE", "0")
    with pytest.raises(UnsafeCodec):
        list(read(url).decode())


# -- decoding ----------------------------------------------------------------------------------------------------------


def buffer(save, value):
    stream = io.BytesIO()
    save(value, stream)
    return stream.getvalue()


FIELDS = {
    "pt": buffer(torch.save, torch.ones(2)),
    "count": b"3",
    "class": b"4",
    "cls": b"5",
    "index": b"6",
    "msgpack": b"\x01",
    "mp": b"\x02",
    "tenbin": wds.writer.tenbin_dumps([np.ones(2)]),
    "txt": b"text",
    "TXT": b"text",
    "a.CLS": b"5",
    "json": b"[1]",
}


def test_fields_decode_as_in_the_library():
    assert wds.Decoder([])(FIELDS) == real.autodecode.Decoder([])(FIELDS)


def test_fields_of_datasets_stay_bytes_and_native_ones_are_decoded(tmp_path):
    url = write(tmp_path / "x.tar", ("a.pt", FIELDS["pt"]), ("a.count", b"3"))
    sample = next(iter(read(url).decode()))
    assert (sample["pt"], sample["count"]) == (FIELDS["pt"], b"3")
    assert next(iter(wds.WebLoader(read(url), batch_size=None).decode()))["count"] == b"3"
    native = next(iter(tarmac.WebDataset(url, shardshuffle=False).decode()))
    assert (native["pt"].tolist(), native["count"]) == ([1, 1], 3)


def test_tables_list_what_is_decoded_and_may_add_to_it(monkeypatch):
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    monkeypatch.setattr(wds.autodecode, "_undecoded", dict(wds.autodecode._undecoded))
    assert set(wds.autodecode.decoders) == set(real.autodecode.decoders)
    wds.writer.default_handlers["count"] = lambda value: b"%d" % value
    assert wds.Decoder([])({"count": b"3"}) == {"count": b"3"}
    wds.autodecode.decoders["count"] = int
    assert wds.Decoder([])({"count": b"3"}) == {"count": 3}


def test_changed_default_handlers_have_an_effect(monkeypatch, shard):
    post = [wds.handle_extension("txt", lambda data: "mine"), wds.autodecode.basichandlers]
    monkeypatch.setattr(wds.autodecode, "default_post_handlers", post)
    assert next(iter(read(shard).decode()))["txt"] == "mine"


# -- functions that the program replaces -------------------------------------------------------------------------------


def test_a_replaced_opener_has_an_effect(monkeypatch, shard):
    def opener(data, handler=wds.reraise_exception, **kw):
        for item in data:
            yield {**item, "stream": io.BytesIO(Path(shard).read_bytes())}

    monkeypatch.setattr(wds.tariterators, "url_opener", opener)
    stage = wds.tarfile_to_samples()
    assert [sample["__key__"] for sample in stage([{"url": "mine:x"}])] == ["0", "1", "2", "3"]
    assert not stage.reads_parts


def test_a_replaced_gopen_has_an_effect(monkeypatch, shard):
    opened = []

    def gopen(url, mode="rb", bufsize=8192, **kw):
        opened.append(url)
        return io.BytesIO(Path(shard).read_bytes())

    monkeypatch.setattr(wds.tariterators.gopen, "gopen", gopen)
    assert len(list(read("anywhere.tar"))) == 4
    assert opened == ["anywhere.tar"]


@pytest.mark.parametrize("library", [real, wds])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("name", ["group_by_keys", "tar_file_expander"])
def test_replaced_steps_of_datasets_have_an_effect(monkeypatch, tmp_path, library, shard, name, cached):
    calls, original = [], getattr(library.compat, name)

    def replaced(data, **kw):
        calls.append(kw)
        return original(data, **kw)

    monkeypatch.setattr(library.compat, name, replaced)
    options = {"cache_dir": str(tmp_path)} if cached else {}
    dataset = library.WebDataset(f"pipe:cat {shard}", shardshuffle=False, **options)
    samples = list(dataset)
    assert [sample["__key__"] for sample in samples] == ["0", "1", "2", "3"]
    assert all(("__local_path__" in sample) == cached for sample in samples)
    assert len(calls) == 1


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [real, wds])
def test_local_files_of_gopen_seek(library, tmp_path, shard):
    torch.save({"x": torch.ones(2)}, tmp_path / "x.pt")
    with library.gopen(str(tmp_path / "x.pt")) as file:
        assert torch.load(file)["x"].tolist() == [1, 1]
    np.save(tmp_path / "x.npy", np.arange(5))
    with library.gopen(f"file:{tmp_path / 'x.npy'}") as file:
        assert np.load(file).tolist() == [0, 1, 2, 3, 4]
    with library.gopen(shard) as file, tarfile.open(fileobj=file) as archive:
        assert len(archive.getnames()) == 8
    with library.gopen(shard) as file:
        assert file.seekable()
        end = file.seek(0, io.SEEK_END)
        assert end == Path(shard).stat().st_size
        file.seek(0)
        assert file.read(5) == b"0.cls"
        assert file.tell() == 5
    with library.gopen(f"pipe:cat {shard}") as file:
        assert file.read(5) == b"0.cls"


def test_commands_cannot_seek(shard):
    with wds.gopen(f"pipe:cat {shard}") as file:
        assert not file.seekable()
        with pytest.raises(io.UnsupportedOperation):
            file.seek(0)


@pytest.mark.parametrize("scheme", ["sftp", "scp", "ftps"])
def test_schemes_that_curl_reads_and_writes(tmp_path, monkeypatch, shard, scheme):
    """The command gets its arguments as a list, and the URL last."""
    curl = tmp_path / "curl"
    curl.write_text(
        f"#!/bin/sh\nfor url; do :; done\nfile={tmp_path}/${{url##*/}}\n"
        'case "$*" in *"-T -"*) cat > "$file" ;; *) cat "$file" ;; esac\n'
    )
    curl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert len(list(read(f"{scheme}://host/x.tar"))) == 4
    with wds.gopen(f"{scheme}://host/y.tar", "wb") as file:
        file.write(b"content")
    assert (tmp_path / "y.tar").read_bytes() == b"content"
    with pytest.raises(OSError):
        list(read(f"{scheme}://host/missing.tar"))
    try:
        enforce_security()
        with pytest.raises(ValueError):
            list(read(f"{scheme}://host/x.tar"))
    finally:
        enforce_security(False)


@pytest.mark.parametrize("library", [real, wds])
def test_what_is_opened_is_printed(library, shard, monkeypatch, capfd):
    monkeypatch.setenv("GOPEN_VERBOSE", "1")
    library.gopen(shard).close()
    assert capfd.readouterr().err.startswith(f"GOPEN {shard}")
    list(library.WebDataset(f"pipe:cat {shard}", shardshuffle=False))
    assert capfd.readouterr().err.startswith("GOPEN pipe:cat")


@pytest.mark.parametrize("library", [real, wds])
def test_verbose_writers_name_their_shards(library, tmp_path, capfd):
    for verbose in (0, 1):
        with library.ShardWriter(str(tmp_path / "y-%d.tar"), maxcount=2, verbose=verbose) as shards:
            for i in range(3):
                shards.write({"__key__": str(i), "txt": "x"})
        out = capfd.readouterr()
        lines = [line.rpartition("y-")[2] for line in (out.out + out.err).splitlines()]
        assert lines == ["0.tar 0 0.0 GB 0", "1.tar 2 0.0 GB 2"] * verbose


def test_verbose_caches_name_their_downloads(remote, tmp_path, capfd):
    cache = wds.cache.FileCache(str(tmp_path / "cache"), verbose=True)
    assert cache.get_file("remote://host/x-0.tar")
    assert "# downloading remote://host/x-0.tar to " in capfd.readouterr().err


def test_samples_of_cached_shards_have_a_local_path(remote, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "small").mkdir()
    dataset = read("remote://host/x-0.tar", cache_dir=str(tmp_path / "cache"))
    for _ in range(2):
        paths = {sample["__local_path__"] for sample in dataset}
        (path,) = paths
        assert Path(path).parent == tmp_path / "cache"
        assert tarfile.is_tarfile(path)
    assert all("__local_path__" not in sample for sample in read("remote://host/x-0.tar"))
    small = read("remote://host/x-0.tar", cache_dir=str(tmp_path / "small"), cache_size=1)
    assert all("__local_path__" not in sample for sample in small)


# -- pipelines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [real, wds])
def test_datasets_are_added(library, shard):
    dataset = library.WebDataset(shard, shardshuffle=False)
    assert len(list(dataset + dataset)) == 8


@pytest.mark.parametrize("library", [real, wds])
def test_a_list_is_data(library):
    assert list(library.FluidWrapper([1, 2, 3]).map(lambda x: x + 1)) == [2, 3, 4]


@pytest.mark.parametrize("library", [real, wds])
def test_encoders_can_be_called(library):
    assert library.writer.default_handlers["txt"]("ü") == "ü".encode()


def test_map_dict_on_tuples(shard):
    with pytest.raises(ValueError, match="map_dict: expected a dictionary, got tuple"):
        list(read(shard).to_tuple("txt").map_dict(txt=len))


def test_stages_can_be_recognised_by_their_text():
    def double(x):
        return 2 * x

    dataset = wds.WebDataset("https://u:secret@host/x.tar", shardshuffle=10).shuffle(100).map(double)
    texts = [str(stage) for stage in dataset.pipeline]
    assert [text for text in texts if "shuffle" in text] == [texts[4], texts[-2]]
    assert texts[-2].startswith("<_shuffle (100,) ")
    assert texts[-1].startswith("<_map ")
    assert "double" in texts[-1]
    assert "secret" not in str(texts)


@pytest.mark.parametrize("library", [real, wds])
def test_samples_are_written_by_keyword(library, tmp_path):
    with library.TarWriter(str(tmp_path / "x.tar")) as shard:
        shard.write(obj={"__key__": "a", "txt": "x"})
    with library.ShardWriter(str(tmp_path / "y-%d.tar"), verbose=0) as shards:
        shards.write(obj={"__key__": "a", "txt": "x"})
    assert len(list(library.WebDataset(str(tmp_path / "y-0.tar"), shardshuffle=False))) == 1


@pytest.mark.parametrize("library", [real, wds])
def test_data_is_passed_by_keyword(library):
    assert list(library.filters._map(data=[1], f=str)) == ["1"]
    assert list(wds.filters._rename([{"a": 1}], data="a")) == [{"data": 1}]
