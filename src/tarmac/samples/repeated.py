"""Read shards in which whole samples repeat: a run is a sample if every run of its key has the same fields.

A run is a sequence of contiguous members that share a key; a field that comes twice begins a new run. A run with
other fields than the first one of its key may be a part of a sample, and is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tarmac.errors import DuplicateField, SampleError, SplitSample

if TYPE_CHECKING:
    from tarmac.samples.grouping import Sample

OnError = Callable[[SampleError], None]


class Run(dict[str, Any]):
    """A run that a duplicate field ended, so that the next run has the same key."""


def whole_samples(
    runs: Iterable[Sample], url: str, tracked: int, on_error: OnError, split: Mapping[str, SampleError]
) -> Iterator[Sample]:
    """Yield the runs that are whole samples, and call `on_error` with an error for each other one.

    The fields of up to `tracked` keys are remembered, as hashes. Samples in `split` are one error each. A run
    before a duplicate field is held until the next one shows that it was whole.
    """
    first: dict[int, int] = {}  # a hash of the fields of the first run of each key, by the hash of the key
    names: tuple[str, ...] = ()  # of the last run
    fields = 0  # a hash of them, in any order
    unreported = dict(split)
    held: Sample | None = None
    dropped: str | None = None  # the key whose contiguous runs are dropped
    for run in runs:
        key = run["__key__"]
        if split or dropped is not None:
            if key in unreported:
                on_error(unreported.pop(key))
            if key == dropped or key in split:
                continue
            dropped = None
        if held is not None:
            if held.keys() != run.keys():
                on_error(DuplicateField(f'duplicate field "{_first_field(run)}".', url=url, key=key))
                held, dropped = None, key
                continue
            yield held
            held = None
        if (new := tuple(run)) != names:
            names, fields = new, hash(frozenset(new))
        key_hash = hash(key)
        if first.get(key_hash, fields) != fields:
            what = (
                "the members of this sample are not contiguous, or a sample with this key has other fields."
            )
            on_error(SplitSample(what, url=url, key=key))
            continue
        if len(first) < tracked:
            first[key_hash] = fields
        if type(run) is Run:
            held = dict(run)
        else:
            yield run
    if held is not None:
        yield held


def _first_field(run: Sample) -> str:
    return next(name for name in run if name not in ("__key__", "__url__"))
