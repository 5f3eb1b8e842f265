"""The way from shards to samples in single steps: open, expand, group.

`WebDataset` goes this way in one stage. These are for programs that put the steps together themselves, with
steps of their own between them. A stream that was opened here is closed where it has been read, and files of
a sample leave the expander only when the sample is whole, so that no grouping behind it sees half of one.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import IO, Any

from tarmac.compat.gopen import ReadFile, gopen
from tarmac.errors import ArchiveError, SplitSample
from tarmac.samples.grouping import Grouping, group_members
from tarmac.samples.naming import first_dot
from tarmac.steps.handlers import Handler, reraise_exception
from tarmac.tar import Member, read_members

__all__ = [
    "EndOfShard",
    "base_plus_ext",
    "each_opened",
    "group_by_keys",
    "tar_file_expander",
    "tar_file_iterator",
    "url_opener",
    "valid_sample",
]

SKIP_META = r"__[^/]*__($|/)"
HELD = 1000
"""Files of one sample that wait for its end; a sample of more is handed out in pieces."""
Selector = Callable[[str], bool]
Renamer = Callable[[str], str]


class EndOfShard(dict[str, Any]):
    """What stands between shards: an empty dictionary.

    A grouping that does not know about it finds a file without a name, which belongs to no sample.
    """

    def __missing__(self, key: str) -> str | bytes:
        if key == "fname":
            return ""
        if key == "data":
            return b""
        raise KeyError(key)


class _Stop(Exception):
    """A handler wished the stream to end."""


class _RestDropped(Exception):
    """What comes behind a sample in pieces is not read."""


def base_plus_ext(path: str) -> tuple[str, str] | tuple[None, None]:
    """Split a file name into key and field at the first dot of its last part; (None, None) if it has none."""
    return first_dot(path) or (None, None)


def valid_sample(sample: Any) -> bool:
    """Whether this is a sample at all, and not marked with `__bad__`."""
    return isinstance(sample, dict) and bool(sample) and not sample.get("__bad__", False)


def url_opener(
    data: Iterable[Any], handler: Handler = reraise_exception, **kw: Any
) -> Iterator[dict[str, Any]]:
    """Open shards: to each dictionary with a `url` its `stream` is added. `kw` goes to `gopen`."""
    return each_opened(data, handler, lambda url: {"stream": gopen(url, **kw)})


def each_opened(
    data: Iterable[Any], handler: Handler, opened: Callable[[str], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Add what `opened(url)` returns to each shard; a handler decides about those that cannot be opened."""
    for shard in data:
        shard = {"url": shard} if isinstance(shard, str) else shard
        try:
            found = {**shard, **opened(shard["url"])}
        except Exception as exn:
            if handler(exn):
                continue
            return
        yield found


def tar_file_iterator(
    fileobj: IO[bytes],
    skip_meta: str | None = SKIP_META,
    handler: Handler = reraise_exception,
    select_files: Selector | None = None,
    rename_files: Renamer | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the files of an archive as dictionaries of `fname` and `data`.

    Names that fit `skip_meta` are left out; `rename_files(name)` and then `select_files(name)` see the rest.
    When a handler lets an error of the archive pass, the rest of the archive is lost.
    """
    try:
        for name, data in _files(fileobj, None, skip_meta, handler, select_files, rename_files):
            yield {"fname": name, "data": data}
    except _Stop:
        return
    except Exception as exn:
        handler(exn)


def _files(
    fileobj: Any,
    url: str | None,
    skip_meta: str | None,
    handler: Handler,
    select: Selector | None,
    rename: Renamer | None,
) -> Generator[tuple[str, bytes], None, None]:
    """Read the wanted files of an archive; errors of the archive are raised, those of functions handled."""
    meta = None if skip_meta is None else re.compile(skip_meta)
    chosen = ""

    def wanted(member: bytes) -> bool:
        nonlocal chosen
        name = member.decode("utf-8", "surrogateescape")
        try:
            if meta is not None and meta.match(name):
                return False
            chosen = name if rename is None else rename(name)
            return select is None or bool(select(chosen))
        except Exception as exn:
            if not handler(exn):
                raise _Stop from exn
            return False

    whole = fileobj.source.map() if isinstance(fileobj, ReadFile) else None
    try:
        with contextlib.closing(read_members(whole or fileobj, url=url, wanted=wanted)) as members:
            for _name, _offset, _size, data in members:
                yield chosen, data
    except ArchiveError as error:
        if isinstance(fileobj, ReadFile):
            fileobj.source.blame(error)
        raise


def tar_file_expander(
    data: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    select_files: Selector | None = None,
    rename_files: Renamer | None = None,
    eof_value: Any = EndOfShard(),  # noqa: B008 - never changed, and telling it from None matters
) -> Iterator[dict[str, Any]]:
    """Yield the files of opened shards, and `eof_value` behind each shard, unless it is None.

    Files come with the `__url__` of their shard. Those of a sample come when all of them were read: at a
    tear, what there is of the last sample is left out. A shard with `part: (index, count)` gives only every
    `count`-th sample, from number `index` on.
    """
    for shard in data:
        common = {"__url__": shard["url"]}
        if shard.get("local_path") is not None:
            common["__local_path__"] = shard["local_path"]
        stream = shard["stream"]
        files = _files(stream, shard["url"], SKIP_META, handler, select_files, rename_files)
        try:
            for name, content in _whole_samples(files, *shard.get("part", (0, 1))):
                yield {"fname": name, "data": content, **common}
        except _Stop:
            return
        except Exception as exn:
            if not handler(exn):
                return
        finally:
            files.close()
            if isinstance(stream, ReadFile):  # whoever opened another kind closes it
                stream.close()
        if eof_value is not None:
            yield eof_value


url_opener.keeps_parts = True  # type: ignore[attr-defined]
tar_file_expander.reads_parts = True  # type: ignore[attr-defined]


def _whole_samples(files: Iterator[tuple[str, bytes]], index: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Hold back the files of a sample until it is whole; keep those of one sample out of `count`."""
    held: list[tuple[str, bytes]] = []
    current, number = None, -1
    for name, content in files:
        key, _ = first_dot(name) or (name, "")
        if key != current:
            yield from held
            held.clear()
            current, number = key, number + 1
        if number % count == index:
            held.append((name, content))
        if len(held) >= HELD:
            yield from held
            held.clear()
    yield from held


def group_by_keys(
    data: Iterable[dict[str, Any]],
    keys: Callable[[str], tuple[str | None, str | None]] = base_plus_ext,
    lcase: bool = True,
    suffixes: Iterable[str] | None = None,
    handler: Handler = reraise_exception,
) -> Iterator[dict[str, Any]]:
    """Group files next to each other into samples, by the rule `keys(fname) -> (key, field)`.

    `lcase` reads field names in lower case, `suffixes` limits the fields. A field that comes twice in a
    sample and a key that comes again later in its shard are errors. A handler that goes on drops the sample
    with such a field, and all that follows such a key in its shard.
    """
    chosen = None if suffixes is None else {"__key__", "__url__", *suffixes}
    files = _Shards(data)

    def split(name: str) -> tuple[str, str] | None:
        try:
            key, field = keys(name)
        except Exception as exn:
            ask(exn)
            return None
        return None if key is None or field is None else (key, field)

    def ask(error: Exception) -> None:
        if not handler(error):
            raise _Stop
        if isinstance(error, SplitSample):  # no telling what else in this shard is in pieces
            raise _RestDropped

    grouping = Grouping(split_name=first_dot if keys is base_plus_ext else split, lower=lcase)
    try:
        while files.next_shard():
            try:
                for sample in group_members(files.members(), files.url, grouping, on_error=ask):
                    if chosen is not None:
                        sample = {name: value for name, value in sample.items() if name in chosen}
                    if files.local_path is not None:
                        sample["__local_path__"] = files.local_path
                    if valid_sample(sample):
                        yield sample
            except _RestDropped:
                for _ in files.members():
                    pass
    except _Stop:
        return


class _Shards:
    """A stream of files, cut where a shard ends: at an empty dictionary, or where the URL changes."""

    def __init__(self, data: Iterable[dict[str, Any]]) -> None:
        self._files = iter(data)
        self._next: dict[str, Any] | None = None
        self.url = ""
        self.local_path: str | None = None

    def next_shard(self) -> bool:
        """Go to the next shard that has files; False if there is none."""
        while not self._next:
            try:
                self._next = next(self._files)
            except StopIteration:
                return False
        self.url, self.local_path = self._next.get("__url__", ""), self._next.get("__local_path__")
        return True

    def members(self) -> Iterator[Member]:
        """The files of this shard."""
        file = self._next
        while file and file.get("__url__", "") == self.url:
            yield file["fname"].encode("utf-8", "surrogateescape"), 0, len(file["data"]), file["data"]
            file = self._next = next(self._files, None)
