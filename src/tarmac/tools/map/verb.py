"""Transform samples with a command or a Python function: filters, conversions and offline augmentation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from tarmac.errors import CodecError, SampleError, UsageError
from tarmac.indexing.manifest import Manifest
from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome
from tarmac.limits import MIB
from tarmac.runtime.lookahead import run_ahead
from tarmac.runtime.processes import result_of, worker_pool
from tarmac.samples.grouping import Sample
from tarmac.storage.urls import Shards
from tarmac.tools.chunks import chunks
from tarmac.tools.map.commands import Command, Running
from tarmac.tools.map.functions import Function
from tarmac.tools.options import Access, Checkpoints, MapArgs, Run, bundle, verb
from tarmac.tools.output import Output
from tarmac.tools.plan import plan
from tarmac.tools.rewrite import rewrite
from tarmac.tools.select import Select

CHUNK = 64
"""Samples sent to a worker process at a time, ..."""
CHUNK_BYTES = MIB
"""... unless they are large."""
Result = list[Sample] | Exception


@verb(MapArgs, Select, Output, Run, Checkpoints, Access)
def map(  # noqa: A001 - the name of the verb
    sources: Shards | Manifest,
    output: str | os.PathLike[str],
    function: Callable[[Sample], Any] | str | None = None,
    *,
    decode: bool | str = False,
    command: str | Sequence[str] | None = None,
    script: str | os.PathLike[str] | None = None,
    interpreter: str = "bash",
    multi: bool = False,
    timeout: float | None = None,
    log_field: str | None = None,
    keep_dir: str | os.PathLike[str] | None = None,
    ordered: bool = True,
    **options: Unpack[MapArgs],
) -> Report:
    """Transform samples and write the results to new shards, in parallel.

    Give one of these:

    - `function`, a callable or its name (`module:function`, `file.py:function`). It takes a sample and
      returns a sample, None to drop it, or several samples. Fields are bytes, or decoded with `decode`: images
      as rgb8, pil, torchrgb and so on, or "basic" for everything but images. Fields that it returns unchanged
      keep their bytes. A callable object may have `setup(device)`, which each process calls before its first
      sample, and `close()`.
    - `command`, a shell command or its arguments, or `script`, a file for the `interpreter`. It runs in a
      directory with a file `sample.<field>` for each field, and the files that it leaves are the new sample.
      If it leaves none, the sample is dropped. With `multi`, it writes several samples as
      `sample-<number>.<field>`. It must exit within `timeout` seconds. Its output goes to the field `log_field`
      or to standard error. The files of failed samples are kept in `keep_dir`.

    Results are in the order of the samples; with `ordered` False, in the order in which they are ready. With
    fewer output shards than `jobs`, several samples of a shard are transformed at a time.

    The samples of an unfinished shard are saved every `checkpoint_interval` seconds and after
    `checkpoint_samples` samples, so that a killed job continues behind them. Compressed outputs, results without
    order and inputs that are read in one pass start over with the shard.
    """
    for_commands = {"multi": multi, "timeout": timeout, "log_field": log_field, "keep_dir": keep_dir}
    if sum(each is not None for each in (function, command, script)) != 1:
        raise UsageError("expected one of `function`, `command` and `script`.")
    if interpreter != "bash" and script is None:
        raise UsageError("`interpreter` needs `script`.", field="interpreter")
    access = bundle(Access, options)
    work: Function | Command
    if function is not None:
        for name, value in for_commands.items():
            if value:
                raise UsageError(f"`{name}` needs `command` or `script`.", field=name)
        work = Function(function, "rgb8" if decode is True else decode or "", access.split_name)
    else:
        if decode:
            raise UsageError("`decode` needs `function`; commands get files.", field="decode")
        work = Command(
            command if command is not None else "",
            "" if script is None else os.fspath(script),
            interpreter,
            multi,
            timeout,
            log_field or "",
            "" if keep_dir is None else os.fspath(keep_dir),
            access.split_name,
        )
    select, run = bundle(Select, options), bundle(Run, options)
    target = bundle(Output, {"pattern": os.fspath(output), **options})
    access = access.shared(run, target)
    planned = plan(
        [access.inputs(sources)], select, target, access, progress=run.progress, processes=run.workers
    )
    concurrency = run.workers
    if not planned.one_pass:
        shards = sum(1 for name, each in planned.sources.items() for _ in each.shards(target, name))
        # Workers of clusters run one unit each; `jobs` counts the cores of this machine.
        here = not isinstance(run.engine, str) or run.engine == "local"
        concurrency = max(run.workers // max(shards, 1), 1) if here else 1
    elif not ordered and not target.stream:
        raise UsageError(
            "a stream can be divided into shards only in order.", field="ordered", url=target.pattern
        )
    transform = Transform(work, run, ordered, concurrency)
    facts = transform.options() | {"select": select.options()}
    checkpoints = bundle(Checkpoints, options) if ordered else None
    return rewrite("map", planned, target, run, change=transform, options=facts, checkpoints=checkpoints)


@dataclass(frozen=True)
class Transform:
    """A transformation of the samples of a shard."""

    work: Command | Function
    run: Run
    ordered: bool = True
    concurrency: int = 1
    """Samples of one shard that are processed concurrently: commands, or processes that run the function."""

    def options(self) -> dict[str, Any]:
        """Return what the result depends on, for a ledger; `on_error` may change when a job is resumed."""
        return self.work.options() | ({} if self.ordered else {"unordered": True})

    def __call__(self, samples: Iterator[Sample], outcome: Outcome) -> Iterator[list[Sample]]:
        """Yield the new samples of each sample; count dropped and failed ones in the outcome."""
        for sample, result in self._results(samples):
            if isinstance(result, list):
                outcome.dropped += not result
                outcome.added += max(len(result) - 1, 0)
                yield result
            elif isinstance(result, SampleError | CodecError):
                result.at(url=sample.get("__url__"), key=sample["__key__"])
                self.run.handle(result, outcome)
                yield []
            else:
                raise result

    def _results(self, samples: Iterator[Sample]) -> Iterator[tuple[Sample, Result]]:
        if isinstance(self.work, Command):
            return self._in_threads(self.work, samples)
        if self.concurrency > 1:
            return self._in_processes(self.work, samples)
        return ((sample, _try(self.work, sample)) for sample in samples)

    def _in_threads(self, command: Command, samples: Iterator[Sample]) -> Iterator[tuple[Sample, Result]]:
        # Even a single command runs in a thread: an interrupt, which the main thread receives, must not come
        # between the start of a command and its registration.
        running = Running()
        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="tarmac-map")
        submit = partial(pool.submit, partial(_try, partial(command, running=running)))
        try:
            for sample, future in run_ahead(submit, samples, self.concurrency, ordered=self.ordered):
                yield sample, future.result()
        finally:
            running.stop()
            pool.shutdown(wait=True, cancel_futures=True)

    def _in_processes(self, function: Function, samples: Iterator[Sample]) -> Iterator[tuple[Sample, Result]]:
        groups = chunks(samples, CHUNK, CHUNK_BYTES)
        with worker_pool(self.concurrency, partial(_try_all, function)) as submit:
            for chunk, future in run_ahead(submit, groups, self.concurrency, ordered=self.ordered):
                results = result_of(future)
                if isinstance(results, Exception):  # the process failed, not a sample
                    raise results
                yield from zip(chunk, results, strict=True)


def _try(work: Callable[[Sample], list[Sample]], sample: Sample) -> Result:
    try:
        return work(sample)
    except Exception as error:
        return error


def _try_all(work: Callable[[Sample], list[Sample]], samples: list[Sample]) -> list[Result]:
    return [_try(work, sample) for sample in samples]
