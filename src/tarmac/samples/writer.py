"""Samples to one shard: encoded, checked, in a fixed order, published whole or not at all."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterable, Mapping
from mmap import mmap
from types import TracebackType
from typing import IO, Any, Self

from tarmac.codecs import Encoder, encode_field, encoders, find_encoder
from tarmac.errors import BadName, DuplicateField, EncodeFailed, MissingField, WriteError
from tarmac.indexing.entries import Entries, Extent
from tarmac.limits import DEFAULT_LIMITS
from tarmac.samples.naming import Splitter, check_field, check_key, first_dot, is_reserved
from tarmac.storage import Sink, StorageOptions, WriteOptions, is_local, open_write, scheme_of, stat
from tarmac.storage.local import LocalSink
from tarmac.storage.schemes import FileSink
from tarmac.storage.types import DEFAULT_STORAGE, DEFAULT_WRITE
from tarmac.storage.unclosed import Watch
from tarmac.tar.compression import FORMATS, compressing, format_of_name
from tarmac.tar.header import BLOCK, padded
from tarmac.tar.writer import END_MARK, PADDING, HeaderMaker, Owner, TarFormat

__all__ = ["TarWriter"]

SampleEncoder = bool | None | Mapping[str, Encoder] | Callable[[dict[str, Any]], dict[str, Any]]

_FORMATS: dict[object, TarFormat] = {
    None: "auto",
    tarfile.USTAR_FORMAT: "ustar",
    tarfile.GNU_FORMAT: "gnu",
    tarfile.PAX_FORMAT: "pax",
    "USTAR_FORMAT": "ustar",
    "GNU_FORMAT": "gnu",
    "PAX_FORMAT": "pax",
}
# What a reader says about a sample; stored in a shard it would only contradict the next reader.
_SET_BY_READERS = frozenset(("__key__", "__url__", "__local_path__"))
_NOT_ENCODED = "bytes or a string was expected, got {}; encoder=True turns Python objects into bytes."
_TORN = "a sample was not written to its end, so the shard cannot be finished."

COPIED = 1 << 15
"""Payloads below this are put together before they are passed on; above it, copying costs more than calls."""

_Plan = list[tuple[str, bytes, "Encoder | None", bool]]
"""Of each field: its name, what its member's name ends in, and its encoder, which bytes may need, too."""


class TarWriter:
    """Write samples to a tar shard: a file name, a URL, or an open file.

    >>> with TarWriter("train-000000.tar") as shard:
    ...     shard.write({"__key__": "0001", "jpg": image, "cls": 3})

    The shard appears under its name when the writer is closed. Leaving the `with` block by an
    exception publishes nothing. A writer that is never closed is published at the end of the program,
    with a warning, unless an exception ended it. A key or field that would not read back as it was written
    is refused.

    `encoder` is True to encode by extension, False for samples that are bytes already, a dictionary
    from extension to function, or a function from sample to sample. `keep_meta` also stores `__x__`
    fields. `mtime` is 0 unless given, so that the same samples make the same bytes. `index` also writes the
    shard's index, with digests, beside it.
    """

    sidecar: str | None = None
    """Where the index is, once it is written."""

    def __init__(
        self,
        fileobj: str | os.PathLike[str] | IO[bytes],
        user: str = "bigdata",
        group: str = "bigdata",
        mode: int = 0o444,
        compress: bool | str | None = None,
        encoder: SampleEncoder = True,
        keep_meta: bool = False,
        mtime: float | None = None,
        format: str | int | None = None,
        *,
        split: Splitter = first_dot,
        storage: StorageOptions = DEFAULT_STORAGE,
        write: WriteOptions = DEFAULT_WRITE,
        index: bool = False,
        _name: str | None = None,
        _close: bool = False,
        _watched: bool = True,
    ) -> None:
        self._closed = True  # until there is something to close
        self._torn = False
        self._headers = HeaderMaker(Owner(user, group, mode, int(mtime or 0)), _tar_format(format))
        self._encoder = _EncoderChoice(encoder)
        self._whole = self._encoder.whole
        self._keep_meta = keep_meta
        self._split = split
        self._keys: set[int] = set()
        self._plans: dict[tuple[str, ...], _Plan] = {}
        self.name = os.fspath(fileobj) if isinstance(fileobj, str | os.PathLike) else _name
        form = _compression(compress, self.name)  # before the target is touched
        self._entries = _entries(index, self.name, form)
        if index:
            import pyarrow  # noqa: F401 - needed at the end, when Python may import nothing more
            from xxhash import xxh3_64_intdigest

            import tarmac.indexing.sampled_digests
            import tarmac.indexing.sidecar  # noqa: F401

            self._digest = xxh3_64_intdigest
        self._storage = storage
        self._position = 0
        if isinstance(fileobj, str | os.PathLike):
            self._sink: Sink = open_write(os.fspath(fileobj), storage, write)
        else:
            self._sink = FileSink(fileobj, close=_close)
        try:
            self._compressor = compressing(self._sink, form) if form else None
        except BaseException:  # its library may be missing
            self._sink.abort()
            raise
        # A local file takes bytes from wherever they are; others may look at them again.
        self._views = isinstance(self._sink, LocalSink) and form is None
        self._append = (self._compressor or self._sink).write
        self._watch = Watch(self, self.name) if _watched else None
        self._process = os.getpid()
        self._closed = False

    def write(self, sample: Mapping[str, Any]) -> int:
        """Append a sample and return its payload size. A sample that fails leaves the shard as it was."""
        if self._closed or self._torn:
            what = "the writer is closed." if self._closed else _TORN
            raise WriteError(what, url=self.name)
        encoded = sample if self._whole is None else self._whole(dict(sample))
        if "__key__" not in encoded:
            raise MissingField("a sample needs a __key__.", url=self.name)
        key = check_key(encoded["__key__"], self._split)
        stem = key.encode("utf-8", "surrogateescape")
        total = 0
        blocks: list[bytes] = []
        header = self._headers.header
        position = self._position
        places: dict[str, Extent] = {}
        for field, suffix, encode, always in self._plans.get(tuple(encoded)) or self._plan(encoded, key):
            value = encoded[field]
            if type(value) is memoryview and not (self._views and _lasting(value)):
                value = bytes(value)
            if type(value) is not bytes and type(value) is not memoryview:
                if encode is None:
                    raise EncodeFailed(
                        f'field "{field}": {_NOT_ENCODED.format(type(value).__name__)}', key=key
                    )
                value = encode_field(field, value, encode, key)
            elif always and encode is not None:
                value = encode_field(field, value, encode, key)
            size = len(value)
            total += size
            before = header(stem + suffix, size)
            blocks += (before, value, PADDING[size % BLOCK])
            if self._entries is not None:
                position += len(before) + padded(size)
                if not is_reserved(field):  # readers pass over those
                    places[field.lower()] = position - padded(size), size, self._digest(value)
        if not blocks:
            raise MissingField(
                "a sample needs at least one field; this one would vanish.", url=self.name, key=key
            )
        mark = hash(key)
        if mark in self._keys:
            raise BadName("this key was written before; its files would be read as one torn sample.", key=key)
        if len(self._keys) < DEFAULT_LIMITS.tracked_keys:
            self._keys.add(mark)
        self._torn = True  # until all of it is there: an interrupt may come between two blocks
        if total < COPIED:
            self._append(b"".join(blocks))
        else:
            for block in blocks:
                self._append(block)
        self._torn = False
        if self._entries is not None and places:
            self._entries.add(key, places)
        self._position = position
        return total

    def _plan(self, sample: Mapping[str, Any], key: str) -> _Plan:
        """Which fields to write, in which order, through which encoder; the same for samples alike."""
        names = tuple(sample)
        plan = self._plans.get(names)
        if plan is None:
            plan = self._make_plan(names, key)
            if len(self._plans) < 1000:
                self._plans[names] = plan
        return plan

    def _make_plan(self, names: Iterable[Any], key: str) -> _Plan:
        plan: _Plan = []
        seen = set()
        for field in sorted(names, key=str):
            if field in _SET_BY_READERS:
                continue
            if isinstance(field, str) and is_reserved(field):
                if not self._keep_meta:
                    continue
            else:
                check_field(field, key, self._split)
            if field.lower() in seen:
                raise DuplicateField(f'fields differ only in case: "{field}".', url=self.name, key=key)
            seen.add(field.lower())
            suffix = b"." + field.encode("utf-8", "surrogateescape")
            plan.append((field, suffix, self._encoder.of(field), suffix.endswith(b".gz")))
        return plan

    def close(self) -> None:
        """Write the end mark and publish the shard."""
        if self._closed:
            return
        if not self._mine():
            raise WriteError("the writer belongs to the process that opened it.", url=self.name)
        self._end()
        try:
            if self._torn:
                raise WriteError(_TORN, url=self.name)
            self._append(END_MARK)
            if self._compressor is not None:
                self._compressor.close()
        except BaseException:
            self._sink.abort()
            raise
        self._sink.commit()
        if self._entries is not None:
            self.sidecar = self._write_index(self._entries)

    def _write_index(self, entries: Entries) -> str:
        """Put the index beside the shard; what is in place already is whole, with an index or without."""
        from tarmac.indexing.sampled_digests import sample_digests
        from tarmac.indexing.sidecar import make_sidecar, sidecar_url, write_sidecar

        assert self.name is not None
        url = sidecar_url(self.name)
        info = stat(self.name, self._storage)
        sampled = sample_digests(self.name, info, entries.offsets, self._storage)
        local = is_local(self.name)
        content = make_sidecar(entries, info, {}, digests=True, local=local, sampled_digests=sampled)
        write_sidecar(url, content, self._storage)
        return url

    def abort(self) -> None:
        """Give up: nothing appears under the shard's name."""
        if not self._closed:
            self._end()
            if self._mine():  # what a forked process gives up is still written by its parent
                self._sink.abort()

    def _mine(self) -> bool:
        return self._process == os.getpid()

    def _end(self) -> None:
        self._closed = True
        if self._watch is not None:
            self._watch.done()

    def _holds_data(self) -> bool:
        return bool(self._keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


def _lasting(view: memoryview) -> bool:
    """Whether these are bytes that nobody can change before they are written."""
    plain = view.c_contiguous and view.nbytes == len(view)
    return plain and view.readonly and isinstance(view.obj, bytes | mmap)


class _EncoderChoice:
    """The `encoder` argument: how to treat a whole sample, and each of its fields."""

    def __init__(self, spec: SampleEncoder) -> None:
        self._table: Mapping[str, Encoder] | None = None
        self.whole: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        if spec is True:
            self._table = encoders
        elif isinstance(spec, Mapping):
            self._table = spec
        elif callable(spec):
            self.whole = spec
        elif spec is not False and spec is not None:
            raise ValueError(f"encoder must be True, False, a dictionary or a function, got {spec!r}")

    def of(self, field: str) -> Encoder | None:
        return _as_bytes if self._table is None else find_encoder(field, self._table)


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise EncodeFailed(_NOT_ENCODED.format(type(value).__name__))


def _tar_format(form: str | int | None) -> TarFormat:
    found = _FORMATS.get(form, form)
    if found not in ("auto", "ustar", "gnu", "pax"):
        raise ValueError(f"format must be auto, ustar, gnu or pax, got {form!r}")
    return found  # type: ignore[return-value]


def _entries(index: bool, name: str | None, compression: str | None) -> Entries | None:
    if not index:
        return None
    if name is None or scheme_of(name) in ("pipe", "-"):
        raise ValueError("index=True: the shard has no name to put the index beside")
    if compression is not None:
        raise ValueError("index=True: the shard is compressed, so nothing in it has an address")
    return Entries()


def _compression(compress: bool | str | None, name: str | None) -> str | None:
    if compress is False:
        return None
    if compress is True:
        return "gz"
    if compress is None:
        return format_of_name(name or "")
    if compress not in FORMATS:
        raise ValueError(f"compress must be one of {', '.join(sorted(FORMATS))}, got {compress!r}")
    return compress
