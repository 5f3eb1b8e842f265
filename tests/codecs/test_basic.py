"""Text, numbers, serialisers, gzip: values as written, and hostile bytes refused within bounds."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import cbor2
import msgpack
import pytest
import webdataset.autodecode as theirs
from hypothesis import given
from hypothesis import strategies as st

from harness.work import calls
from tarmac.codecs import Decoder, basichandlers, decoders, encode_field, encoders, find_encoder, gzfilter
from tarmac.codecs.basic import gunzip, json_loads
from tarmac.codecs.handlers import Settings
from tarmac.codecs.images import IMAGE_EXTENSIONS
from tarmac.errors import CodecError, DecodeFailed, DecompressionBomb
from tarmac.limits import Limits

DECODE = Decoder([])
SMALL = Settings(limits=Limits(expansion_floor=1 << 20))
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def both(field, value):
    """Encode a value and decode it again as one field of a sample."""
    return DECODE({field: encode_field(field, value, find_encoder(field), "k")})[field]


def test_the_table_has_everything_that_is_written_and_everything_of_the_webdataset_library():
    assert set(theirs.decoders) <= set(decoders)
    # html may be in any encoding; images need a spec
    assert set(encoders) - set(decoders) - set(IMAGE_EXTENSIONS) == {"html", "htm", "img", "image"}


@pytest.mark.parametrize("field", ["cls", "cls2", "class", "count", "index", "inx", "id", "CLS", "a.cls.gz"])
@given(st.integers(-(10**30), 10**30))
def test_numbers(field, value):
    assert both(field, value) == value


@pytest.mark.parametrize("field", ["txt", "text", "transcript", "Txt.GZ"])
@given(st.text())
def test_text(field, value):
    assert both(field, value) == value


@pytest.mark.parametrize("field", ["json", "jsn", "mp", "msg", "msgpack", "cbor", "json.gz"])
@given(PLAIN.filter(lambda value: not isinstance(value, str)))  # strings are stored as they are
def test_serialisers(field, value):
    assert both(field, value) == value


@given(st.binary(max_size=40) | PLAIN.map(json.dumps).map(str.encode), st.sampled_from(["", " ", "\n\t"]))
def test_json_is_what_the_standard_library_says(data, space):
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
def test_hostile_bytes_fail_with_a_name(field, data):
    with pytest.raises(CodecError) as caught:
        DECODE({"__key__": "k7", "__url__": "s3://b/x.tar", field: data})
    error = caught.value
    assert (error.key, error.url, error.field) == ("k7", "s3://b/x.tar", field)
    assert f'field "{field}"' in str(error)
    assert len(str(error)) < 500


def test_duplicate_keys_and_other_oddities_are_as_in_the_standard_library():
    assert DECODE({"json": b'{"a": 1, "a": 2}'}) == {"json": {"a": 2}}
    assert DECODE({"json": b"null", "json.gz": gzip.compress(b"null")}) == {"json": None, "json.gz": None}
    assert DECODE({"cls": b" 7\n"}) == {"cls": 7}


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.integers(0, 20))
def test_gzip_members_and_padding(parts, padding):
    packed = b"".join(map(gzip.compress, parts)) + bytes(padding)
    assert gunzip(packed) == b"".join(parts)
    assert gzip.decompress(packed) == gunzip(packed)


def test_gzip_bombs():
    bomb = gzip.compress(bytes(200 << 20))
    assert len(bomb) < 1 << 20
    with pytest.raises(DecompressionBomb, match="expand to more than"):
        gunzip(bomb)
    with pytest.raises(DecompressionBomb):
        DECODE({"txt.gz": bomb})
    half = gzip.compress(bytes(700_000))
    assert len(gunzip(half, SMALL)) == 700_000
    with pytest.raises(DecompressionBomb):
        gunzip(half * 2, SMALL)  # members add up
    with pytest.raises(DecompressionBomb):
        gunzip(gzip.compress(b"abcdef" * 10), Settings(limits=Limits(member_bytes=59)))
    # a limit given to the decoder reaches the filter
    with pytest.raises(DecompressionBomb):
        Decoder([], limits=Limits(member_bytes=59))({"txt.gz": gzip.compress(b"abcdef" * 10)})


TESTS = Path(__file__).parent.parent
SCRIPT = """
import pathlib, sys
sys.path.insert(0, sys.argv[2])
from harness.memory import peak
import numpy, torch, zipfile
from tarmac.codecs import Decoder
from tarmac.errors import DecompressionBomb
decode = Decoder([])
content = {path.name: path.read_bytes() for path in pathlib.Path(sys.argv[1]).iterdir()}
before = peak()
for name, data in content.items():
    try:
        decode({name: data})
    except DecompressionBomb:
        print("bomb")
print((peak() - before) >> 20)
"""


def test_bombs_take_no_more_than_the_floor(tmp_path):
    zeros = bytes(300 << 20)
    inner = gzip.compress(zeros, 9)
    boxed = io.BytesIO()
    with zipfile.ZipFile(boxed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", zeros)
    bombs = {
        "json.gz": inner,
        "a.txt.gz": gzip.compress(bytes(40 << 20)) * 7,
        "npy.gz": gzip.compress(b"\x93NUMPY" + zeros),
        "jpg.gz": inner,
        "npz": boxed.getvalue(),
        "pth": boxed.getvalue(),
        "unknown.gz": inner,
    }
    for name, data in bombs.items():
        (tmp_path / name).write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(TESTS)],
        capture_output=True,
        text=True,
        check=True,
        timeout=1200,
    )
    assert done.stdout.split()[:-1] == ["bomb"] * len(bombs)
    assert int(done.stdout.split()[-1]) < 128


def test_many_members_take_linear_time():
    packed = gzip.compress(b"x") * 100_000
    assert calls(lambda: gunzip(packed)) < 20 * 100_000
    assert gunzip(packed) == b"x" * 100_000


def test_handlers_called_directly():
    assert basichandlers(".json", b"[1]") == [1]
    assert basichandlers(".what", b"[1]") is None
    onward = gzfilter(".json.gz", gzip.compress(b"[1]"))
    assert (onward.key, onward.data) == (".json", b"[1]")
    assert gzfilter(".json", b"") is None
    assert msgpack.unpackb(msgpack.packb(1)) == decoders["msgpack"](b"\x01")
    assert cbor2.loads(b"\x01") == decoders["cbor"](b"\x01")


def test_an_entry_added_to_the_table_is_used(monkeypatch):
    monkeypatch.setitem(decoders, "shout", bytes.upper)
    assert Decoder([])({"a.shout": b"x"}) == {"a.shout": b"X"}


def test_damage_is_told_apart():
    with pytest.raises(DecodeFailed, match="ends too early"):
        DECODE({"txt.gz": gzip.compress(b"{}")[:-1]})
