"""Index shards: a sidecar for each, one manifest for all; what is indexed already stays as it is."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tarmac.errors import IndexDamaged, TarmacError, UrlError, WorkerDied, WriteError
from tarmac.index.dali import read_dali
from tarmac.index.manifest import Manifest, Shard, read_manifest, write_manifest
from tarmac.index.sidecar import open_sidecar, sidecar_url, write_sidecar
from tarmac.progress import progress
from tarmac.samples.indexing import DEFAULT_INDEXING, IndexOptions, index_shard, usable_index
from tarmac.storage import is_local, stat
from tarmac.storage.local import local_path
from tarmac.urls import Shards, expand

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
    show: bool | None = None,
) -> IndexReport:
    """Index shards and write the manifest.

    Sidecars go beside their shards, or into `directory`. With `add`, the shards of an existing manifest stay
    in front of the new ones, with their indexes where they are. `dali` takes over the `.idx` files of DALI
    instead of reading shards.
    """
    if dali and (options.digests or options.meta is not None):
        raise ValueError("DALI's files have neither digests nor metadata; index without dali for those")
    before = _existing(manifest, options) if add else None
    urls = expand(shards, options=options.storage)
    planned = _planned(before.shards if before else [], urls, directory)
    task = partial(_index_one, options=options, dali=dali)
    done: list[Shard] = []
    report = IndexReport(before or Manifest([], name=_name_of(manifest)))
    for shard, made in progress(_mapped(task, planned, jobs), len(planned), "indexing", show=show):
        done.append(shard)
        (report.made if made else report.kept).append(shard.url)
    told = report.manifest
    report.manifest = Manifest(done, told.name if name is None else name, told.info if info is None else info)
    if manifest is not None:
        write_manifest(report.manifest, manifest, options.storage)
    return report


def _planned(before: list[Shard], urls: list[str], directory: str | None) -> list[Shard]:
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


def _without_doubles(urls: list[str]) -> dict[str, str]:
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


def _mapped(task: Any, shards: list[Shard], jobs: int) -> Iterator[tuple[Shard, bool]]:
    if jobs <= 1 or len(shards) == 1:
        yield from map(task, shards)
        return
    # Not fork: the clients of object stores do not survive it.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(shards)), mp_context=context) as pool:
        try:
            yield from pool.map(task, shards)
        except BrokenProcessPool:
            raise WorkerDied(
                "a process that was to index shards ended at once.",
                hint='jobs=1, or the call under `if __name__ == "__main__":`.',
            ) from None
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _index_one(shard: Shard, *, options: IndexOptions, dali: bool) -> tuple[Shard, bool]:
    """Find or make the index of one shard; say whether it was made."""
    url, place = shard.url, shard.index or sidecar_url(shard.url)
    sidecar = usable_index(url, place, options)
    made = sidecar is None
    if sidecar is None:
        content = read_dali(url, options.storage) if dali else index_shard(url, options)
        _write(place, content, options)
        sidecar = open_sidecar(place, options.storage)
    facts = sidecar.facts
    return replace(shard, samples=facts.samples, size=facts.size, fingerprint=facts.fingerprint), made


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
            sidecar = open_sidecar(shard.index or sidecar_url(shard.url), options.storage)
            sidecar.check_shard(stat(shard.url, options.storage), shard.url)
            if sidecar.facts.fingerprint != shard.fingerprint and shard.fingerprint is not None:
                raise IndexDamaged(
                    "this index is not the one that the manifest was made from.", url=shard.url
                )
        except TarmacError as error:
            yield StaleShard(shard.url, error)
