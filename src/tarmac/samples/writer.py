"""Write samples to one shard: encoded, checked, in a fixed order, and published atomically."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from mmap import mmap
from typing import IO, Any, Self, get_args

from tarmac.codecs import Encoder, encode_field, find_encoder
from tarmac.errors import BadName, DuplicateField, EncodeFailed, MissingField, UsageError, WriteError
from tarmac.indexing.entries import Entries, Extent
from tarmac.limits import DEFAULT_LIMITS
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import Splitter, check_field, check_key, first_dot, is_reserved
from tarmac.storage import Sink, StorageOptions, WriteOptions, is_stream, open_write, stat
from tarmac.storage.local import LocalSink
from tarmac.storage.store import FileSink
from tarmac.storage.types import DEFAULT_STORAGE, DEFAULT_WRITE
from tarmac.storage.unclosed import Watch
from tarmac.tar.compression import FORMATS, compressing, format_of_name
from tarmac.tar.header import BLOCK, padded
from tarmac.tar.writer import END_MARKER, PADDING, HeaderBuilder, Owner, TarFormat

SampleEncoder = bool | Mapping[str, Encoder] | Callable[[Sample], Sample]

# Set by readers; stored in a shard they would contradict the next reader.
_SET_BY_READERS = frozenset(("__key__", "__url__", "__local_path__"))
_INCOMPLETE = "a sample was not written completely, so the shard cannot be finished."
_MAX_JOINED = 1 << 15
"""Samples smaller than this are joined before they are written; above it, copying costs more than calls."""
_MAX_PLANS = 1000

_Plan = list[tuple[str, bytes, Encoder, bool]]
"""For each field: its name, the suffix of its member's name, its encoder, and whether that encodes bytes, too."""


class TarWriter:
    """Writes samples to a tar shard: a file name, a URL, or an open file.

    >>> with TarWriter("train-000000.tar") as shard:
    ...     shard.write({"__key__": "0001", "jpg": image, "cls": 3})

    The shard appears under its name when the writer is closed. Leaving the `with` block by an exception
    publishes nothing. A writer that is never closed is published at the end of the program, with a warning,
    unless an exception terminated it. A key or field that would not read back raises `BadName`.

    `encoder` is True to encode by extension, False for samples of bytes, a dictionary from extension to
    function, or a function from sample to sample. `compress` is a format such as `"gz"`, None to choose by the
    name, or False. `index` also writes the index of the shard, with digests, beside it. `format` is the tar
    format. `mtime`, `user`, `group` and `mode` are stored for each member. `keep_meta` also stores `__x__`
    fields. `split_name` is the naming rule that readers will use.
    """

    sidecar: str | None = None
    """The URL of the index, once it is written."""
    _watched = True
    """Whether a writer that is never closed is published at the end of the program."""

    def __init__(
        self,
        target: str | os.PathLike[str] | IO[bytes],
        *,
        encoder: SampleEncoder = True,
        compress: bool | str | None = None,
        index: bool = False,
        format: TarFormat = "auto",
        mtime: float = 0,
        user: str = "bigdata",
        group: str = "bigdata",
        mode: int = 0o444,
        keep_meta: bool = False,
        split_name: Splitter = first_dot,
        storage: StorageOptions = DEFAULT_STORAGE,
        write: WriteOptions = DEFAULT_WRITE,
        _name: str | None = None,
        _close: bool = False,
    ) -> None:
        self._closed = True  # until there is something to close
        self._incomplete = False
        if format not in get_args(TarFormat):
            raise UsageError(
                f"expected one of {', '.join(get_args(TarFormat))}, got {format!r}.", field="format"
            )
        self._headers = HeaderBuilder(Owner(user, group, mode, int(mtime)), format)
        self._encode_sample, self._find_encoder = _encoding(encoder)
        self._keep_meta = keep_meta
        self._split_name = split_name
        self._keys: set[int] = set()
        self._plans: dict[tuple[str, ...], _Plan] = {}
        self.name: str | None = os.fspath(target) if isinstance(target, str | os.PathLike) else _name
        compression = _compression(compress, self.name)  # before the target is touched
        self._entries = _entries(index, self.name, compression)
        if index:
            import pyarrow  # noqa: F401 - needed at the end, when Python may not import any more
            from xxhash import xxh3_64_intdigest

            import tarmac.indexing.sampled_digests
            import tarmac.indexing.sidecar  # noqa: F401

            self._digest = xxh3_64_intdigest
        self._storage = storage
        self._position = 0
        if isinstance(target, str | os.PathLike):
            self._sink: Sink = open_write(os.fspath(target), storage, write)
        else:
            self._sink = FileSink(target, close=_close)
        try:
            self._compressor = compressing(self._sink, compression) if compression else None
        except BaseException:  # its library may be missing
            self._sink.abort()
            raise
        # Local files write memory views at once; other sinks may read them later.
        self._takes_views = isinstance(self._sink, LocalSink) and compression is None
        self._append = (self._compressor or self._sink).write
        self._watch = Watch(self, self.name) if self._watched else None
        self._process = os.getpid()
        self._closed = False

    def write(self, sample: Mapping[str, Any]) -> int:
        """Append a sample and return its payload size. A sample that fails leaves the shard unchanged."""
        if self._closed or self._incomplete:
            raise WriteError("the writer is closed." if self._closed else _INCOMPLETE, url=self.name)
        encoded = sample if self._encode_sample is None else self._encode_sample(dict(sample))
        if "__key__" not in encoded:
            raise MissingField("the sample has no __key__.", url=self.name)
        key = check_key(encoded["__key__"], self._split_name)
        stem = key.encode("utf-8", "surrogateescape")
        total = 0
        blocks: list[bytes] = []
        make_header = self._headers.header
        position = self._position
        extents: dict[str, Extent] = {}
        for field, suffix, encode, encodes_bytes in self._plans.get(tuple(encoded)) or self._plan(
            encoded, key
        ):
            value = encoded[field]
            if type(value) is memoryview and not (self._takes_views and _is_constant(value)):
                value = bytes(value)
            if encodes_bytes or (type(value) is not bytes and type(value) is not memoryview):
                value = encode_field(field, value, encode, key)
            size = len(value)
            total += size
            header = make_header(stem + suffix, size)
            blocks += (header, value, PADDING[size % BLOCK])
            if self._entries is not None:
                position += len(header) + padded(size)
                if not is_reserved(field):  # readers skip those
                    extents[field.lower()] = position - padded(size), size, self._digest(value)
        if not blocks:
            raise MissingField("the sample has no fields.", url=self.name, key=key)
        key_hash = hash(key)
        if key_hash in self._keys:
            raise BadName(
                "duplicate key: its members would read as one non-contiguous sample.",
                key=key,
                hint="keys must be unique: tarmac copy --rekey '{i:09d}'.",
            )
        if len(self._keys) < DEFAULT_LIMITS.tracked_keys:
            self._keys.add(key_hash)
        self._incomplete = True  # an interrupt may come between two blocks
        if total < _MAX_JOINED:
            self._append(b"".join(blocks))
        else:
            for block in blocks:
                self._append(block)
        self._incomplete = False
        if self._entries is not None and extents:
            self._entries.add(key, extents)
        self._position = position
        return total

    def _plan(self, sample: Mapping[Any, Any], key: str) -> _Plan:
        """Return which fields of a sample are written, in which order, by which encoder."""
        plan: _Plan = []
        seen = set()
        for field in sorted(sample, key=lambda name: str(name).lower()):
            if field in _SET_BY_READERS:
                continue
            if isinstance(field, str) and is_reserved(field):
                if not self._keep_meta:
                    continue
            else:
                check_field(field, key, self._split_name)
            if field.lower() in seen:
                raise DuplicateField(f'fields differ only in case: "{field}".', url=self.name, key=key)
            seen.add(field.lower())
            suffix = b"." + field.encode("utf-8", "surrogateescape")
            plan.append((field, suffix, self._find_encoder(field), suffix.endswith(b".gz")))
        if len(self._plans) < _MAX_PLANS:
            self._plans[tuple(sample)] = plan
        return plan

    def close(self) -> None:
        """Write the end of the archive and publish the shard."""
        if self._closed:
            return
        if not self._is_owner():
            raise WriteError("the writer belongs to the process that opened it.", url=self.name)
        self._end()
        try:
            if self._incomplete:
                raise WriteError(_INCOMPLETE, url=self.name)
            self._append(END_MARKER)
            if self._compressor is not None:
                self._compressor.close()
        except BaseException:
            self._sink.abort()
            raise
        self._sink.commit()
        if self._entries is not None:
            self.sidecar = self._write_index(self._entries)

    def _write_index(self, entries: Entries) -> str:
        """Write the index beside the shard. If that fails, the published shard is complete without it."""
        from tarmac.indexing.sidecar import make_sidecar, sidecar_url, write_sidecar

        assert self.name is not None
        url = sidecar_url(self.name)
        info = stat(self.name, self._storage)
        content = make_sidecar(entries, info, {}, digests=True, url=self.name, storage=self._storage)
        write_sidecar(url, content, self._storage)
        return url

    def abort(self) -> None:
        """Discard the shard: nothing appears under its name."""
        if not self._closed:
            self._end()
            if self._is_owner():  # a forked process must not discard what its parent still writes
                self._sink.abort()

    def _is_owner(self) -> bool:
        return self._process == os.getpid()

    def _end(self) -> None:
        self._closed = True
        if self._watch is not None:
            self._watch.done()

    def _holds_data(self) -> bool:
        return bool(self._keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
            return
        if kind is GeneratorExit and not self._closed and self._watch is not None:
            self._watch.abandoned()
        self.abort()

    def __del__(self) -> None:
        if getattr(self, "_closed", True):
            return
        if self._watch is None:
            self.abort()
        else:
            self._watch.dropped(self)


def _is_constant(view: memoryview) -> bool:
    """Return whether a view is plain bytes that cannot change before they are written."""
    plain = view.c_contiguous and view.nbytes == len(view)
    return plain and view.readonly and isinstance(view.obj, bytes | mmap)


def _encoding(
    encoder: SampleEncoder | None,
) -> tuple[Callable[[Sample], Mapping[str, Any]] | None, Callable[[str], Encoder]]:
    """Return how to encode a whole sample, if at all, and the function that finds the encoder of a field."""
    if encoder is True:
        return None, find_encoder
    if isinstance(encoder, Mapping):
        return None, lambda field: find_encoder(field, encoder)
    if encoder is False or encoder is None:
        return None, lambda field: _as_bytes
    if not callable(encoder):
        raise UsageError(
            f"expected True, False, a dictionary or a function, got {encoder!r}.", field="encoder"
        )
    return encoder, lambda field: _as_bytes


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise EncodeFailed(
        f"expected bytes or a string, got {type(value).__name__}.",
        hint="encoder=True encodes Python objects.",
    )


def _entries(index: bool, name: str | None, compression: str | None) -> Entries | None:
    if not index:
        return None
    if name is None or is_stream(name):
        raise UsageError("`index` needs a file name or URL, got a stream.", field="index")
    if compression is not None:
        raise UsageError("compressed shards cannot be indexed.", field="index")
    return Entries()


def _compression(compress: bool | str | None, name: str | None) -> str | None:
    if compress is False:
        return None
    if compress is True:
        return "gz"
    if compress is None:
        return format_of_name(name or "")
    if compress not in FORMATS:
        raise UsageError(f"expected one of {', '.join(sorted(FORMATS))}, got {compress!r}.", field="compress")
    return compress
