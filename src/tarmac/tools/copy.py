"""Copy samples: concatenate, split, reshard, subset, rename, mix and shuffle."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Unpack, cast

from tarmac.errors import UsageError
from tarmac.indexing.manifest import Inputs, Manifest
from tarmac.jobs.report import Report
from tarmac.storage.urls import Shards
from tarmac.tools.options import (
    Access,
    AccessArgs,
    OrderArgs,
    Run,
    RunArgs,
    SelectArgs,
    WriteArgs,
    bundle,
    verb,
)
from tarmac.tools.order import Order
from tarmac.tools.output import Output
from tarmac.tools.plan import plan
from tarmac.tools.rewrite import rewrite
from tarmac.tools.select import Select


class CopyArgs(SelectArgs, OrderArgs, WriteArgs, RunArgs, AccessArgs, total=False):
    """The keyword arguments of `copy`."""


@verb(CopyArgs, Select, Order, Output, Run, Access)
def copy(
    sources: Shards | Manifest | Sequence[Shards | Manifest],
    output: str | os.PathLike[str],
    **options: Unpack[CopyArgs],
) -> Report:
    """Copy the selected samples to new shards, in the requested order.

    With `weights`, `sources` is a sequence of as many sources. Shards that can be indexed are copied in
    parallel and shuffled completely. Other inputs are read in one pass and shuffled in a buffer.
    """
    select, order = bundle(Select, options), bundle(Order, options)
    access, run = bundle(Access, options), bundle(Run, options)
    target = bundle(Output, {"pattern": os.fspath(output), **options})
    access = access.shared(run, target)
    planned = plan(
        _inputs(sources, order, select, access),
        select,
        target,
        access,
        order=order,
        views=True,
        progress=run.progress,
        processes=run.workers,
    )
    facts: dict[str, Any] = {"select": select.options()} | order.options(one_pass=planned.one_pass)
    return rewrite("copy", planned, target, run, options=facts)


def _inputs(sources: Any, order: Order, select: Select, access: Access) -> list[Inputs]:
    if not order.weights:
        return [access.inputs(sources)]
    if select.slice:
        raise UsageError(
            "`slice` cannot be combined with `weights`: it would slice each source.",
            hint="`slice_shard`, or a second copy with `slice`.",
        )
    listed = list(cast("Sequence[Shards]", sources))
    if len(listed) != len(order.weights):
        raise UsageError(
            f"expected one weight for each of {len(listed)} sources, got {len(order.weights)}.",
            field="weights",
        )
    return [access.inputs(source) for source in listed]
