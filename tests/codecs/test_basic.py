"""Text, integers, JSON, MessagePack and CBOR round-trip; hostile bytes fail within limits."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarmac.codecs import Decoder, encode_field, find_encoder
from tarmac.codecs.basic import json_loads
from tarmac.errors import CodecError

DECODE = Decoder([])
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def round_trip(field, value):
    return DECODE({field: encode_field(field, value, find_encoder(field), "k")})[field]


@pytest.mark.parametrize("field", ["cls", "cls2", "class", "count", "index", "inx", "id", "CLS", "a.cls.gz"])
@given(st.integers(-(10**30), 10**30))
def test_integers(field, value):
    assert round_trip(field, value) == value


@pytest.mark.parametrize("field", ["txt", "text", "transcript", "Txt.GZ"])
@given(st.text())
def test_text(field, value):
    assert round_trip(field, value) == value


@pytest.mark.parametrize("field", ["json", "jsn", "mp", "msg", "msgpack", "cbor", "json.gz"])
@given(PLAIN.filter(lambda value: not isinstance(value, str)))  # strings are stored as they are
def test_serialisers(field, value):
    assert round_trip(field, value) == value


@given(st.binary(max_size=40) | PLAIN.map(json.dumps).map(str.encode), st.sampled_from(["", " ", "\n\t"]))
def test_json_equals_the_standard_library(data, space):
    data = space.encode() + data + space.encode()
    try:
        expected = json.loads(data)
    except ValueError as error:
        with pytest.raises(type(error)):
            json_loads(data)
    else:
        assert repr(json_loads(data)) == repr(expected)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-32-be"])
def test_json_in_every_encoding(encoding):
    assert json_loads('{"ä": [1, null]}'.encode(encoding)) == {"ä": [1, None]}
    assert str(json_loads(b'{"a": NaN, "b": -Infinity}')) == "{'a': nan, 'b': -inf}"


DEEP = 100_000
HOSTILE = [
    ("json", b"[" * DEEP),
    ("json", b'{"a":' * DEEP),
    ("json", b"[" * DEEP + b"]" * DEEP),
    ("json", b"9" * 100_000),
    ("json", b"\xff\xfe\xff"),
    ("json", b""),
    ("json", b'{"a": 1} trailing'),
    ("json", b"\x00" * 1000),
    ("mp", b"\x91" * DEEP),
    ("mp", b"\x81" * DEEP),
    ("mp", b"\xdd\xff\xff\xff\xff"),
    ("mp", b"\xdf\xff\xff\xff\xff"),
    ("mp", b"\xc6\xff\xff\xff\xff"),
    ("mp", b"\xdb\xff\xff\xff\xff"),
    ("mp", b"\xc9\xff\xff\xff\xff\x01"),
    ("mp", b""),
    ("mp", b"\xc1"),
    ("mp", b"\x01\x02"),
    ("cbor", b"\x81" * DEEP),
    ("cbor", b"\xa1" * DEEP),
    ("cbor", b"\x9f" * DEEP),
    ("cbor", b"\xd8\x1c" * DEEP),
    ("cbor", b"\x9b" + b"\x40" + bytes(7)),
    ("cbor", b"\xbb" + b"\x40" + bytes(7)),
    ("cbor", b"\x5b" + b"\x40" + bytes(7)),
    ("cbor", b"\x7b" + b"\x40" + bytes(7)),
    ("cbor", b""),
    ("cbor", b"\xff"),
    ("cls", b"9" * 100_000),
    ("cls", b""),
    ("cls", b"1.5"),
    ("cls", b"\xff"),
    ("txt", b"\xff\xfe"),
    ("txt", b"\xed\xa0\x80"),
    ("json.gz", b""),
    ("json.gz", b"\x1f\x8b"),
    ("json.gz", gzip.compress(b"{}")[:-1]),
    ("json.gz", gzip.compress(b"{}")[:-8] + bytes(8)),
    ("json.gz", gzip.compress(b"{}") + b"more"),
    ("json.gz", gzip.compress(b"[" * DEEP)),
]


@pytest.mark.parametrize(("field", "data"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_bytes_raise_with_a_location(field, data):
    with pytest.raises(CodecError) as caught:
        DECODE({"__key__": "k7", "__url__": "s3://b/x.tar", field: data})
    error = caught.value
    assert (error.key, error.url, error.field) == ("k7", "s3://b/x.tar", field)
    assert f'field "{field}"' in str(error)
    assert len(str(error)) < 500


def test_json_null_and_duplicate_keys():
    assert DECODE({"json": b'{"a": 1, "a": 2}'}) == {"json": {"a": 2}}
    assert DECODE({"json": b"null", "json.gz": gzip.compress(b"null")}) == {"json": None, "json.gz": None}
    assert DECODE({"cls": b" 7\n"}) == {"cls": 7}
