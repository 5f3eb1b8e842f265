"""The samples of one tar file by number, with no index beside it: its headers are read when it is opened."""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import uuid
from collections.abc import Iterator
from typing import IO, Any

from tarmac.errors import BadManifest, DigestMismatch, IndexingError, TarmacError
from tarmac.exact.indexed import IndexedShard
from tarmac.indexing.entries import Entries
from tarmac.indexing.sidecar import Sidecar, make_sidecar, read_sidecar
from tarmac.samples.grouping import Grouping, Sample, group_members
from tarmac.storage import ObjectInfo, Source, open_read
from tarmac.tar import read_members
from tarmac.tar.compression import HEAD, detect

__all__ = ["IndexedTarSamples", "compute_file_md5sum", "compute_num_samples"]

_GROUPING = Grouping(lower=False)  # the names of fields are given as they are in the file


class IndexedTarSamples:
    """The samples of a tar file that lies on this machine: `samples[i]` is a dictionary.

    Its keys are the extensions with their dot, its values open files (`io.BytesIO`), and `__key__`. `path` is
    the file, or `stream` is it, open. A wrong `md5sum`, or another number of samples than `expected_size`,
    is an error. `use_mmap` and `index_file` are taken for the sake of programs for wids, without effect.
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
            raise TypeError("IndexedTarSamples needs a path= or a stream=")
        self.path = None if path is None else os.fspath(path)
        name = self.path or str(getattr(stream, "name", "a stream"))
        source = _addressable(open_read(name) if stream is None else stream)
        try:
            self._shard: IndexedShard | None = _indexed(source, name, md5sum, expected_size)
        except TarmacError as error:
            source.close()
            if isinstance(stream, Source):
                stream.blame(error)
            raise
        except BaseException:
            source.close()
            raise
        self._length = len(self._shard)
        self.uuid = str(uuid.uuid4())

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, idx: int) -> Sample:
        if self._shard is None:
            raise ValueError("the file was closed")
        if not -self._length <= idx < self._length:
            raise IndexError(f"there are {self._length} samples, numbered from 0; asked for {idx}")
        found = self._shard.sample(idx % self._length)
        key = found.pop("__key__")
        del found["__url__"]
        sample: Sample = {f".{field}": io.BytesIO(data) for field, data in found.items()}
        sample["__key__"] = key
        return sample

    def close(self) -> None:
        """Let go of the file; it is closed when no other thread reads from it any more."""
        self._shard = None

    def __repr__(self) -> str:
        return f"<IndexedTarSamples of {self.path or 'a stream'}>"


def compute_num_samples(fname: str | os.PathLike[str]) -> int:
    """How many samples a tar file has."""
    return len(IndexedTarSamples(path=fname))


def compute_file_md5sum(fname: str | os.PathLike[str] | IO[bytes], chunksize: int = 1 << 20) -> str:
    """The MD5 sum of a file, or of an open one from its beginning."""
    if isinstance(fname, str | os.PathLike):
        with open(fname, "rb") as file:
            return compute_file_md5sum(file, chunksize)
    fname.seek(0)
    digest = hashlib.md5()  # noqa: S324 (what other tools wrote into their lists)
    while chunk := fname.read(chunksize):
        digest.update(chunk)
    return digest.hexdigest()


def _indexed(source: _Addressable, url: str, md5sum: str | None, samples: int | None) -> IndexedShard:
    """The file with its index, if it is the one that was meant."""
    if md5sum is not None and (found := hashlib.md5(source.data).hexdigest()) != md5sum:  # noqa: S324
        raise DigestMismatch(f"the file has the MD5 sum {found}, expected {md5sum}.", url=url)
    sidecar = _index_of(source.data, url)
    if samples is not None and samples != len(sidecar):
        raise BadManifest(
            f"the list of shards says {samples} samples, the shard has {len(sidecar)}.",
            url=url,
            hint="make the list again: tarmac index SHARDS -o FILE.json",
        )
    return IndexedShard(url, sidecar, source)


def _index_of(data: mmap.mmap | bytes, url: str) -> Sidecar:
    """Index a tar file in memory, strictly: damage raises, and nothing is indexed by halves."""
    if form := detect(data[:HEAD]):
        raise IndexingError(
            f"the shard is compressed ({form}), so nothing in it has an address.", url=url, hint="unpack it."
        )
    entries = Entries()
    for found in group_members(_places(data, url), url, _GROUPING):
        key = found.pop("__key__")
        del found["__url__"]
        entries.add(key, found)
    content = make_sidecar(entries, ObjectInfo(len(data), None), {}, digests=False, local=True)
    return read_sidecar(content, url)


def _places(data: mmap.mmap | bytes, url: str) -> Iterator[Any]:
    """The members of a tar file, in place of whose bytes comes where they are."""
    for name, offset, size, _ in read_members(data, url=url, payload=False):
        yield name, offset, size, (offset, size, 0)


def _addressable(stream: IO[bytes] | Source) -> _Addressable:
    """What is open, mapped or in memory; a file of someone else stays theirs."""
    if isinstance(stream, Source):
        if (found := stream.map()) is not None:
            return _Addressable(found, stream)
        with stream:
            return _Addressable(b"".join(iter(lambda: stream.read(1 << 20), b"")))
    try:
        return _Addressable(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    except (AttributeError, OSError, ValueError):  # no file of the system, a BytesIO say, or an empty one
        stream.seek(0)
        return _Addressable(stream.read())


class _Addressable(Source):
    """The bytes of a file at their addresses, and what has to be closed after them."""

    def __init__(self, data: mmap.mmap | bytes, owner: Source | None = None) -> None:
        self.data, self._owner = data, owner

    def map(self) -> mmap.mmap | None:
        return self.data if isinstance(self.data, mmap.mmap) else None

    def content(self) -> bytes | None:
        return self.data if isinstance(self.data, bytes) else None

    def close(self) -> None:
        if isinstance(self.data, mmap.mmap):
            self.data.close()
        if self._owner is not None:
            self._owner.close()
