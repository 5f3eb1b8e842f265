"""Keep shards in a zip file: a store for URLs that begin with `zip:`.

One registration makes the scheme known everywhere: writers, readers, globs, `Dataset`, caches and the shard
tools use it like a built-in one.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from typing import IO

import tarmac
from tarmac.errors import CommitFailed, NotFound
from tarmac.storage import (
    FileSource,
    ObjectInfo,
    Source,
    StorageOptions,
    Store,
    list_objects,
    read_all,
    stat,
    write_all,
)


class ZipStore(Store):
    """The members of one zip file: `zip:NAME`."""

    def __init__(self, path: str) -> None:
        self._path = path
        zipfile.ZipFile(path, "a").close()

    def _open(self, url: str) -> IO[bytes]:
        try:
            with zipfile.ZipFile(self._path) as archive:  # the open member keeps the file open
                return archive.open(url.removeprefix("zip:"))
        except KeyError:
            raise NotFound("no such member.", url=url) from None

    def open_read(self, url: str, storage: StorageOptions, /) -> Source:
        return FileSource(self._open(url))

    def read_range(
        self, url: str, start: int, stop: int, storage: StorageOptions, version: str | None, /
    ) -> bytes:
        with self._open(url) as member:
            member.seek(start)
            return member.read(stop - start)

    def stat(self, url: str, storage: StorageOptions, /) -> ObjectInfo:
        for name, info in self.list_objects(url, storage):
            if name == url:
                return info
        raise NotFound("no such member.", url=url)

    def list_objects(self, prefix: str, storage: StorageOptions, /) -> Iterator[tuple[str, ObjectInfo]]:
        with zipfile.ZipFile(self._path) as archive:
            for member in archive.infolist():
                if f"zip:{member.filename}".startswith(prefix):
                    yield f"zip:{member.filename}", ObjectInfo(member.file_size, f"{member.CRC:08x}")

    def put(
        self, url: str, file: IO[bytes], size: int, storage: StorageOptions, /, *, only_new: bool
    ) -> None:
        with zipfile.ZipFile(self._path, "a") as archive:
            if url.removeprefix("zip:") in archive.namelist():  # zip files cannot replace members
                raise CommitFailed("the member exists.", url=url)
            archive.writestr(url.removeprefix("zip:"), file.read())


# At the top level of the module, so that spawned worker processes register it, too.
tarmac.register_scheme("zip", ZipStore("shards.zip"))


def main() -> None:
    """Write shards into a zip file, and read them in every way."""
    with tarmac.ShardWriter("zip:train/%04d.tar", max_samples=40) as writer:
        for number in range(100):
            writer.write({"__key__": f"{number:06d}", "txt": f"sample {number}"})
    for url, info in list_objects("zip:train/"):
        print(url, info.size, info.version)

    print(sum(1 for _ in tarmac.read("zip:train/*.tar")), "samples")
    for sample in tarmac.WebDataset("zip:train/{0000..0002}.tar", shardshuffle=False).decode():
        print(sample["__key__"], sample["txt"])
        break

    dataset = tarmac.Dataset("zip:train/*.tar").decode()
    print(len(dataset), dataset[73]["txt"])

    write_all("zip:notes.txt", b"plain files work, too")
    print(stat("zip:notes.txt").size, read_all("zip:notes.txt").decode())


if __name__ == "__main__":
    main()
