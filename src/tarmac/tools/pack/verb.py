"""Pack files, folders, tables and generated samples into shards."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Unpack

import xxhash

from tarmac.display import identity
from tarmac.errors import UsageError
from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import Splitter, first_dot, rule_bytes
from tarmac.storage import StorageOptions, is_local
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.columns import Columns
from tarmac.tools.options import ErrorArgs, Run, RunArgs, WriteArgs, bundle, verb
from tarmac.tools.output import Output
from tarmac.tools.pack.job import PackJob, PackOptions
from tarmac.tools.pack.samples import Samples, pack_samples
from tarmac.tools.pack.sources.source import SourceOptions, open_source
from tarmac.tools.rewrite import rewrite_samples, run_writing
from tarmac.tools.select import Fields, Select
from tarmac.tools.tally import Balance
from tarmac.tools.workdir import copies_directory

MAX_SAMPLES = 10_000
"""Samples per shard, unless a maximum is given."""
Path = str | os.PathLike[str]


class PackArgs(WriteArgs, RunArgs, ErrorArgs, total=False):
    """The shared keyword arguments of `pack`."""


@dataclass(slots=True, repr=False)
class PackReport(Report):
    """The report of `pack`."""

    skipped: dict[str, int] = field(default_factory=dict)
    """Number of files that belong to no sample, by reason."""

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, for JSON."""
        return Report.to_dict(self) | {"skipped": self.skipped}


@verb(PackArgs, Output, Run)
def pack(
    sources: Path | Sequence[Path] | Samples | Callable[..., Samples],
    output: str | os.PathLike[str],
    *,
    format: str | None = None,
    key: str | None = None,
    columns: Mapping[str, str] | Sequence[str] | None = None,
    files: Mapping[str, str] | Sequence[str] | None = None,
    base: Path | None = None,
    function: str | Callable[..., Samples] | None = None,
    require: Collection[str] = (),
    fields: Fields | None = None,
    drop_fields: Collection[str] = (),
    missing: Literal["error", "skip"] = "error",
    split: Mapping[str, float] | None = None,
    only: str | None = None,
    shuffle: bool = False,
    seed: int = 0,
    allow_exec: bool = False,
    timeout: float = 600.0,
    storage: StorageOptions = DEFAULT_STORAGE,
    split_name: Splitter | None = None,
    **options: Unpack[PackArgs],
) -> PackReport:
    """Pack sources into shards of 10,000 samples, or as `max_samples` and `max_bytes` require.

    The output is a file, a pattern with `{i}`, or a directory, `DIR/`, for `000000.tar`, `000001.tar`, …
    A source is a directory, a recipe, a table, or the URL of one; `format` is by default inferred from its
    name. `sources` may also be an iterable of samples, or a function that returns one. Running the same job again
    writes only what is missing.

    Of tables, `key` is the column of keys (by default `__key__` or `key`; without it, rows are numbered), `columns`
    selects columns and names their fields, and `files` names columns that hold file names, and the fields of their
    contents, with `*` for the extension of each file. Relative file names are relative to `base`, by default to
    the directory of the table or recipe.

    `function` is a function or "module:function", called with `sources` as its arguments. `require` lists fields
    that every sample must have; `"jpg|png"` means one of them. `fields`, `drop_fields`, `missing`, `split` and `only`
    are those of `copy`.
    `timeout` limits the seconds of each command in a recipe, which `allow_exec` allows.

    `split_name` is the rule that splits the names of files into keys and fields, and that readers must use, too. The
    default is `first_dot`, and an error if that joins files whose names suggest otherwise (`x.v1.0.png`, `x.v1.1.png`).
    """
    rule = split_name or first_dot
    pattern = os.fspath(output)
    if pattern.endswith("/"):
        pattern += "{split}-{i:06d}.tar" if split and not only else "{i:06d}.tar"
    writing = {"pattern": pattern, "storage": storage, "split_name": rule, **options}
    target, run = _with_default_size(bundle(Output, writing)), bundle(Run, options)
    select = Select(fields, drop_fields, missing, split=split, only=only)
    named = {} if rule is first_dot else {"split_name": xxhash.xxh3_64_hexdigest(rule_bytes(rule))}
    packing = PackOptions(shuffle, seed, select, require, run.on_error, rule, named)
    table = Columns(key or "", _mapping(columns, "columns"), _mapping(files, "files"))
    base = os.fspath(base or "")
    if function is not None or not _are_paths(sources):
        if format or base or table != Columns():
            raise UsageError(
                "`format`, `key`, `columns`, `files` and `base` do not apply to generated samples."
            )
        generated: Any = sources if function is None else function
        arguments = [] if function is None else _listed(sources)
        return _report(pack_samples(generated, arguments, target, run, packing))
    urls = _listed(sources)
    if not urls:
        raise UsageError("expected at least one source.", field="sources")
    _check_output_outside(urls, target)
    facts: dict[str, Any] = named | {"from": format, "base": identity(base), "key": table.key}
    facts |= {"files": dict(table.files), "columns": dict(table.fields)}
    packing = replace(packing, facts={name: value for name, value in facts.items() if value})
    with _without_gc(), copies_directory("pack", run.shared_home(target)) as directory:
        sized = target.max_bytes is not None
        opening = SourceOptions(
            table, base, allow_exec, timeout, storage, sized, rule, split_name is None, directory
        )
        job = PackJob([open_source(url, format, opening) for url in urls], target, packing)
        return _run(job, run)


def _run(job: PackJob, run: Run) -> PackReport:
    if job.output.stream:
        rows = list(itertools.chain.from_iterable(job.planned.rows.values()))

        def loaded(_: Any, outcome: Outcome) -> Iterator[list[Sample]]:
            return ([sample] for sample in job.samples(rows, outcome, {}))

        report = rewrite_samples("pack", iter(()), job.output, run, loaded)
    else:
        report = run_writing(job, run, job.verb)
    plan = job.planned
    if not run.dry_run:
        Balance(plan.left_out).add_to(report)
    if job.classes_url and not (run.dry_run or job.output.stream):
        report.remarks.append(f"names of the classes: {job.classes_url}")
    if plan.skipped:
        report.remarks.append(f"skipped files that belong to no sample: {plan.skipped}")
    return _report(report, plan.skipped.counts)


def _report(report: Report, skipped: Mapping[str, int] | None = None) -> PackReport:
    return PackReport(
        **{each.name: getattr(report, each.name) for each in fields(Report)}, skipped=dict(skipped or {})
    )


def _are_paths(sources: Any) -> bool:
    if isinstance(sources, str | os.PathLike):
        return True
    return isinstance(sources, list | tuple) and all(isinstance(each, str | os.PathLike) for each in sources)


def _listed(sources: Any) -> list[str]:
    one = isinstance(sources, str | os.PathLike)
    return list(map(os.fspath, [sources] if one else sources))


def _mapping(names: Mapping[str, str] | Sequence[str] | None, argument: str) -> dict[str, str]:
    if isinstance(names, str):
        raise UsageError(f"expected a list or a mapping, got {names!r}.", field=argument)
    return dict(names) if isinstance(names, Mapping) else {name: name for name in names or ()}


def _with_default_size(output: Output) -> Output:
    if output.numbered and not output.stream and output.max_samples is None and output.max_bytes is None:
        return replace(output, max_samples=MAX_SAMPLES)
    return output


@contextmanager
def _without_gc() -> Iterator[None]:
    """Disable garbage collection: scanning the millions of tuples of a plan is slow, and none can be freed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _check_output_outside(urls: Sequence[str], output: Output) -> None:
    """Raise if the output is inside a source: the next run would pack it."""
    if not is_local(output.pattern) or output.stream:
        return
    target = os.path.realpath(os.path.dirname(local_path(output.name(0, "x", "x"))) or ".")
    for url in urls:
        if is_local(url) and os.path.isdir(local_path(url)):
            root = os.path.realpath(local_path(url))
            if target == root or target.startswith(root.rstrip("/") + "/"):
                raise UsageError(
                    f"the output is inside the source {url}.",
                    url=output.pattern,
                    hint="a directory outside the source, such as ../x-{i:06d}.tar.",
                )
