"""`webdataset.tariterators`: read samples from shards in separate steps: open, expand, group.

`WebDataset` does all of it in one stage. These functions are for programs that compose the steps themselves, with
steps of their own in between. The expander closes the streams that `url_opener` opened. It yields the files of a
sample only when the sample is complete, so that no custom grouping after it sees half a sample.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain, groupby, islice
from typing import IO, Any

from tarmac import environment
from tarmac.compat.webdataset import filters as filters
from tarmac.compat.webdataset._security import check_url
from tarmac.compat.webdataset._stages import library_stage
from tarmac.compat.webdataset.gopen import ReadFile
from tarmac.compat.webdataset.utils import print_message
from tarmac.display import display_url
from tarmac.errors import ArchiveError, SplitSample
from tarmac.limits import DEFAULT_LIMITS
from tarmac.runtime.seeds import random_seed
from tarmac.samples.grouping import Grouping, group_members
from tarmac.samples.naming import first_dot
from tarmac.steps.handlers import Handler, reraise_exception
from tarmac.storage.braces import expand_braces
from tarmac.stream import read_shards
from tarmac.tar import Member, TarOptions, read_members

# The module, which the program may change; the attribute of the package is the function.
gopen = importlib.import_module("tarmac.compat.webdataset.gopen")

meta_prefix = meta_suffix = "__"

SKIP_META = r"__[^/]*__($|/)"
MAX_HELD_FILES = 1000
"""Files of one sample that are held until the sample is complete; a larger sample is yielded in parts."""
Selector = Callable[[str], bool]
Renamer = Callable[[str], str]


class _EndOfShard(dict[str, Any]):
    """An empty dictionary that separates shards.

    A custom grouping that does not know it sees a file without a name, which belongs to no sample.
    """

    def __missing__(self, key: str) -> str | bytes:
        if key == "fname":
            return ""
        if key == "data":
            return b""
        raise KeyError(key)


class _Stop(Exception):
    """A handler ended the stream."""


class _SkipShard(Exception):
    """A handler ignored a non-contiguous sample; others of the shard may be non-contiguous, too."""


def shardlist(urls: str | Iterable[str], *, shuffle: bool = False) -> Iterator[dict[str, str]]:
    """Yield the shards of a pattern or list; with `shuffle`, in a new random order for each call."""
    names = list(expand_braces(urls, DEFAULT_LIMITS)) if isinstance(urls, str) else list(urls)
    if shuffle:
        random.Random(random_seed()).shuffle(names)
    return ({"url": name} for name in names)


def base_plus_ext(path: str) -> tuple[str, str] | tuple[None, None]:
    """Split a file name into key and field at the first dot of its last part; (None, None) without a dot."""
    return first_dot(path) or (None, None)


def valid_sample(sample: Any) -> bool:
    """Return whether `sample` is a non-empty dictionary without `__bad__`."""
    return isinstance(sample, dict) and bool(sample) and not sample.get("__bad__", False)


def url_opener(
    data: Iterable[Any], handler: Handler = reraise_exception, **kw: Any
) -> Iterator[dict[str, Any]]:
    """Open shards: add `stream` to each dictionary with a `url`. `kw` is passed to `gopen`."""
    return open_each(data, handler, lambda url: {"stream": gopen.gopen(url, **kw)})


def open_each(
    data: Iterable[Any], handler: Handler, opener: Callable[[str], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Add the items of `opener(url)` to each shard; call `handler` with the errors."""
    for shard in data:
        shard = {"url": shard} if isinstance(shard, str) else shard
        try:
            opened = {**shard, **opener(shard["url"])}
        except Exception as exn:
            if handler(exn):
                continue
            return
        yield opened


def tar_file_iterator(
    fileobj: IO[bytes],
    skip_meta: str | None = SKIP_META,
    handler: Handler = reraise_exception,
    select_files: Selector | None = None,
    rename_files: Renamer | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the files of an archive as dictionaries with `fname` and `data`.

    Names that match `skip_meta` are left out. `rename_files(name)` and then `select_files(name)` are called for the
    others. If the handler ignores an error of the archive, the rest of the archive is lost.
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
    """Yield the selected files of an archive. Raise errors of the archive; handle errors of the functions."""
    meta = None if skip_meta is None else re.compile(skip_meta)
    current = ""

    def wanted(member: bytes) -> bool:
        nonlocal current
        name = member.decode("utf-8", "surrogateescape")
        try:
            if meta is not None and meta.match(name):
                return False
            current = name if rename is None else rename(name)
            return select is None or bool(select(current))
        except Exception as exn:
            if not handler(exn):
                raise _Stop from exn
            return False

    mapped = fileobj.source.map() if isinstance(fileobj, ReadFile) else None
    try:
        with contextlib.closing(read_members(mapped or fileobj, url=url, wanted=wanted)) as members:
            for _name, _offset, _size, data in members:
                yield current, data
    except ArchiveError as error:
        if isinstance(fileobj, ReadFile):
            fileobj.source.blame(error)
        raise


def tar_file_expander(
    data: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    select_files: Selector | None = None,
    rename_files: Renamer | None = None,
    eof_value: Any = _EndOfShard(),  # noqa: B008 - never modified, and None means something else
) -> Iterator[dict[str, Any]]:
    """Yield the files of opened shards, and after each shard `eof_value` unless it is None.

    Files have the `__url__` of their shard. The files of a sample are yielded when all of them were read, so the
    incomplete last sample of a truncated shard is left out. For a shard with `part: (index, count)`, only every
    `count`-th sample is read, starting with number `index`.
    """
    for shard in data:
        common = {"__url__": shard["url"]}
        if shard.get("local_path") is not None:
            common["__local_path__"] = shard["local_path"]
        stream = shard["stream"]
        files = _files(stream, shard["url"], SKIP_META, handler, select_files, rename_files)
        try:
            for name, content in _complete_samples(files, *shard.get("part", (0, 1))):
                yield {"fname": name, "data": content, **common}
        except _Stop:
            return
        except Exception as exn:
            if not handler(exn):
                return
        finally:
            files.close()
            if isinstance(stream, ReadFile):  # a stream opened by the caller stays open
                stream.close()
        if eof_value is not None:
            yield eof_value


url_opener.keeps_parts = True  # type: ignore[attr-defined]
tar_file_expander.reads_parts = True  # type: ignore[attr-defined]


def _complete_samples(
    files: Iterator[tuple[str, bytes]], index: int, count: int
) -> Iterator[tuple[str, bytes]]:
    """Hold the files of a sample until it is complete; keep one sample out of `count`."""
    samples = groupby(files, lambda file: (first_dot(file[0]) or file)[0])  # by key; by name without a dot
    for _, sample in islice(samples, index, None, count):
        while held := [*islice(sample, MAX_HELD_FILES)]:
            yield from held
            if len(held) < MAX_HELD_FILES:
                break


def group_by_keys(
    data: Iterable[dict[str, Any]],
    keys: Callable[[str], tuple[str | None, str | None]] = base_plus_ext,
    lcase: bool = True,
    suffixes: Iterable[str] | None = None,
    handler: Handler = reraise_exception,
) -> Iterator[dict[str, Any]]:
    """Group contiguous files into samples by `keys(fname) -> (key, field)`.

    `lcase` converts field names to lower case; `suffixes` limits the fields. Whole samples may repeat. A field that
    occurs twice in a sample raises DuplicateField, a part of a sample later in its shard raises SplitSample. If the
    handler ignores them, the sample is dropped, or the rest of the shard.
    """
    selected = None if suffixes is None else {"__key__", "__url__", *suffixes}

    def split(name: str) -> tuple[str, str] | None:
        try:
            key, field = keys(name)
        except Exception as exn:
            on_error(exn)
            return None
        return None if key is None or field is None else (key, field)

    def on_error(error: Exception) -> None:
        if not handler(error):
            raise _Stop
        if isinstance(error, SplitSample):
            raise _SkipShard

    split_name = first_dot if keys is base_plus_ext else split
    grouping = Grouping(split_name=split_name, lower=lcase, repeated="keep")
    try:
        for url, files in groupby(data, _shard_of):
            if url is None:
                continue
            first = next(files)
            local_path = first.get("__local_path__")
            members: Iterator[Member] = (
                (file["fname"].encode("utf-8", "surrogateescape"), 0, len(file["data"]), file["data"])
                for file in chain([first], files)
            )
            with contextlib.suppress(_SkipShard):
                for sample in group_members(members, url, grouping, on_error=on_error):
                    if selected is not None:
                        sample = {name: value for name, value in sample.items() if name in selected}
                    if local_path is not None:
                        sample["__local_path__"] = local_path
                    if valid_sample(sample):
                        yield sample
    except _Stop:
        return


def _shard_of(file: dict[str, Any]) -> str | None:
    """Return the URL of the shard of a file; None for the empty dictionary between two shards."""
    return file.get("__url__", "") if file else None


class TarSamples(read_shards.TarSamples):
    """Read the samples of each shard in one step, or with the functions that the program has replaced here.

    As in the webdataset library, the key of a whole sample may occur again in a shard.
    """

    default_tar = TarOptions(repeated="keep")

    @property
    def reads_parts(self) -> bool:  # type: ignore[override]
        """Whether the stage understands parts of shards; functions of the program may not."""
        return self._steps() == _STEPS

    def _steps(self) -> tuple[Callable[..., Any], ...]:
        """Return the functions that read shards in separate steps."""
        return gopen.gopen, url_opener, tar_file_expander, group_by_keys

    _reads_local = True
    """Whether local shards are read in secure mode, as in `WebDataset` and not in `gopen`."""

    def _samples(self, shard: dict[str, Any]) -> Iterator[Any]:
        check_url(shard["url"], reject_local=not self._reads_local)
        if environment.gopen_verbose():
            print_message(f"GOPEN {display_url(shard['url'])} {gopen.info}")
        return super()._samples(shard)

    def _ask(self, error: Exception) -> bool:
        if getattr(error, "url", None) is not None:
            error.args = (*error.args, None, error.url)  # type: ignore[attr-defined]
        return super()._ask(error)

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        reader, handler, steps = self.reader, self.handler, self._steps()
        if steps == _STEPS:
            return super().run(source)
        _, opener, expander, grouper = steps
        if reader.cache is None:
            streams = opener(source, handler=handler)
        else:
            streams = open_each(source, handler, self._open_cached)
        files = expander(streams, handler=handler, select_files=reader.select, rename_files=reader.rename)
        samples: Iterator[Any] = grouper(files, handler=handler)
        return samples

    def _open_cached(self, url: str) -> dict[str, Any]:
        check_url(url, reject_local=False)
        assert self.reader.cache is not None
        stream = ReadFile(self.reader.cache.open_read(url, self.reader.storage))
        path = self._local_path(url)
        return {"stream": stream} if path is None else {"stream": stream, "local_path": path}


_STEPS = (gopen.gopen, url_opener, tar_file_expander, group_by_keys)


def tarfile_samples(
    src: Iterable[Any],
    handler: Handler = reraise_exception,
    select_files: Selector | None = None,
    rename_files: Renamer | None = None,
    *,
    tar: TarOptions | None = None,
) -> Iterator[Any]:
    """Yield the samples of shards."""
    return tarfile_to_samples(handler, select_files, rename_files, tar=tar).run(src)


tarfile_to_samples = library_stage("tarfile_to_samples", __name__, TarSamples, tarfile_samples)
tarfile_to_samples._reads_local = False
