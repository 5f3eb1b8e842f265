"""Build indexes: of one shard, or of all shards of a dataset that have none yet."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import xxhash

from tarmac import environment
from tarmac.display import display_url
from tarmac.errors import (
    AccessDenied,
    ArchiveError,
    BadCondition,
    IndexingError,
    ObjectChanged,
    TarmacError,
    WorkerDied,
    WriteError,
)
from tarmac.indexing.entries import Entries, Extent
from tarmac.indexing.manifest import Inputs, Manifest, Shard, find_inputs
from tarmac.indexing.meta import Columns as MetaColumns
from tarmac.indexing.meta import MetaPlan, is_column, meta_plan
from tarmac.indexing.sidecar import (
    Sidecar,
    make_sidecar,
    open_sidecar,
    read_sidecar,
    sidecar_url,
    with_columns,
    write_sidecar,
)
from tarmac.progress import track
from tarmac.runtime.lookahead import in_threads, run_ahead
from tarmac.samples.grouping import Grouping, Sample, group_members
from tarmac.samples.naming import Splitter, first_dot, rule_bytes
from tarmac.samples.native import NativeRuns, Value
from tarmac.storage import (
    Cache,
    ObjectInfo,
    Source,
    StorageOptions,
    is_local,
    is_stream,
    location,
    open_shard,
    stat,
    without_query,
)
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import Shards, ShardUrl
from tarmac.tar import Member, TarOptions, read_members
from tarmac.tar.compression import HEAD, detect, format_of_name
from tarmac.tar.reader import DEFAULT_OPTIONS

CHUNK = 1 << 20
REQUESTS = 16
"""Remote shards handled concurrently."""
WORTHWHILE = 32 << 20
"""Bytes of shards without an index from which on several processes index them."""


class GroupMembers(Protocol):
    """Joins members to samples, each field with the value that `value` gives it; `group_members` is one."""

    def __call__(
        self,
        members: Iterator[Member],
        url: str,
        options: Grouping,
        *,
        value: Value,
        runs: NativeRuns | None,
    ) -> Iterator[Sample]: ...


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """What an index contains, and how shards are read for it."""

    digests: bool = False
    """Whether to store a digest of each field, which means reading every byte."""
    meta: MetaPlan | None = None
    """The metadata columns; `meta_plan` builds one from their names."""
    split_name: Splitter = first_dot
    lower: bool = True
    tar: TarOptions = DEFAULT_OPTIONS
    storage: StorageOptions = field(default=DEFAULT_STORAGE)
    cache: Cache | None = None
    """Read remote shards through this cache, which keeps them."""
    keep: bool = True
    """Whether a rebuilt index keeps the columns and digests that the existing one has."""
    directory: str = ""
    """The path or URL of a directory for indexes that are not beside their shards; by default the cache directory of
    tarmac. Jobs that run elsewhere need one that their workers can read."""


DEFAULT_INDEXING = IndexOptions()


def manifest_of(
    source: Shards | Inputs,
    options: IndexOptions = DEFAULT_INDEXING,
    *,
    beside: bool = True,
    index_one: Callable[[int, Shard | ShardUrl], Shard] | None = None,
    progress: bool | None = None,
    processes: int = 1,
) -> Manifest:
    """Return the manifest that `source` is or names, or build one for the shards that it expands to.

    Shards that a manifest lists keep their entries. Missing indexes of others are built and written as
    `find_or_make_index` does. `index_one` replaces both; it gets the number of a shard, and its entry or URL.
    With several `processes`, they build the missing indexes of local shards.
    """
    inputs = (
        source if isinstance(source, Inputs) else find_inputs(source, options.storage, options.tar.limits)
    )
    if inputs.manifest is not None and index_one is None:
        return inputs.manifest

    missing = [shard for shard in inputs.shards if not isinstance(shard, Shard)]
    if options.directory:  # others may be building the same indexes: all begin at different shards
        random.shuffle(missing)
    if processes > 1:
        _build_missing(list(filter(is_local, missing)), options, processes, beside=beside)
    if options.directory:
        plain = [url for url in missing if not (is_stream(url) or format_of_name(without_query(url)))]
        threads = 1 if all(map(is_local, plain)) else REQUESTS
        for _ in in_threads(partial(_try_to_index, options, beside), plain, threads):
            pass

    def indexed(number: int) -> Shard:
        shard = inputs.shards[number]
        if index_one is not None:
            return index_one(number, shard)
        if isinstance(shard, Shard):
            return shard
        return indexed_shard(shard, *find_or_make_index(shard, options, beside=beside))

    numbers = range(len(inputs.shards))
    remote = any(not (is_local(url) or is_stream(url)) for url in inputs.urls)
    shards = in_threads(indexed, numbers, REQUESTS) if remote else map(indexed, numbers)
    return Manifest(list(track(shards, len(numbers), "indexing", progress=progress)))


def _build_missing(urls: Sequence[str], options: IndexOptions, processes: int, *, beside: bool) -> None:
    """Write the missing indexes of local shards in several processes, if that is worth starting them.

    An index that cannot be built is left to the caller, which raises the error where it belongs.
    """
    sizes = {url: _size_without_index(url, options) for url in urls}
    missing = [url for url, size in sizes.items() if size]
    if len(missing) < 2 or sum(sizes.values()) < WORTHWHILE:
        return
    from tarmac.runtime.processes import can_pickle, result_of, worker_pool

    if not can_pickle(options):
        return
    work = partial(_try_to_index, options, beside)
    with contextlib.suppress(WorkerDied), worker_pool(min(processes, len(missing)), work) as submit:
        for _, future in run_ahead(submit, missing, processes, ordered=False):
            result_of(future)


def _size_without_index(url: str, options: IndexOptions) -> int:
    """Return the size of a local shard, or 0 if it may have an index or cannot be read."""
    indexes = sidecar_url(url), _cached_index(url, _reading_rules(options), options.directory)
    try:
        return 0 if any(map(os.path.exists, map(local_path, indexes))) else os.stat(local_path(url)).st_size
    except (OSError, ValueError):
        return 0


def _try_to_index(options: IndexOptions, beside: bool, url: str) -> None:
    with contextlib.suppress(TarmacError, OSError):
        find_or_make_index(url, options, beside=beside)


def indexed_shard(url: str, sidecar: Sidecar, index: str) -> Shard:
    """Return the entry of a shard in a manifest."""
    facts = sidecar.facts
    return Shard(url, facts.samples, facts.size, index, facts.fingerprint)


def find_or_make_index(url: str, options: IndexOptions, *, beside: bool = True) -> tuple[Sidecar, str]:
    """Return the index of a shard and its URL, building it if there is none.

    A new index is written `beside` a local shard if that directory is writable, else to `options.directory`, or to
    the cache directory of tarmac. Except in that directory, nothing is written to a store. An index of a lenient read
    lacks what the shard lost, so it is never written beside it, where strict readers would find it.
    """
    rules = _reading_rules(options)
    sidecar, cached = sidecar_url(url), _cached_index(url, rules, options.directory)
    # An index beside the shard may follow other rules; one in the cache directory is named after its rules.
    # Without repeated samples, the index is the same whether they are kept or not.
    strict = replace(options, tar=replace(options.tar, repeated="error"))
    for index in (sidecar, cached) if beside or not _reading_rules(strict) else (cached,):
        existing = usable_index(url, index, options)
        if existing is not None:
            return existing, index
    content = _copied_index(url, rules, options)
    if content is None:
        content = index_again(url, options, sidecar, cached)
    if beside and is_local(url) and options.tar.end == "strict":
        try:
            write_sidecar(sidecar, content)
            return open_sidecar(sidecar), sidecar
        except (WriteError, AccessDenied):
            pass
    if options.directory:
        if is_local(cached):
            os.makedirs(os.path.dirname(cached), exist_ok=True)
        write_sidecar(cached, content, options.storage)
        return open_sidecar(cached, options.storage), cached
    try:
        os.makedirs(os.path.dirname(cached), exist_ok=True)
        write_sidecar(cached, content)
    except OSError as error:
        reason = error.what if isinstance(error, WriteError) else f"{error.strerror}."
        raise WriteError(
            f"the index can be written neither beside the shard nor to {os.path.dirname(cached)}: {reason}",
            url=url,
            hint="set TARMAC_HOME to a writable directory, or tarmac index SHARDS --sidecars DIR -o FILE.json",
        ) from error
    return open_sidecar(cached), cached


def _copied_index(url: str, rules: bytes, options: IndexOptions) -> bytes | None:
    """Return the index that the cache directory already has, if another directory is to hold it."""
    if not options.directory:
        return None
    cached = _cached_index(url, rules)
    if usable_index(url, cached, options) is None:
        return None
    with open(cached, "rb") as file:
        return file.read()


def _cached_index(url: str, rules: bytes, directory: str = "") -> str:
    """Return the path of a shard's index in a directory, named after the whole URL and the reading rules."""
    full = location(url)
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", display_url(full).partition("?")[0].rpartition("/")[2])[-80:]
    digest = hashlib.sha256(full.encode("utf-8", "surrogateescape") + rules).hexdigest()[:32]
    home = directory.rstrip("/") or str(environment.cache_home() / "index")
    return f"{home}/{digest}-{name}.arrow"


def _reading_rules(options: IndexOptions) -> bytes:
    """Return a string that identifies the naming rule and strictness; empty for the defaults."""
    tar = replace(options.tar, limits=DEFAULT_OPTIONS.limits)
    rules = b"" if tar == DEFAULT_OPTIONS else repr(tar).encode()
    return rules + rule_bytes(options.split_name)


def usable_index(
    url: str, index: str, options: IndexOptions = DEFAULT_INDEXING, *, unchanged: bool = False
) -> Sidecar | None:
    """Open the index of a shard if it exists, is up to date and has what the options ask for, else None.

    With `unchanged`, a shard whose time or ETag has changed counts as changed, even if it looks like a copy.
    """
    try:
        sidecar = open_sidecar(index, options.storage)
        info = stat(url, options.storage)
        sidecar.check_shard(info, url, options.storage)
    except (IndexingError, AccessDenied):  # some stores deny access to missing objects
        return None
    if unchanged and sidecar.facts.same_version(info, url) is False:
        return None
    wanted = set() if options.meta is None else {column.name for column in options.meta.columns}
    existing = set(sidecar.metadata)
    if not options.keep:
        return sidecar if (existing, sidecar.facts.digests) == (wanted, options.digests) else None
    return sidecar if wanted <= existing and sidecar.facts.digests >= options.digests else None


def index_again(url: str, options: IndexOptions, *indexes: str) -> bytes:
    """Index a shard, with the columns and digests of existing indexes; see `with_existing_columns`.

    Columns whose values are not in the shard, such as scores, are copied if the shard is unchanged.
    """
    added: dict[str, Any] = {}
    for index in indexes if options.keep else ():
        added |= _added_columns(url, index, options)
    content = index_shard(url, with_existing_columns(options, *indexes, without=added))
    return with_columns(read_sidecar(content, url), added) if added else content


def _added_columns(url: str, index: str, options: IndexOptions) -> dict[str, Any]:
    """Return the columns of an index whose values are not in the shard; none if it is not up to date."""
    sidecar = usable_index(url, index, replace(options, meta=None, digests=False), unchanged=True)
    if sidecar is None:
        return {}
    return {
        name: sidecar.column(name)
        for name in sidecar.metadata
        if not is_column(name) and name not in sidecar.fields
    }


def with_existing_columns(
    options: IndexOptions, *indexes: str, without: Collection[str] = ()
) -> IndexOptions:
    """Add the columns and digests of existing indexes, even stale ones, to the options, unless `keep` is off.

    A column that is not in the shard is an error, unless it is in `without`.
    """
    for index in indexes if options.keep else ():
        try:
            sidecar = open_sidecar(index, options.storage)
        except (IndexingError, AccessDenied):
            continue
        options = replace(options, digests=options.digests or sidecar.facts.digests)
        existing = [name for name in sidecar.metadata if name not in without]
        if not existing:
            continue
        for name in existing:
            if (
                not is_column(name)
                and name not in sidecar.fields
                and sidecar.column(name).null_count < len(sidecar)
            ):
                raise BadCondition(
                    f'the values of the column "{name}" are not in the shard, so indexing it again would lose them.',
                    url=index,
                    hint="tarmac index --drop builds an index without the existing columns.",
                )
        plan = meta_plan(existing, on_bad="null" if sidecar.facts.bad_meta else "raise")
        if options.meta is not None:
            names = {column.name for column in options.meta.columns}
            new = (column for column in plan.columns if column.name not in names)
            plan = replace(options.meta, columns=(*options.meta.columns, *new))
        options = replace(options, meta=plan)
    return options


def index_shard(
    url: str, options: IndexOptions = DEFAULT_INDEXING, group: GroupMembers = group_members
) -> bytes:
    """Read a shard and return the content of its sidecar. Any damage raises, unless `tar` is lenient.

    `group` joins members to samples.
    """
    before = stat(url, options.storage)
    try:
        with open_shard(url, options.storage, options.cache, before.version) as source:
            try:
                entries, columns = _read_entries(source, url, options, group)
            except ArchiveError as error:
                source.blame(error)
                raise
        content = make_sidecar(
            entries,
            before,
            {} if columns is None else columns.arrays(),
            digests=options.digests,
            url=url,
            storage=options.storage,
            bad_meta=columns is not None and columns.plan.on_bad == "null",
        )
    except TarmacError as error:
        error.at(url=url)
        raise
    if stat(url, options.storage) != before:
        raise ObjectChanged("the shard was written while it was being indexed.", url=url)
    return content


def index_in_memory(source: Source, url: str, options: IndexOptions = DEFAULT_INDEXING) -> Sidecar:
    """Return the index of an open shard that is mapped or in memory, without metadata and without writing it."""
    entries, _ = _read_entries(source, url, replace(options, meta=None), group_members)
    info = ObjectInfo(len(source.map() or source.content() or b""), None)
    return read_sidecar(make_sidecar(entries, info, {}, digests=options.digests), url)


def _decompressing(url: str, compression: str) -> str:
    """Return the command that writes a decompressed copy: beside the shard, or into the working directory."""
    shown = display_url(url)
    stem = re.sub(r"(?i)(\.tar)?(\.\w+)?$", "", shown if is_local(url) else shown.rpartition("/")[2])
    if format_of_name(without_query(url)) is None:
        hint = f"rename it to {stem}.tar.{compression}, and decompress that with tarmac copy."
    else:
        hint = f"tarmac copy {shlex.quote(shown)} -o {shlex.quote(f'{stem}.tar')}"
    return hint


def _read_entries(
    source: Source, url: str, options: IndexOptions, group: GroupMembers
) -> tuple[Entries, MetaColumns | None]:
    """Return the samples of an open shard, and their metadata."""
    entries, columns = Entries(), None if options.meta is None else MetaColumns(options.meta)
    data, stream = source.map() or source.content(), _Peekable(source)
    if compression := detect(stream.peek(HEAD) if data is None else data[:HEAD]):
        raise IndexingError(
            f"the shard is compressed ({compression}), so its samples have no offsets.",
            url=url,
            hint=_decompressing(url, compression),
        )
    # Of a mapped shard only the needed pages are read; a stream delivers all bytes anyway.
    kept: dict[int, bytes] | None = {} if columns is not None and data is None else None
    payload = options.digests or kept is not None
    value = _extent(options.digests, kept)
    # What is kept is dropped sample by sample, so it is also read sample by sample.
    runs = None if kept is not None else NativeRuns(options.tar.limits, payload=payload, value=value)
    members = read_members(stream if data is None else data, options.tar, url=url, payload=payload, runs=runs)
    grouping = Grouping.of(options.tar, options.split_name, lower=options.lower)

    def read(offset: int, size: int) -> bytes:
        return kept[offset] if data is None else data[offset : offset + size]  # type: ignore[index]

    for sample in group(members, url, grouping, value=value, runs=runs):
        key = sample.pop("__key__")
        del sample["__url__"]
        entries.add(key, sample)
        if columns is not None:
            columns.add_located(sample, key, read)
        if kept and group is group_members:
            # The first member of the next sample has been read already.
            last = max((offset for offset, _, _ in sample.values()), default=0)
            for offset in [offset for offset in kept if offset <= last]:
                del kept[offset]
    return entries, columns


def _extent(digests: bool, kept: dict[int, bytes] | None) -> Value:
    """Return a function that makes the extent of a field; `kept` gets the bytes by offset."""
    digest = xxhash.xxh3_64_intdigest

    def extent(offset: int, size: int, data: bytes) -> Extent:
        if kept is not None:
            kept[offset] = data
        return offset, size, digest(data) if digests else 0

    return extent


class _Peekable:
    """A stream whose first bytes can be read in advance."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._head = b""

    def peek(self, size: int) -> bytes:
        """Return at least `size` of the first bytes, unless the stream is shorter."""
        while len(self._head) < size and (more := self._source.read(CHUNK)):
            self._head += more
        return self._head

    def read(self, size: int, /) -> bytes:
        head, self._head = self._head[:size], self._head[size:]
        return head or self._source.read(size)
