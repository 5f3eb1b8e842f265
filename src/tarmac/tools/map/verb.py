"""Transform samples with a command or a Python function: filters, conversions and offline augmentation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Unpack

from tarmac.errors import UsageError
from tarmac.indexing.manifest import Manifest
from tarmac.jobs.report import Report
from tarmac.samples.grouping import Sample
from tarmac.storage.urls import Shards
from tarmac.tools.map.commands import Command
from tarmac.tools.map.functions import Function
from tarmac.tools.map.transform import Transform
from tarmac.tools.options import Access, RewriteArgs, Run, bundle, verb
from tarmac.tools.output import Output
from tarmac.tools.plan import plan
from tarmac.tools.rewrite import rewrite
from tarmac.tools.select import Select


@verb(RewriteArgs, Select, Output, Run, Access)
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
    **options: Unpack[RewriteArgs],
) -> Report:
    """Transform samples and write the results to new shards, in parallel.

    Give one of these:

    - `function`, a callable or its name (`module:function`, `file.py:function`). It takes a sample and
      returns a sample, None to drop it, or several samples. Fields are bytes, or decoded with `decode`: images
      as rgb8, pil, torchrgb and so on, or "basic" for everything but images. Fields that it returns unchanged
      keep their bytes.
    - `command`, a shell command or its arguments, or `script`, a file for the `interpreter`. It runs in a
      directory with a file `sample.<field>` for each field, and the files that it leaves are the new sample.
      If it leaves none, the sample is dropped. With `multi`, it writes several samples as
      `sample-<number>.<field>`. It must exit within `timeout` seconds. Its output goes to the field `log_field`
      or to standard error. The files of failed samples are kept in `keep_dir`.

    Results are in the order of the samples; with `ordered` False, in the order in which they are ready. With
    fewer output shards than `jobs`, several samples of a shard are transformed at a time.
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
    planned = plan([access.inputs(sources)], select, target, access, progress=run.progress)
    transform = Transform(work, run, ordered)
    if planned.one_pass:
        if not ordered and not target.stream:
            raise UsageError(
                "a stream can be divided into shards only in order.", field="ordered", url=target.pattern
            )
        transform = replace(transform, concurrency=run.workers)
    else:
        shards = sum(1 for name, each in planned.sources.items() for _ in each.shards(target, name))
        transform = replace(transform, concurrency=max(run.workers // max(shards, 1), 1))
    facts = transform.options() | {"select": select.options()}
    return rewrite("map", planned, target, run, change=transform, options=facts)
