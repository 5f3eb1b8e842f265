"""The fluent interface: every stage as a method that returns a longer pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from tarmac.limits import DEFAULT_LIMITS, Limits
from tarmac.steps import fields
from tarmac.steps.handlers import Handler, reraise_exception
from tarmac.stream import batch, debug, sample_cache
from tarmac.stream.batch import Batched, default_collation_fn
from tarmac.stream.shuffle import Rsample, Shuffle

__all__ = ["FluidInterface"]


class FluidInterface:
    """Methods for pipelines; a class that has `compose` gets them by inheriting."""

    def compose(self, *args: Any) -> Self:
        """Return a copy with more stages."""
        raise NotImplementedError

    def pipe(self, *stages: Any) -> Self:
        """Add stages of any kind: functions from iterator to iterator."""
        return self.compose(*stages)

    def batched(
        self,
        batchsize: int,
        collation_fn: Callable[[list[Any]], Any] | None = default_collation_fn,
        partial: bool = True,
    ) -> Self:
        """Gather samples into batches; `partial=False` drops a last one that is not full."""
        return self.compose(Batched(batchsize, collation_fn, partial))

    def unbatched(self) -> Self:
        """Take batches apart."""
        return self.compose(batch.unbatched())

    def listed(self, batchsize: int, partial: bool = True) -> Self:
        """Gather items into lists."""
        return self.compose(Batched(batchsize, None, partial))

    def unlisted(self) -> Self:
        """Take lists apart."""
        return self.compose(batch.unlisted())

    def log_keys(self, logfile: str | None = None) -> Self:
        """Append the key of each sample to a file."""
        return self.compose(debug.log_keys(logfile))

    def info(self, *args: Any, **kw: Any) -> Self:
        """Show some samples on standard error."""
        return self.compose(debug.info(*args, **kw))

    def shuffle(self, size: int, **kw: Any) -> Self:
        """Shuffle through a buffer of so many samples; below 1 does nothing."""
        return self if size < 1 else self.compose(Shuffle(size, **kw))

    def map(self, f: Callable[[Any], Any], handler: Handler = reraise_exception, threads: int = 0) -> Self:
        """Replace each sample by what a function makes of it; None leaves it out."""
        return self.compose(fields.Map(f, handler, threads))

    def decode(
        self,
        *args: Any,
        pre: Any = None,
        post: Any = None,
        only: Any = None,
        partial: bool = False,
        handler: Handler = reraise_exception,
        allow_pickle: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        threads: int = 0,
    ) -> Self:
        """Decode fields by extension; strings such as "rgb8" say how images come out.

        `threads` decodes so many samples at a time, in this process, in order. `limits` bounds what a field
        may grow to.
        """
        options = {"pre": pre, "post": post, "only": only, "partial": partial}
        options |= {"allow_pickle": allow_pickle, "limits": limits}
        return self.compose(fields.Decode(*args, handler=handler, threads=threads, **options))

    def map_dict(self, handler: Handler = reraise_exception, **kw: Callable[[Any], Any]) -> Self:
        """Apply functions to fields by name."""
        return self.compose(fields.MapDict(handler, **kw))

    def select(self, predicate: Callable[[Any], Any], **kw: Any) -> Self:
        """Keep the samples for which a function is true."""
        return self.compose(fields.Select(predicate, **kw))

    def to_tuple(self, *args: Any, **kw: Any) -> Self:
        """Pick fields into a tuple."""
        return self.compose(fields.ToTuple(*args, **kw))

    def map_tuple(self, *args: Callable[[Any], Any] | None, handler: Handler = reraise_exception) -> Self:
        """Apply functions to the first items of each tuple."""
        return self.compose(fields.MapTuple(*args, handler=handler))

    def slice(self, *args: int | None) -> Self:
        """Pass on some of the items, as itertools.islice does."""
        return self.compose(batch.slice_stage(*args))

    def rename(self, **kw: Any) -> Self:
        """Give fields new names."""
        return self.compose(fields.Rename(**kw))

    def associate(self, associator: Any, **kw: Any) -> Self:
        """Add fields found by key."""
        return self.compose(fields.Associate(associator, **kw))

    def rsample(self, p: float = 0.5) -> Self:
        """Keep each sample with probability `p`."""
        return self.compose(Rsample(p))

    def rename_keys(self, *args: Any, **kw: Any) -> Self:
        """Give fields new names by shell pattern."""
        return self.compose(fields.RenameKeys(*args, **kw))

    def extract_keys(self, *args: Any, **kw: Any) -> Self:
        """Pick fields by shell pattern into a tuple."""
        return self.compose(fields.ExtractKeys(*args, **kw))

    def xdecode(self, *args: Any, **kw: Any) -> Self:
        """Decode fields by shell pattern with functions that read a stream."""
        return self.compose(fields.XDecode(*args, **kw))

    def mcached(self) -> Self:
        """Keep samples in memory after the first whole pass."""
        return self.compose(sample_cache.Cached())

    def lmdb_cached(self, *args: Any, **kw: Any) -> Self:
        """Keep samples in an LMDB environment after the first whole pass."""
        return self.compose(sample_cache.LMDBCached(*args, **kw))

    def db_cached(self, *args: Any, **kw: Any) -> Self:
        """Keep samples in an SQLite file after the first whole pass."""
        return self.compose(sample_cache.DBCache(*args, **kw))
