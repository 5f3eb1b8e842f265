"""Index shards: a sidecar for each, one manifest for all; what is indexed already stays as it is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tarmac.errors import IndexDamaged, TarmacError, UrlError, WriteError
from tarmac.indexing.build import (
    DEFAULT_INDEXING,
    IndexOptions,
    index_shard,
    usable_index,
    with_existing_columns,
)
from tarmac.indexing.dali import read_dali
from tarmac.indexing.manifest import Manifest, Shard, existing_shards, read_manifest, write_manifest
from tarmac.indexing.sidecar import Sidecar, open_sidecar, sidecar_url, write_sidecar
from tarmac.jobs.engines import make_engine
from tarmac.jobs.run import run_job
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.storage import is_local, stat
from tarmac.storage.local import local_path
from tarmac.storage.urls import Shards, expand

__all__ = ["check_index", "index", "IndexReport", "StaleShard"]


@dataclass(slots=True)
class IndexReport:
    """What indexing did."""

    manifest: Manifest
    made: list[str] = field(default_factory=list)
    """Shards that were read."""
    kept: list[str] = field(default_factory=list)
    """Shards whose index still held."""


@dataclass(frozen=True, slots=True)
class StaleShard:
    """A shard whose index cannot be used, and why."""

    url: str
    error: TarmacError


def index(
    shards: Shards,
    manifest: str | None = None,
    *,
    options: IndexOptions = DEFAULT_INDEXING,
    directory: str | None = None,
    add: bool = False,
    dali: bool = False,
    name: str | None = None,
    info: Any = None,
    jobs: int = 1,
    dry: bool = False,
    show: bool | None = None,
) -> IndexReport:
    """Index shards and write the manifest.

    Sidecars go beside their shards, or into `directory`. With `add`, the shards of an existing manifest stay
    in front of the new ones, with their indexes where they are. `dali` takes over the `.idx` files of DALI
    instead of reading shards. `dry` writes nothing: the report then says which shards would be read.
    """
    if dali and (options.digests or options.meta is not None):
        raise ValueError("DALI's files have neither digests nor metadata; index without dali for those")
    before = _existing(manifest, options) if add else None
    if manifest is not None:
        existing_shards(manifest, options.storage)  # raises if it is something else
    urls = expand(shards, options=options.storage)
    planned = _planned(before.shards if before else [], urls, directory)
    if dry:
        report = IndexReport(Manifest(planned))
        for shard in planned:
            (report.kept if _usable(shard, options) else report.made).append(shard.url)
        return report
    job = run_job(_Indexing(planned, options, dali), make_engine(None, jobs), progress=show)
    told = before or Manifest([], name=_name_of(manifest))
    indexed = [
        replace(shard, **outcome.details["shard"])
        for shard, outcome in zip(planned, job.outcomes, strict=True)
    ]
    found = Manifest(indexed, told.name if name is None else name, told.info if info is None else info)
    report = IndexReport(found)
    for shard, outcome in zip(planned, job.outcomes, strict=True):
        (report.made if outcome.details["made"] else report.kept).append(shard.url)
    if manifest is not None:
        write_manifest(found, manifest, options.storage)
    return report


@dataclass
class _Indexing(Task):
    """The job: an index for each shard. What is done shows in the indexes themselves; no ledger is needed."""

    shards: list[Shard]
    indexing: IndexOptions
    dali: bool
    verb: str = "indexing"

    def plan(self) -> Iterator[Unit]:
        return (Unit(shard.url, shard) for shard in self.shards)

    def run(self, unit: Unit) -> Outcome:
        """Find or make the index of one shard."""
        shard, options = unit.content, self.indexing
        sidecar = _usable(shard, options)
        made = sidecar is None
        if sidecar is None:
            url, place = shard.url, _index_of(shard)
            wanted = with_existing_columns(options, place)
            # DALI's files say nothing of columns and digests, so that for those the shard is read.
            bare = wanted.meta is None and not wanted.digests
            content = read_dali(url, options.storage) if self.dali and bare else index_shard(url, wanted)
            _write(place, content, options)
            sidecar = open_sidecar(place, options.storage)
        found = sidecar.facts
        known = {"samples": found.samples, "size": found.size, "fingerprint": found.fingerprint}
        return Outcome(found.samples, found.samples, details={"shard": known, "made": made})


def _index_of(shard: Shard) -> str:
    return shard.index or sidecar_url(shard.url)


def _usable(shard: Shard, options: IndexOptions) -> Sidecar | None:
    """The index that a shard has, if it is of the shard as it is now.

    Who asks for an index wants a new one in case of doubt: a shard whose labels were corrected has the size
    and most of the bytes that it had.
    """
    return usable_index(shard.url, _index_of(shard), options, unchanged=True)


def _planned(before: list[Shard], urls: Sequence[str], directory: str | None) -> list[Shard]:
    """The shards to be indexed, those of the manifest first; none twice."""
    found = _without_doubles([shard.url for shard in before])
    new = [url for name, url in _without_doubles(urls).items() if name not in found]
    planned = [*before, *(Shard(url, 0, index=_place(url, directory)) for url in new)]
    places: dict[str, str] = {}
    for shard in planned:
        if shard.index is not None and places.setdefault(shard.index, shard.url) != shard.url:
            raise UrlError(
                f"its index would have the same name as that of {places[shard.index]}.",
                url=shard.url,
                hint="another --sidecars directory for each directory of shards.",
            )
    return planned


def _without_doubles(urls: Sequence[str]) -> dict[str, str]:
    """The shards by what identifies them, however their names are written."""
    found: dict[str, str] = {}
    for url in urls:
        name = os.path.abspath(local_path(url)) if is_local(url) else url
        if name in found:
            raise UrlError("the shard is given twice; every sample of it would come twice.", url=url)
        found[name] = url
    return found


def _place(url: str, directory: str | None) -> str | None:
    """Where the index of a shard goes; None for beside it."""
    if directory is None:
        return None
    name = os.path.basename(url if is_local(url) else url.partition("?")[0])
    return f"{directory.rstrip('/')}/{sidecar_url(name)}"


def _existing(manifest: str | None, options: IndexOptions) -> Manifest | None:
    try:
        return None if manifest is None else read_manifest(manifest, options.storage)
    except FileNotFoundError:
        return None


def _name_of(manifest: str | None) -> str:
    return "" if manifest is None else os.path.basename(manifest).partition(".")[0]


def _write(place: str, content: bytes, options: IndexOptions) -> None:
    try:
        if is_local(place):
            os.makedirs(os.path.dirname(local_path(place)) or ".", exist_ok=True)
        write_sidecar(place, content, options.storage)
    except (WriteError, OSError) as error:
        hint = "a directory for the indexes that can be written to: --sidecars DIR."
        raise WriteError(f"the index cannot be written: {error}", url=place, hint=hint) from error


def check_index(manifest: str, *, options: IndexOptions = DEFAULT_INDEXING) -> Iterator[StaleShard]:
    """Yield the shards of a manifest whose index is missing, damaged, or not of the shard as it is now."""
    for shard in read_manifest(manifest, options.storage).shards:
        try:
            sidecar = open_sidecar(_index_of(shard), options.storage)
            sidecar.check_shard(stat(shard.url, options.storage), shard.url, options.storage)
            if sidecar.facts.fingerprint != shard.fingerprint and shard.fingerprint is not None:
                raise IndexDamaged(
                    "this index is not the one that the manifest was made from.", url=shard.url
                )
        except TarmacError as error:
            yield StaleShard(shard.url, error)
