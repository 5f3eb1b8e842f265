"""Small functions that the webdataset library uses inside, and exports: the same results as there."""

from __future__ import annotations

import io
import os
import re
import warnings

import numpy as np
import pytest
import webdataset as real

import tarmac.webdataset as wds

libraries = pytest.mark.parametrize("library", [real, wds], ids=["webdataset", "tarmac"])
ARRAYS = [np.arange(6, dtype="i4").reshape(2, 3), np.ones(3, "f2")]


@libraries
def test_parts_of_tenbin(library):
    tenbin, original = library.tenbin, real.tenbin
    assert (tenbin.magic_str, tenbin.magic_bytes, tenbin.magic) == ("~TenBin~", b"~TenBin~", original.magic)
    assert tenbin.long_to_short["float32"] == "f4"
    assert tenbin.short_to_long["i8"] == "int64"
    assert [tenbin.roundup(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]
    assert tenbin.unstr64(tenbin.str64("abc")) == "abc"
    assert tenbin.str64("abc") == original.str64("abc")
    assert (tenbin.bytelen(b"abc"), tenbin.bytelen(ARRAYS[0])) == (3, 24)
    assert bytes(tenbin.bytedata(ARRAYS[1])) == ARRAYS[1].tobytes()
    for function in (tenbin.bytelen, tenbin.bytedata):
        with pytest.raises(ValueError):
            function(3)
    header = tenbin.encode_header(ARRAYS[0], "name")
    assert bytes(header) == bytes(original.encode_header(ARRAYS[0], "name"))
    assert tenbin.decode_header(header) == ((2, 3), np.dtype("i4"), "name")
    chunks = tenbin.encode_list(ARRAYS)
    assert [bytes(chunk) for chunk in chunks] == [bytes(chunk) for chunk in original.encode_list(ARRAYS)]
    assert [a.tolist() for a in tenbin.decode_list(chunks)] == [a.tolist() for a in ARRAYS]
    joined = tenbin.encode_chunks(chunks)
    assert bytes(joined) == bytes(original.encode_chunks(original.encode_list(ARRAYS)))
    assert [bytes(chunk) for chunk in tenbin.decode_chunks(joined)] == [bytes(chunk) for chunk in chunks]
    stream = io.BytesIO()
    tenbin.write_chunk(stream, ARRAYS[0])
    stream.seek(0)
    assert (tenbin.read_chunk(stream), tenbin.read_chunk(stream)) == (ARRAYS[0].tobytes(), None)
    assert tenbin.check_infos(ARRAYS, ["a", "b"], True) == (ARRAYS, ["a", "b"])
    assert tenbin.check_infos(ARRAYS, ["a", "b"]) is ARRAYS


def test_types_of_tenbin():
    wds.tenbin.check_acceptable_input_type(ARRAYS, allow64=False)
    with pytest.raises(ValueError, match="float64"):
        wds.tenbin.check_acceptable_input_type([np.ones(1)], allow64=False)
    with pytest.raises(ValueError, match="complex"):
        wds.tenbin.check_acceptable_input_type([np.ones(1, complex)], allow64=True)


@libraries
def test_names_of_claimed_shards(library, monkeypatch):
    shardlists = library.shardlists
    assert shardlists.get_pid_from_filename("x.tar._123_") == 123
    assert shardlists.get_pid_from_filename("x.tar") is None
    assert [shardlists.without_last_extension(name) for name in ("a/b.c.tar", "b")] == ["a/b.c", "b"]
    assert shardlists.check_pid_is_running(os.getpid())
    assert not shardlists.check_pid_is_running(2**22 + 1)
    assert shardlists.MSSource("a").urls == []
    monkeypatch.setenv("WDS_X", "y")
    assert shardlists.envlookup(re.match(r"\$\{(\w+)\}", "${X}")) == "y"


@libraries
def test_decorators(library):
    utils = library.utils

    @utils.deprecated
    def one():
        return 1

    @utils.deprecated("it is old")
    def two():
        return 2

    with pytest.warns(DeprecationWarning, match="function one"):
        assert one() == 1
    with pytest.warns(DeprecationWarning, match="it is old"):
        assert two() == 2

    @utils.obsolete
    def three():
        return 3

    @utils.obsolete(reason="it is gone")
    def four():
        return 4

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function, reason in ((three, "three"), (four, "it is gone")):
            with pytest.raises(utils.ObsoleteException, match=reason):
                function()
    assert utils.lookup_sym("shuffle", [".mix", ".filters"]) is library.filters.shuffle
    assert utils.lookup_sym("nothing", [".mix"]) is None


@libraries
def test_a_length_of_the_attribute_size(library):
    pipeline = library.DataPipeline(lambda: range(3))
    pipeline.size = 5
    assert len(library.pipeline.add_length_method(pipeline)) == 5


@libraries
def test_messages_of_gopen_contain_the_info_of_the_program(library, tmp_path, monkeypatch, capfd):
    (tmp_path / "x").write_bytes(b"x")
    monkeypatch.setenv("GOPEN_VERBOSE", "1")
    module = library.cache.gopen  # the module; `library.gopen` is the function
    monkeypatch.setitem(module.info, "rank", 3)
    library.gopen(str(tmp_path / "x")).close()
    assert f"GOPEN {tmp_path / 'x'} {{'rank': 3}}" in capfd.readouterr().err


def test_modules_without_effect():
    assert wds.typecheck.modules == []
    assert wds.cache.verbose_cache == 0
