"""The tables of decoders and encoders are views of the registry."""

from __future__ import annotations

import io

import pytest

import tarmac.webdataset as wds
from tarmac.codecs import find_codec, registry


@pytest.fixture(autouse=True)
def restore_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))


def test_an_added_decoder_is_used():
    wds.autodecode.decoders["shout"] = bytes.upper
    assert wds.Decoder([])({"a.shout": b"x"}) == {"a.shout": b"X"}
    assert find_codec("shout").encode is None
    del wds.autodecode.decoders["shout"]
    assert "shout" not in wds.autodecode.decoders
    assert wds.Decoder([])({"a.shout": b"x"}) == {"a.shout": b"x"}


def test_a_replaced_decoder_keeps_the_encoder():
    wds.autodecode.decoders["npy"] = len
    assert wds.Decoder([])({"npy": b"abc"}) == {"npy": 3}
    assert wds.writer.default_handlers["npy"] is find_codec("npy").encode


def test_an_added_encoder_is_used():
    wds.writer.default_handlers["shout"] = lambda value: value["text"].upper().encode()
    stream = io.BytesIO()
    with wds.TarWriter(stream) as shard:
        shard.write({"__key__": "a", "shout": {"text": "loud"}})
    assert b"LOUD" in stream.getvalue()


def test_lookups():
    decoders = wds.autodecode.decoders
    assert decoders["cls"] is int
    assert "jpg" not in decoders
    assert len(decoders) == len(list(decoders))
    for missing in ("jpg", "a.json", "JSON", "nothing"):
        with pytest.raises(KeyError):
            decoders[missing]
