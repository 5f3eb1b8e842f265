"""Compressed shards: recognise them by their first bytes, and read them to a checked end.

A stream counts as read only when its trailer was verified: a flipped bit, a cut or garbage behind the
end is an error, never a short archive. Output is produced in bounded pieces, and a stream that
expands more than `Limits.expansion` times is refused.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, Protocol

from tarmac.errors import CompressionDamaged, LimitExceeded, TrailingData
from tarmac.extras import import_extra
from tarmac.limits import MIB, Limits

if TYPE_CHECKING:
    from tarmac.tar.reader import Readable

__all__ = ["FORMATS", "HEAD", "Decompressing", "compressing", "detect", "format_of_name"]

PIECE = 1 * MIB
XZ_MEMORY = 1 << 30


class Decoder(Protocol):
    """What bz2, lzma and zstd decompressors have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """`zlib.decompressobj` in the shape of the other decompressors; it checks CRC and length."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail and not self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


def _xz() -> Decoder:
    return lzma.LZMADecompressor(memlimit=XZ_MEMORY)


def _zstd_module() -> Any:
    try:
        from compression import zstd  # Python 3.14 and later
    except ImportError:
        return import_extra("backports.zstd", "zstd", "zstd shards")
    return zstd


def _zst() -> Decoder:
    decoder: Decoder = _zstd_module().ZstdDecompressor()
    return decoder


FORMATS: dict[str, Callable[[], Decoder]] = {"gz": _Gzip, "bz2": bz2.BZ2Decompressor, "xz": _xz, "zst": _zst}
_SUFFIXES = {".gz": "gz", ".tgz": "gz", ".bz2": "bz2", ".tbz2": "bz2", ".xz": "xz", ".txz": "xz"} | {
    ".zst": "zst",
    ".tzst": "zst",
}


HEAD = 512
"""Bytes that tell: a block of a tar, whose name may begin like a compressed stream."""


def detect(head: bytes) -> str | None:
    """Name the compression that the first bytes announce, or None for a plain archive."""
    if head[257:262] == b"ustar":
        return None
    if head.startswith(b"\x1f\x8b\x08"):
        return "gz"
    if head.startswith(b"BZh") and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bz2"
    if head.startswith(b"\xfd7zXZ\0"):
        return "xz"
    if head.startswith(b"\x28\xb5\x2f\xfd") or (head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5):
        return "zst"
    return None


def format_of_name(name: str) -> str | None:
    """Name the compression that a file name asks for."""
    lowered = name.lower()
    return next((form for suffix, form in _SUFFIXES.items() if lowered.endswith(suffix)), None)


class Decompressing:
    """Read the decompressed bytes of `source`; `read` gives b"" only after a verified end."""

    def __init__(self, source: Readable, form: str, limits: Limits, head: bytes = b"") -> None:
        self._source = source
        self._form = form
        self._limits = limits
        self._decoder = FORMATS[form]()
        self._input = head
        self._consumed = len(head)
        self._produced = 0
        self._finished = False

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, at least one unless the stream has ended."""
        while not self._finished:
            if self._decoder.eof:
                self._next_frame()
                continue
            if self._decoder.needs_input and not self._input and not self._fetch():
                raise CompressionDamaged(
                    f"the {self._form} stream ends in the middle.", offset=self._consumed
                )
            data, self._input = self._input, b""
            piece = self._decode(data, min(size, PIECE))
            if piece:
                return piece
        return b""

    def _decode(self, data: bytes, size: int) -> bytes:
        try:
            piece = self._decoder.decompress(data, size)
        except Exception as error:
            raise CompressionDamaged(
                f"the {self._form} stream is damaged ({error}).", offset=self._consumed
            ) from error
        self._produced += len(piece)
        limits = self._limits
        if self._produced > limits.expansion_floor and self._produced > limits.expansion * self._consumed:
            raise LimitExceeded(
                f"{self._consumed} bytes expanded to {self._produced}, more than {limits.expansion}-fold.",
                offset=self._consumed,
                hint="if the shard is trusted, raise Limits.expansion.",
            )
        return piece

    def _fetch(self) -> bool:
        chunk = self._source.read(PIECE)
        self._input += chunk
        self._consumed += len(chunk)
        return bool(chunk)

    def _next_frame(self) -> None:
        """After a whole frame: another frame, zero padding, or the end; anything else is damage."""
        self._input = self._decoder.unused_data + self._input
        while len(self._input) < 16 and self._fetch():
            pass
        if detect(self._input) == self._form:
            self._decoder = FORMATS[self._form]()
            return
        while True:
            if self._input.strip(b"\0"):
                raise TrailingData(
                    f"something other than another frame follows the {self._form} stream.",
                    offset=self._consumed - len(self._input),
                    hint="fetch or write the shard again.",
                )
            self._input = b""
            if not self._fetch():
                self._finished = True
                return


class _Compressing:
    """A write-only stream around a compressor object; `close` writes the trailer, not the sink's end."""

    def __init__(self, sink: Any, compressor: Any) -> None:
        self._sink = sink
        self._compressor = compressor

    def write(self, data: bytes, /) -> int:
        packed = self._compressor.compress(data)
        if packed:
            self._sink.write(packed)
        return len(data)

    def close(self) -> None:
        self._sink.write(self._compressor.flush())


def compressing(sink: IO[bytes] | Any, form: str) -> Any:
    """Wrap `sink` so that what is written arrives compressed, with checksums, the same bytes every time."""
    if form == "gz":
        return _Compressing(sink, zlib.compressobj(6, zlib.DEFLATED, wbits=31))
    if form == "bz2":
        return _Compressing(sink, bz2.BZ2Compressor())
    if form == "xz":
        return _Compressing(sink, lzma.LZMACompressor(check=lzma.CHECK_CRC64))
    if form == "zst":
        zstd = _zstd_module()
        options = {zstd.CompressionParameter.checksum_flag: 1}
        return _Compressing(sink, zstd.ZstdCompressor(options=options))
    raise ValueError(f"unknown compression {form!r}; known are {', '.join(sorted(FORMATS))}")
