"""Compressed shards: detected by their first bytes, and read to a verified end.

The trailer of a stream is always verified: a flipped bit, a truncation or trailing garbage is an error, never
a short archive. Output is produced in bounded chunks, and a stream that expands more than
`Limits.expansion` times raises an error.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, Protocol

from tarmac.errors import CompressionDamaged, LimitExceeded, TrailingData, UsageError
from tarmac.extras import import_extra
from tarmac.limits import MIB, Limits

if TYPE_CHECKING:
    from tarmac.tar.reader import Readable

CHUNK = 1 * MIB
XZ_MEMORY = 1 << 30


class Decoder(Protocol):
    """The common interface of the decompressors of bz2, lzma and zstd."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """`zlib.decompressobj` with the interface of the other decompressors; it verifies CRC and length."""

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


def _zstd_module() -> Any:
    try:
        from compression import zstd  # Python 3.14 and later
    except ImportError:
        return import_extra("backports.zstd", "zstd", "zstd shards")
    return zstd


FORMATS: dict[str, Callable[[], Decoder]] = {
    "gz": _Gzip,
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=XZ_MEMORY),
    "zst": lambda: _zstd_module().ZstdDecompressor(),
}
_SUFFIXES = {"gz": (".gz", ".tgz"), "bz2": (".bz2", ".tbz2"), "xz": (".xz", ".txz"), "zst": (".zst", ".tzst")}
HEAD = 512
"""The number of bytes for detection: one tar block, since a member name may begin like a compressed stream."""


def detect(head: bytes) -> str | None:
    """Return the compression format of the first bytes, or None for a plain archive."""
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


def format_of_name(filename: str) -> str | None:
    """Return the compression format for a file name, or None."""
    lowered = filename.lower()
    return next((name for name, suffixes in _SUFFIXES.items() if lowered.endswith(suffixes)), None)


class Decompressing:
    """The decompressed bytes of `source`; `read` returns b"" only after a verified end."""

    def __init__(self, source: Readable, format: str, limits: Limits, head: bytes = b"") -> None:
        self._source = source
        self._format = format
        self._limits = limits
        self._decoder = FORMATS[format]()
        self._input = head
        self._consumed = len(head)
        self._produced = 0
        self._finished = False

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, at least one unless the stream has ended."""
        while not self._finished:
            if self._decoder.eof:
                self._next_frame()
                continue
            if self._decoder.needs_input and not self._input and not self._fetch():
                raise CompressionDamaged(f"the {self._format} stream is truncated.", offset=self._consumed)
            data, self._input = self._input, b""
            chunk = self._decode(data, min(size, CHUNK))
            if chunk:
                return chunk
        return b""

    def _decode(self, data: bytes, size: int) -> bytes:
        try:
            chunk = self._decoder.decompress(data, size)
        except Exception as error:
            raise CompressionDamaged(
                f"the {self._format} stream is damaged ({error}).", offset=self._consumed
            ) from error
        self._produced += len(chunk)
        limits = self._limits
        if self._produced > limits.expansion_floor and self._produced > limits.expansion * self._consumed:
            raise LimitExceeded(
                f"{self._consumed} bytes expand to {self._produced}, more than {limits.expansion} times.",
                offset=self._consumed,
                hint="raise Limits.expansion if you trust the shard.",
            )
        return chunk

    def _fetch(self) -> bool:
        chunk = self._source.read(CHUNK)
        self._input += chunk
        self._consumed += len(chunk)
        return bool(chunk)

    def _next_frame(self) -> None:
        """Start the next frame, or finish after zero padding; raise if other data follows the last frame."""
        self._input = self._decoder.unused_data + self._input
        while len(self._input) < 16 and self._fetch():
            pass
        if detect(self._input) == self._format:
            self._decoder = FORMATS[self._format]()
            return
        while True:
            if self._input.strip(b"\0"):
                raise TrailingData(
                    f"trailing data follows the {self._format} stream.",
                    offset=self._consumed - len(self._input),
                    hint="download or write the shard again.",
                )
            self._input = b""
            if not self._fetch():
                self._finished = True
                return


class _Compressing:
    """A write-only stream around a compressor; `close` writes the trailer and leaves the sink open."""

    def __init__(self, sink: Any, compressor: Any) -> None:
        self._sink = sink
        self._compressor = compressor

    def write(self, data: bytes, /) -> int:
        compressed = self._compressor.compress(data)
        if compressed:
            self._sink.write(compressed)
        return len(data)

    def close(self) -> None:
        self._sink.write(self._compressor.flush())


def compressing(sink: IO[bytes] | Any, format: str) -> Any:
    """Return a stream that compresses to `sink`, with checksums and reproducible bytes."""
    if format == "gz":
        return _Compressing(sink, zlib.compressobj(6, zlib.DEFLATED, wbits=31))
    if format == "bz2":
        return _Compressing(sink, bz2.BZ2Compressor())
    if format == "xz":
        return _Compressing(sink, lzma.LZMACompressor(check=lzma.CHECK_CRC64))
    if format == "zst":
        zstd = _zstd_module()
        options = {zstd.CompressionParameter.checksum_flag: 1}
        return _Compressing(sink, zstd.ZstdCompressor(options=options))
    raise UsageError(f"expected {', '.join(sorted(FORMATS))}, got {format!r}.", field="compress")
