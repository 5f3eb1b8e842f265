"""The samples of one tar file, with an index that is built in memory when the file is opened."""

from __future__ import annotations

import hashlib
import io
import os
import uuid
from collections.abc import Iterable, Iterator
from typing import IO, Any

from tarmac.errors import BadManifest, DigestMismatch, IndexingError, TarmacError
from tarmac.exact.indexed import IndexedShard
from tarmac.indexing.entries import Entries
from tarmac.indexing.sidecar import make_sidecar, read_sidecar
from tarmac.samples.grouping import Grouping, Sample, group_members
from tarmac.samples.naming import first_dot
from tarmac.storage import ObjectInfo, Source, open_read
from tarmac.storage.local import LocalSource
from tarmac.tar import read_members
from tarmac.tar.compression import HEAD, detect

__all__ = [
    "compute_file_md5sum",
    "compute_num_samples",
    "group_by_key",
    "index_in_memory",
    "IndexedTarSamples",
    "splitname",
    "wids_sample",
]


def index_in_memory(
    source: Source, url: str, *, md5sum: str | None = None, samples: int | None = None
) -> IndexedShard:
    """Index an open shard, which must have this MD5 sum and number of samples, if given. Damage raises.

    Fields have the case that they have in the file. The shard owns the source, which is closed if this fails.
    """
    try:
        data = source.map() or source.content()
        if data is None:  # a stream
            source = _InMemory(source)
            data = source.data
        if md5sum is not None and (actual := hashlib.md5(data).hexdigest()) != md5sum:  # noqa: S324
            raise DigestMismatch(f"expected the MD5 sum {md5sum}, got {actual}.", url=url)
        if compression := detect(data[:HEAD]):
            raise IndexingError(
                f"the shard is compressed ({compression}), which does not allow random access.",
                url=url,
                hint="decompress it.",
            )
        members: Iterator[Any] = (
            (name, offset, size, (offset, size, 0))
            for name, offset, size, _ in read_members(data, url=url, payload=False)
        )
        entries = Entries()
        for fields in group_members(members, url, Grouping(lower=False)):
            del fields["__url__"]
            entries.add(fields.pop("__key__"), fields)
        content = make_sidecar(entries, ObjectInfo(len(data), None), {}, digests=False)
        shard = IndexedShard(url, read_sidecar(content, url), source)
        if samples not in (None, len(shard)):
            raise BadManifest(
                f"the list of shards says {samples} samples, the shard has {len(shard)}.",
                url=url,
                hint="update the list: tarmac index SHARDS -o FILE.json",
            )
    except BaseException as error:
        if isinstance(error, TarmacError):
            source.blame(error)
        source.close()
        raise
    return shard


class _InMemory(Source):
    """The content of a stream."""

    def __init__(self, stream: Source | IO[bytes]) -> None:
        self.data = b"".join(iter(lambda: stream.read(1 << 20), b""))
        if isinstance(stream, Source):
            stream.close()

    def content(self) -> bytes:
        return self.data


def wids_sample(sample: Sample) -> Sample:
    """Convert a sample to the form of wids: extensions with their dot, and open files."""
    key = sample.pop("__key__")
    del sample["__url__"]
    converted: Sample = {"." + field: io.BytesIO(data) for field, data in sample.items()}
    converted["__key__"] = key
    return converted


class IndexedTarSamples:
    """The samples of a local tar file as a sequence of dictionaries.

    The keys are the extensions with their dot, with open files (`io.BytesIO`) as values, and `__key__`. The file is
    `path`, or the open file `stream`. A different `md5sum`, or a number of samples other than `expected_size`, is
    an error. `use_mmap` and `index_file` are accepted for compatibility and have no effect.
    """

    def __init__(
        self,
        *,
        path: str | os.PathLike[str] | None = None,
        stream: IO[bytes] | Source | None = None,
        md5sum: str | None = None,
        expected_size: int | None = None,
        use_mmap: bool = True,
        index_file: Any = None,
    ) -> None:
        del use_mmap, index_file
        if path is None and stream is None:
            raise TypeError("IndexedTarSamples needs `path` or `stream`")
        self.path: str | None = None if path is None else os.fspath(path)
        name = self.path or str(getattr(stream, "name", "a stream"))
        source = open_read(name) if stream is None else _as_source(stream, name)
        self._shard: IndexedShard | None = index_in_memory(source, name, md5sum=md5sum, samples=expected_size)
        self._length = len(self._shard)
        self.uuid: str = str(uuid.uuid4())

    @classmethod
    def _of(cls, shard: IndexedShard) -> IndexedTarSamples:
        samples = cls.__new__(cls)
        samples.path, samples.uuid = shard.url, str(uuid.uuid4())
        samples._shard, samples._length = shard, len(shard)
        return samples

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, idx: int) -> Sample:
        if self._shard is None:
            raise ValueError("the file is closed")
        if not -self._length <= idx < self._length:
            raise IndexError(f"index {idx} is out of range for {self._length} samples")
        return wids_sample(self._shard.sample(idx % self._length))

    def close(self) -> None:
        """Release the file. It is closed when no other thread reads from it."""
        self._shard = None

    def __repr__(self) -> str:
        return f"<IndexedTarSamples of {self.path or 'a stream'}>"


def _as_source(stream: IO[bytes] | Source, name: str) -> Source:
    if isinstance(stream, Source):
        return stream
    try:
        return LocalSource(name, os.dup(stream.fileno()))  # the caller may close the stream
    except (AttributeError, OSError):  # not a file of the system, such as BytesIO
        stream.seek(0)
        return _InMemory(stream)


def compute_num_samples(fname: str | os.PathLike[str]) -> int:
    """Return the number of samples in a tar file."""
    return len(IndexedTarSamples(path=fname))


def compute_file_md5sum(fname: str | os.PathLike[str] | IO[bytes], chunksize: int = 1 << 20) -> str:
    """Return the MD5 sum of a file, or of an open file from its beginning."""
    if isinstance(fname, str | os.PathLike):
        with open(fname, "rb") as file:
            return compute_file_md5sum(file, chunksize)
    fname.seek(0)
    digest = hashlib.md5()  # noqa: S324 (the digest that wids writes into its lists)
    while chunk := fname.read(chunksize):
        digest.update(chunk)
    return digest.hexdigest()


def splitname(fname: str) -> tuple[str, str]:
    """Split a file name into the key of its sample and the extension with its dot."""
    split = first_dot(fname)
    if split is None:
        raise ValueError(f"{fname!r} has no extension")
    return split[0], f".{split[1]}"


def group_by_key(names: Iterable[str]) -> list[list[int]]:
    """Return the positions of the files of each sample. Files without an extension are left out."""
    groups: list[list[int]] = []
    current = None
    for number, name in enumerate(names):
        split = first_dot(name)
        if split is None:
            continue
        if split[0] != current:
            groups.append([])
            current = split[0]
        groups[-1].append(number)
    return groups
