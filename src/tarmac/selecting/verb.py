"""Select rows of tables: the step from billions of links to those worth downloading."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tarmac.arguments import as_names, check_types
from tarmac.errors import UsageError
from tarmac.jobs.engines import make_engine
from tarmac.jobs.ledger import ledger_url
from tarmac.jobs.run import run_job
from tarmac.runtime.cores import usable_cores
from tarmac.selecting.job import SelectJob
from tarmac.selecting.options import (
    ENGINES,
    MEMORY,
    ROWS_PER_FILE,
    SMALLEST_MEMORY,
    Options,
    as_number,
)
from tarmac.selecting.plot import check_plot
from tarmac.selecting.profile import profile_files, profile_selection
from tarmac.selecting.report import SelectReport
from tarmac.selecting.tables import find_tables
from tarmac.storage import StorageOptions, is_local
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import Shards
from tarmac.tools.tables import table_format


def select(
    sources: Shards,
    output: str | os.PathLike[str] | None = None,
    *,
    where: str | Sequence[str] = (),
    columns: str | Sequence[str] | Mapping[str, str] | None = None,
    dedup: str | Sequence[str] = (),
    join: Shards | None = None,
    on: str = "",
    how: Literal["inner", "left"] = "inner",
    shuffle: int | None = None,
    sample: float | int | None = None,
    key: str | Sequence[str] = (),
    min_size: int | None = None,
    max_aspect: float | None = None,
    lang: str | Sequence[str] | None = None,
    max_text: int | None = None,
    max_unsafe: float | None = None,
    max_watermark: float | None = None,
    min_similarity: float | None = None,
    min_aesthetic: float | None = None,
    nulls: Literal["drop", "keep"] = "drop",
    rows_per_file: int = ROWS_PER_FILE,
    stats: bool = False,
    plot: str | os.PathLike[str] | None = None,
    engine: str = "duckdb",
    jobs: int | None = None,
    memory: int = MEMORY,
    tmp: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
    storage: StorageOptions = DEFAULT_STORAGE,
) -> SelectReport:
    """Select rows of Parquet, CSV, TSV and JSON-lines tables, and write them to Parquet files in `output`.

    Rows pass these steps in this order. `join` adds the columns of other tables, by the value of the column `on`;
    rows without a partner are removed, or with `how="left"` kept. Filters by name compare columns of LAION,
    DataComp and COYO: `min_size` the shorter side in pixels, `max_aspect` the longer side divided by the shorter
    one, `lang` the language, `max_text` the number of characters of the caption, the others a score. A row whose
    value is missing or impossible is removed, or with `nulls="keep"` kept. `where` is one condition or several, in
    the SQL of the engine. A share such as `sample=0.1` keeps the rows whose key has a small hash. `dedup` keeps the
    first of the rows that are equal in these columns. A number such as `sample=1000` keeps this number of rows of
    those that are left. `columns` selects and renames.

    `shuffle` is a seed: rows are ordered by the MD5 of seed and `key`, and rows of the same key by their values. So
    the result depends on the rows alone, not on how tables divide them, and is the same on every engine. The key is
    by default the columns of `dedup`, else URL and caption, else all columns of text and integers. Without
    `shuffle`, rows stay in the order of the tables.

    Every file but the last has `rows_per_file` rows. `manifest.json` in `output` lists the files, and how many rows
    each step removed. Running the same selection again does nothing; `overwrite` replaces another one.

    `engine` is `duckdb`, `spark` or `spark://HOST:PORT`. `memory` is what this process may use with DuckDB, in
    bytes; what does not fit goes to `tmp`, by default a directory in `output`. `stats` adds a profile of the
    columns to the report, of the selected rows, which DuckDB computes, and needs no `output`; `plot` draws it into
    an image file.
    """
    check_types(
        select.__annotations__,
        {"engine": engine, "jobs": jobs, "memory": memory, "stats": stats, "overwrite": overwrite},
    )
    if output is None and not (stats or plot):
        raise UsageError("expected a directory for the selected rows, or `stats`.", field="output")
    if engine not in ENGINES and not engine.startswith("spark://"):
        what = f"expected {', '.join(ENGINES)} or spark://HOST:PORT, got {engine!r}."
        raise UsageError(what, field="engine")
    if output is None and engine != "duckdb":
        what = f"{engine} selects rows, but without `output` no rows are selected; DuckDB computes `stats`."
        raise UsageError(what, field="engine", hint="`output`, or leave out `engine`.")
    if plot is not None:
        check_plot(os.fspath(plot))
    if memory < SMALLEST_MEMORY:
        raise UsageError(f"expected at least {SMALLEST_MEMORY} bytes, got {memory}.", field="memory")
    workers = usable_cores() if jobs is None else jobs
    if workers < 1:
        raise UsageError(f"expected a positive number, got {workers}.", field="jobs")
    filters = {
        "min_size": min_size, "max_aspect": max_aspect, "lang": None if lang is None else as_names(lang, "lang"),
        "max_text": max_text, "max_unsafe": max_unsafe, "max_watermark": max_watermark,
        "min_similarity": min_similarity, "min_aesthetic": min_aesthetic,
    }  # fmt: skip
    directory = None if output is None else _directory(os.fspath(output))
    options = Options(
        where=tuple(text.strip().rstrip(";") for text in _conditions(where)),
        columns=_columns(columns),
        dedup=as_names(dedup, "dedup"),
        join=() if join is None else tuple(find_tables(join, storage, field="join", output=directory)),
        on=on,
        how=how,
        shuffle=as_number(shuffle),
        sample=as_number(sample),
        key=as_names(key, "key"),
        filters={name: value for name, value in filters.items() if value is not None},
        nulls=nulls,
        rows_per_file=as_number(rows_per_file),
    )
    urls = find_tables(sources, storage, output=directory)
    folder = None if tmp is None else os.fspath(tmp)
    picture = None if plot is None else os.fspath(plot)
    if directory is None:
        return profile_selection(
            options, urls, storage, memory=memory, jobs=workers, tmp=folder, plot=picture
        )
    job = SelectJob(
        urls,
        directory,
        options,
        storage,
        engine,
        memory,
        workers,
        overwrite,
        folder,
        progress,
    )
    ledger = ledger_url(job.directory, "select")
    finished = run_job(
        job, make_engine("local", 1), ledger=ledger, overwrite=overwrite, storage=storage, progress=False
    )
    report = SelectReport.of(finished)
    if stats or plot:
        report.profile = profile_files(
            report.outputs, storage, memory=memory, jobs=workers, tmp=folder, plot=picture
        )
    return report


def _directory(output: str) -> str:
    """Return the output with a slash at its end; raise unless it can be a directory."""
    if table_format(output) is not None and not output.endswith("/"):
        what = "expected a directory, got the name of a table: there may be several files."
        raise UsageError(what, field="output", url=output, hint=f"{output.rpartition('.')[0]}/, a directory.")
    if is_local(output) and os.path.isfile(local_path(output.rstrip("/"))):
        raise UsageError("expected a directory, and it is a file.", field="output", url=output)
    return f"{output.rstrip('/')}/"


def _conditions(where: str | Sequence[str]) -> Sequence[str]:
    return [where] if isinstance(where, str) else as_names(where, "where")


def _columns(columns: Any) -> dict[str, str] | None:
    """Return the new names of columns, by the old ones."""
    if columns is None:
        return None
    old = as_names(columns, "columns")
    new = as_names(list(columns.values()), "columns") if isinstance(columns, Mapping) else old
    return dict(zip(old, new, strict=True))
