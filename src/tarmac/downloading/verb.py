"""Download the pictures that tables of links name, into shards."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal, Unpack

from tarmac.arguments import as_names, check_types
from tarmac.downloading.hashes import check_digest
from tarmac.downloading.images import PictureArgs, Pictures
from tarmac.downloading.job import DownloadJob
from tarmac.downloading.live import Live, watching
from tarmac.downloading.network.board import Board
from tarmac.downloading.network.crawl import Turn
from tarmac.downloading.network.settings import Web, WebArgs
from tarmac.downloading.page import write_page
from tarmac.downloading.report import DownloadReport, combine
from tarmac.downloading.rounds import run_rounds
from tarmac.downloading.rows import Links, Rows, open_tables
from tarmac.downloading.status import FAILURES, check_statuses
from tarmac.downloading.unit import Work
from tarmac.errors import UrlError, UsageError
from tarmac.storage import StorageOptions, is_local
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.options import Run, RunArgs, bundle, verb
from tarmac.tools.output import Output, make_directory
from tarmac.tools.rewrite import run_writing
from tarmac.tools.tablelists import list_tables
from tarmac.tools.workdir import copies_directory

Path = str | os.PathLike[str]
ROWS = 10_000
"""Rows per shard by default."""
_BLOCKED = 10.0
"""Seconds that a unit waits for a host that must be left alone, before the end of the run."""


class DownloadArgs(PictureArgs, WebArgs, RunArgs, total=False):
    """The shared keyword arguments of `download`."""


@verb(DownloadArgs, Pictures, Web, Run)
def download(
    sources: Path | Sequence[Path],
    output: Path,
    *,
    url: str = "url",
    caption: str | None = None,
    key: str | None = None,
    save: str | Sequence[str] = (),
    rows_per_shard: int = ROWS,
    table_format: str | None = None,
    blur: str | None = None,
    exif: bool = True,
    digest: str = "xxh3",
    verify: str | None = None,
    dedup: Literal["exact", "near"] | None = None,
    known: Path | Sequence[Path] = (),
    max_failed: float = 0.8,
    final_retry: bool = True,
    retry: str | Sequence[str] | None = None,
    manifest: str | None = None,
    html: Path | None = None,
    live: Callable[[dict[str, Any]], None] | None = None,
    post_cmd: str | None = None,
    overwrite: bool = False,
    storage: StorageOptions = DEFAULT_STORAGE,
    **options: Unpack[DownloadArgs],
) -> DownloadReport:
    """Download the pictures that tables of links name (CSV, TSV, JSON lines, Parquet, lines of URLs) into shards.

    `sources` are tables, patterns, or directories of tables, such as those that `select` has written.

    `url`, `caption` and `key` name columns; without `key`, rows are numbered. `save` lists columns for the field
    `json` and the status files. A shard has the pictures of `rows_per_shard` rows, in their order, an index, and a
    status file, NAME.parquet, with one line for each row. `manifest` is by default manifest.json beside the shards.
    `table_format` is needed if the names of tables do not show it.

    `blur` names a column with lists of boxes to blur, each of four numbers from 0 to 1: left, top, right, bottom.
    `digest` is xxh3, md5, sha256 or sha512 of the downloaded bytes, which must equal the column `verify`. `dedup`
    leaves out pictures with the same bytes ("exact"), or that also look alike ("near"), as an earlier row of this run
    or a picture of the status files `known`: files, patterns, or directories of other downloads.

    What failed and may pass is tried again at the end of the run, unless `final_retry` is false, and goes to further
    shards. `retry` does the same later: for rows that failed in a way that may pass ("transient"), for all that
    failed ("failed"), or for some statuses. If more than the share `max_failed` of rows fail, the run stops. `html` is
    a page with plots, written at the end. `live` is called about once a second with the numbers so far, unless the work
    is on a cluster.
    """
    check_types(Web.__annotations__ | Pictures.__annotations__ | Run.__annotations__, options)
    web, pictures = bundle(Web, options), bundle(Pictures, options)
    run = bundle(Run, {"jobs": 1, **options})
    which, known = as_names(retry, "retry"), [known] if isinstance(known, str | os.PathLike) else list(known)
    texts = {"url": url, "caption": caption, "key": key, "blur": blur, "verify": verify, "manifest": manifest}
    others = {
        "rows_per_shard": rows_per_shard,
        "max_failed": max_failed,
        "exif": exif,
        "final_retry": final_retry,
    }
    check_types(download.__annotations__, texts | others | {"overwrite": overwrite})
    _check(run, rows_per_shard, max_failed, dedup, known, which)
    pattern = os.fspath(output)
    if pattern == "-":
        what = "a download is several files, which do not fit into standard output; expected DIR/ or x-{i:05d}.tar."
        raise UsageError(what, field="output")
    pattern += "{i:05d}.tar" if pattern.endswith("/") else ""
    folder = pattern.partition("{")[0].rpartition("/")[0] or "."
    listed = manifest or f"{folder}/manifest.json"
    target = Output(
        pattern, index=True, manifest=listed, post_cmd=post_cmd, overwrite=overwrite, storage=storage
    )
    links = Links(url, caption, key, as_names(save, "save"), blur, verify)
    facts: dict[str, Any] = {"digest": check_digest(digest), "ignore": sorted(web.ignore)}
    facts |= {"exif": exif, "dedup": dedup}
    turn: Turn = "first" if final_retry and run.share is None else "only"
    work = Work(web, pictures, digest, exif, max_failed, min(_BLOCKED, web.max_wait), turn)
    if is_local(folder) and os.path.isfile(local_path(folder)):
        raise UsageError("expected a directory, and it is a file.", field="output", url=folder)
    seen = tuple(list_tables(known, storage, field="known")) if known else ()
    for each in seen:
        check_statuses(each, storage)
    if html is not None and is_local(os.fspath(html)) and not run.dry_run:
        make_directory(os.fspath(html))  # before hours of work
    with copies_directory("download", None if run.share else run.shared_home(target)) as directory:
        urls = list_tables(sources, storage, output=folder)
        tables = open_tables(urls, table_format, directory, storage)
        rows = Rows(tables, links, rows_per_shard).with_types()
        blocks = list(rows.blocks())
        if not blocks:
            raise UrlError("the tables have no rows.", url=tables[0].url)
        workers = run.workers * (run.share.count if run.share else 1)
        web.for_one_of(min(workers, len(blocks)))  # raises before anything is fetched
        if workers > 1 and not run.distributed:
            work = replace(work, board=os.path.join(directory, "hosts.sqlite"))
            Board(work.board).close()  # workers that create it at the same time would disturb each other
        job = DownloadJob(
            rows,
            target,
            work,
            {name: value for name, value in facts.items() if value},
            dedup,
            seen,
            blocks,
            live=None if live is None else Live(live),
            workers=workers,
        )
        with watching(work.board, live) if work.board and live is not None else nullcontext():
            report = run_writing(job, run, job.name)
            complete = run.share is None and not run.dry_run
            rounds = run_rounds(job, report, run, final=final_retry, retry=which) if complete else []
    result = combine(report, rounds, max_failed)
    if html is not None and not run.dry_run:
        write_page(os.fspath(html), result, storage)
    return result


def _check(
    run: Run, rows: int, max_failed: float, dedup: str | None, known: Sequence[Path], which: Sequence[str]
) -> None:
    if rows < 1:
        raise UsageError(f"expected a positive number, got {rows}.", field="rows_per_shard")
    for name in which:
        if name not in ("transient", "failed", *FAILURES) and not re.fullmatch(r"http_[1-5]\d\d", name):
            what = (
                f"expected transient, failed, http_404 or one of {', '.join(sorted(FAILURES))}, got {name!r}."
            )
            raise UsageError(what, field="retry")
    if not 0 <= max_failed <= 1:
        raise UsageError(f"expected a share from 0 to 1, got {max_failed}.", field="max_failed")
    if dedup not in (None, "exact", "near"):
        raise UsageError(f"expected 'exact' or 'near', got {dedup!r}.", field="dedup")
    if known and dedup is None:
        raise UsageError("`known` needs `dedup`.", field="known")
    if dedup is not None and (run.distributed or run.workers > 1):
        what = "duplicates are found in the order of the rows, by one process."
        raise UsageError(what, field="dedup", hint="`jobs` 1, without `engine` and `task`.")
