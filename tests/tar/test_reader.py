"""Reading members: formats, ends, limits, selection."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import warnings
from collections import Counter

import pytest

from harness.memory import peak, reset_peak
from harness.shards import (
    FILES,
    KINDS,
    LONG,
    base256,
    header_offsets,
    members,
    plain,
    reseal,
    with_links,
    zstd,
)
from tarmac.errors import (
    ArchiveError,
    BadHeader,
    LimitExceeded,
    SingleZeroBlock,
    TrailingData,
    Truncated,
    UnsupportedMember,
)
from tarmac.limits import Limits
from tarmac.tar import TarOptions, read_members


def contents(data, *args, **kwargs):
    return [(name.decode(), data) for name, _, _, data in read_members(data, *args, **kwargs)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_reads_like_tarfile(kind):
    data = KINDS[kind]()
    with tarfile.open(fileobj=io.BytesIO(zstd_opened(data))) as archive:
        expected = [(info.name, archive.extractfile(info).read()) for info in archive if info.isreg()]
    assert contents(data) == expected
    assert contents(io.BytesIO(data)) == expected


def zstd_opened(data: bytes) -> bytes:
    """tarfile does not support zstd before Python 3.14."""
    if data[:4] != b"\x28\xb5\x2f\xfd":
        return data
    from backports import zstd as z

    return z.decompress(data)


def test_offsets_point_at_the_payload():
    for data in (plain(), KINDS["pax long names"](), base256()):
        for source in (data, io.BytesIO(data)):
            for name, offset, size, payload in read_members(source):
                assert data[offset : offset + size] == payload, name


def test_the_same_offsets_without_payload():
    data = KINDS["pax with float times"]()
    expected = [(name, offset, size, b"") for name, offset, size, _ in read_members(data)]
    assert list(read_members(data, payload=False)) == expected
    assert list(read_members(io.BytesIO(data), payload=False)) == expected


def test_wanted_members_only():
    data = plain()
    names = [name for name, *_ in read_members(data, wanted=lambda name: name.endswith(b".txt"))]
    assert names == [b"s0.txt", b"s1.txt", b"s2.txt"]


def test_links_and_directories_are_counted_not_followed():
    skipped: Counter[str] = Counter()
    assert len(contents(with_links(), skipped=skipped)) == 4
    assert skipped == {"directory": 1, "symbolic link": 1}


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_devices_anywhere_are_counted(kind, position):
    entries = [(tarfile.REGTYPE, "a.txt", b"1"), (tarfile.REGTYPE, "b.txt", b"2")]
    entries.insert(position, (kind, "odd", b""))
    skipped: Counter[str] = Counter()
    assert len(contents(members(entries), skipped=skipped)) == 2
    assert skipped.total() == 1


def test_directories_in_archives_before_posix():
    data = bytearray(plain([("d/", b""), ("a.txt", b"1")]))
    data[156] = 0
    reseal(data, 0)
    skipped: Counter[str] = Counter()
    assert contents(bytes(data), skipped=skipped) == [("a.txt", b"1")]
    assert skipped == {"directory": 1}


@pytest.mark.parametrize("kind", [b"S", b"M", b"Z", b"9"])
def test_ambiguous_members_are_rejected(kind):
    data = bytearray(plain())
    data[156:157] = kind
    reseal(data, 0)
    with pytest.raises(UnsupportedMember):
        contents(bytes(data))


def test_a_link_with_a_size_is_rejected():
    data = bytearray(plain())
    data[156:157] = b"1"
    reseal(data, 0)
    with pytest.raises(BadHeader, match=r'member "s0\.cls": .*\b1\b'):
        contents(bytes(data))


def test_signed_checksums_of_old_writers():
    data = bytearray(plain([("é.txt", b"1")]))
    data[148:156] = b" " * 8
    total = sum(byte - 256 if byte > 127 else byte for byte in data[:512])
    data[148:156] = b"%06o\0 " % total
    assert contents(bytes(data)) == [("é.txt", b"1")]


# -- the end of the archive ------------------------------------------------------------------------


def test_one_zero_block_is_accepted_with_a_warning():
    data = plain()[:-512]
    with pytest.warns(SingleZeroBlock):
        assert len(contents(data)) == len(FILES)


def test_no_zero_block_is_truncated():
    with pytest.raises(Truncated, match="marker") as caught:
        contents(plain()[:-1024])
    assert not caught.value.torn
    assert "lenient" in str(caught.value)


def test_padding_of_any_length_is_accepted():
    for extra in (0, 100, 512, 10240, 3 << 20):
        assert len(contents(plain() + bytes(extra))) == len(FILES)
        assert len(contents(io.BytesIO(plain() + bytes(extra)))) == len(FILES)


@pytest.mark.parametrize("padding", [0, 512, 9216])
@pytest.mark.parametrize("parts", [2, 3, 100])
def test_joined_archives(padding, parts):
    joined = b"".join(plain([(f"p{i}.txt", b"%d" % i)]) + bytes(padding) for i in range(parts))
    with pytest.raises(TrailingData, match="concatenated=True"):
        contents(joined)
    options = TarOptions(concatenated=True)
    expected = [(f"p{i}.txt", b"%d" % i) for i in range(parts)]
    assert contents(joined, options) == expected
    assert contents(io.BytesIO(joined), options) == expected


def test_data_after_the_end_marker():
    for behind in (b"x", b"x" * 512, bytes(300) + b"x"):
        for source in (plain() + behind, io.BytesIO(plain() + behind)):
            with pytest.raises(TrailingData):
                list(read_members(source))


def test_an_empty_archive_has_no_members():
    assert contents(bytes(1024)) == []
    assert contents(bytes(10240)) == []


def test_options_validate_themselves():
    with pytest.raises(ValueError, match="lenient"):
        TarOptions(end="loose")
    with pytest.raises(ValueError, match="member_bytes"):
        Limits(member_bytes=0)


# -- compression -----------------------------------------------------------------------------------


def test_several_frames_are_one_stream():
    half = len(plain()) // 2
    first, second = plain()[:half], plain()[half:]
    for packed in (
        gzip.compress(first) + gzip.compress(second),
        bz2.compress(first) + bz2.compress(second),
        lzma.compress(first) + lzma.compress(second),
        zstd(first) + zstd(second),
        b"\x50\x2a\x4d\x18\x04\0\0\0skip" + zstd(plain()),
    ):
        assert len(contents(packed)) == len(FILES)
        assert len(contents(io.BytesIO(packed))) == len(FILES)


def test_names_that_look_like_compression():
    assert contents(plain([("BZhang.txt", b"1")])) == [("BZhang.txt", b"1")]


def test_a_compressed_file_that_is_not_an_archive():
    with pytest.raises(ArchiveError):
        contents(gzip.compress(b"hello"))
    with pytest.raises(ArchiveError):
        contents(gzip.compress(b""))
    with pytest.raises(ArchiveError):
        contents(gzip.compress(gzip.compress(plain())))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstd])
def test_bombs_are_rejected_in_bounded_memory(pack):
    size = 300 << 20
    body = bytearray(plain([("bomb.bin", b"")]))[:512]
    body[124:136] = b"%011o\0" % size
    reseal(body, 0)
    packed = pack(bytes(body) + bytes(size + 1024))
    before = reset_peak()
    with pytest.raises(LimitExceeded, match="expansion"):
        contents(io.BytesIO(packed), TarOptions(limits=Limits(expansion_floor=1 << 20)))
    with pytest.raises(LimitExceeded, match="expansion"):
        list(read_members(io.BytesIO(packed), payload=False))
    assert peak() - before < 128 << 20


def test_ordinary_shards_of_tiny_samples_are_not_bombs():
    many = plain([(f"{i:06d}.cls", b"%d" % (i % 10)) for i in range(20_000)])
    for pack in (gzip.compress, zstd, lzma.compress):
        assert len(contents(pack(many))) == 20_000


def test_zero_and_huge_sizes_need_no_memory():
    data = bytearray(plain([("a.bin", b"")]))
    data[124:136] = b"\x80" + (1 << 60).to_bytes(11, "big")
    reseal(data, 0)
    with pytest.raises(LimitExceeded, match="member_bytes"):
        contents(bytes(data))
    options = TarOptions(limits=Limits(member_bytes=1 << 62))
    for source in (bytes(data), io.BytesIO(bytes(data))):
        with pytest.raises(Truncated):
            list(read_members(source, options))


# -- extended headers and numbers ------------------------------------------------------------------


def pax(payload: bytes, kind: bytes = b"x", follow: bytes | None = None) -> bytes:
    """An archive whose first member is an extended header with this payload."""
    header = bytearray(plain([("ext", payload)])[: 512 + (len(payload) + 511 & -512)])
    header[156:157] = kind
    reseal(header, 0)
    return bytes(header) + (plain() if follow is None else follow)


def record(text: bytes) -> bytes:
    length = len(text) + 2
    while len(str(length)) + 1 + len(text) != length:
        length = len(str(length)) + 1 + len(text)
    return b"%d %b" % (length, text)


@pytest.mark.parametrize(
    "payload",
    [
        b"0 path=x\n",
        b"999 path=x\n",
        b"9 path=xyz\n",
        b"path=x\n",
        b"-3 path=x\n",
        b"1_0 path=x\n",
        b"8 pathx\n\n",
        record(b"=x\n"),
        record(b"path=a\0b\n"),
        record(b"path=\n"),
        record(b"size=-5\n"),
        record(b"size=1.5\n"),
        record(b"size=\n"),
        record(b"size=99999999999999999999\n"),
        record(b"size=1\n") + record(b"size=2\n"),
        record(b"path=a.txt\n") + record(b"path=b.txt\n"),
        record(b"GNU.sparse.major=1\n"),
        record(b"GNU.sparse.map=0,1\n"),
    ],
)
def test_bad_pax_records(payload):
    with pytest.raises(ArchiveError):
        contents(pax(payload))


def test_good_pax_records():
    data = pax(record(b"path=other.txt\n") + record(b"comment=hello\n") + record(b"mtime=1.5\n"))
    assert contents(data)[0] == ("other.txt", b"7")
    assert contents(pax(record(b"comment=x\n"), kind=b"g"))[0][0] == "s0.cls"
    name = "ü" * 200 + ".txt"
    assert contents(pax(record(b"path=%b\n" % name.encode())))[0][0] == name


def test_the_size_also_determines_the_next_header():
    """The flaw known as TARmageddon: readers that use two sizes see smuggled members."""
    inner = plain([("evil.txt", b"smuggled")])
    data = pax(record(b"size=%d\n" % len(inner)), follow=_claiming(inner, 0))
    assert contents(data) == [("a.bin", inner)]
    with pytest.raises(ArchiveError):
        contents(pax(record(b"size=8\n"), follow=_claiming(inner, 0)))


def _claiming(payload: bytes, size: int) -> bytes:
    data = bytearray(plain([("a.bin", payload)]))
    data[124:136] = b"%011o\0" % size
    reseal(data, 0)
    return bytes(data)


@pytest.mark.parametrize("key", [b"path", b"size", b"linkpath"])
def test_global_headers_cannot_rename_members(key):
    with pytest.raises(UnsupportedMember, match="global"):
        contents(pax(record(key + b"=1\n"), kind=b"g"))


def test_contradictory_and_orphaned_extensions():
    with pytest.raises(BadHeader, match='0x00000400, member "ext"'):
        contents(pax(b"one.txt\0", kind=b"L", follow=pax(b"two.txt\0", kind=b"L")))
    with pytest.raises(BadHeader, match="0x00000400: "):
        contents(pax(b"one.txt\0", kind=b"L", follow=bytes(1024)))
    with pytest.raises(Truncated):
        contents(pax(b"one.txt\0", kind=b"L", follow=b""))


def test_limits_on_extended_headers():
    with pytest.raises(LimitExceeded, match=r"Limits\.extension_bytes"):
        contents(pax(record(b"comment=" + b"x" * (1 << 20) + b"\n")))
    chain = plain()
    for _ in range(65):
        chain = pax(record(b"comment=x\n"), follow=chain)
    with pytest.raises(LimitExceeded, match="64"):
        contents(chain)
    assert contents(chain[1024:])[0][0] == "s0.cls"


@pytest.mark.parametrize(
    "field",
    [
        b"\xff" * 12,
        b"\xff" * 10 + b"\xfe\x00",
        b"\x81" + bytes(11),
        b"\x80\xff" + bytes(10),
        b"-0000000001\0",
        b"+0000000001\0",
        b"0000_000001\0",
        b"0o000000001\0",
        b"00000000009\0",
        b"0x000000001\0",
        b"1 1\0\0\0\0\0\0\0\0\0",
        b"           a",
    ],
)
def test_impossible_sizes(field):
    data = bytearray(plain())
    data[124:136] = field
    reseal(data, 0)
    with pytest.raises(BadHeader):
        contents(bytes(data))


@pytest.mark.parametrize("field", [b"\0" * 12, b" " * 12, b"0\0\0\0\0\0\0\0\0\0\0\0", b"          0 "])
def test_blank_sizes_are_zero(field):
    data = bytearray(plain([("a.txt", b"")]))
    data[124:136] = field
    reseal(data, 0)
    assert contents(bytes(data)) == [("a.txt", b"")]


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "/abs/x.txt", "a\\b.txt", "x" * 99 + "y", LONG + ".txt", "новый.txt", "a b\tc.txt"],
)
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_are_opaque(name, form):
    assert contents(plain([(name, b"1")], form=form))[0][0] == name


def test_errors_have_offset_and_member():
    data = plain()[:600]
    with pytest.raises(Truncated) as caught, warnings.catch_warnings():
        list(read_members(data, url="s3://b/x.tar?X-Amz-Signature=secret"))
    assert "secret" not in str(caught.value)
    assert str(caught.value).startswith("s3://b/x.tar?… @ 0x")


def test_the_caches_of_the_reader_are_bounded():
    data = plain([(f"{i}.bin", b"x" * i) for i in range(5000)])
    assert len(header_offsets(data)) == 5000
    assert [size for _, _, size, _ in read_members(data, payload=False)] == list(range(5000))
