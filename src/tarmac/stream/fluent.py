"""The fluent interface: every stage as a method that returns a longer pipeline."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, TypedDict, TypeVar, Unpack

from tarmac.codecs.handlers import Handler as FieldDecoder
from tarmac.limits import DEFAULT_LIMITS, Limits
from tarmac.steps import fields
from tarmac.steps.handlers import Handler, reraise_exception
from tarmac.stream import batch, debug, sample_cache
from tarmac.stream.batch import default_collation_fn
from tarmac.stream.shuffle import Rsample, Shuffle

Function = Callable[[Any], Any]
# Methods are annotated with this variable, not with `Self`, so that jedi (IPython) knows what follows a step.
P = TypeVar("P", bound="FluidInterface")


class _SelectOptions(TypedDict, total=False):
    handler: Handler


class Stages:
    """The stages that the methods add, by the names of the webdataset library."""

    associate = fields.Associate
    batched = batch.Batched
    decode = fields.Decode
    extract_keys = fields.ExtractKeys
    info = debug.info
    log_keys = debug.log_keys
    map = fields.Map
    map_dict = fields.MapDict
    map_tuple = fields.MapTuple
    rename = fields.Rename
    rename_keys = fields.RenameKeys
    rsample = Rsample
    select = fields.Select
    shuffle = Shuffle
    slice = batch.slice_stage
    to_tuple = fields.ToTuple
    unbatched = batch.unbatched
    unlisted = batch.unlisted
    xdecode = fields.XDecode
    Cached = sample_cache.Cached
    DBCache = sample_cache.DBCache
    LMDBCached = sample_cache.LMDBCached


class FluidInterface:
    """Methods that add stages, for classes with a `compose` method."""

    limits: Limits = DEFAULT_LIMITS
    """The default limits of `decode`."""
    _stages: Any = Stages

    def compose(self: P, *args: Any) -> P:
        """Return a copy with more stages."""
        raise NotImplementedError

    def pipe(self: P, *stages: Any) -> P:
        """Add custom stages: functions from iterator to iterator, or `PipelineStage` objects."""
        return self.compose(*stages)

    def batched(
        self: P,
        batchsize: int,
        collation_fn: Callable[[list[Any]], Any] | None = default_collation_fn,
        partial: bool = True,
    ) -> P:
        """Collect samples into batches; `partial=False` drops a last batch that is not full."""
        return self.compose(self._stages.batched(batchsize, collation_fn=collation_fn, partial=partial))

    def unbatched(self: P) -> P:
        """Split batches into samples."""
        return self.compose(self._stages.unbatched())

    def listed(self: P, batchsize: int, partial: bool = True) -> P:
        """Collect items into lists."""
        return self.compose(self._stages.batched(batchsize, collation_fn=None, partial=partial))

    def unlisted(self: P) -> P:
        """Split lists into items."""
        return self.compose(self._stages.unlisted())

    def log_keys(self: P, logfile: str | None = None) -> P:
        """Append the key of each sample to a file."""
        return self.compose(self._stages.log_keys(logfile))

    def info(
        self: P,
        fmt: str | None = None,
        n: int = 3,
        every: int = -1,
        width: int = 50,
        stream: IO[str] | None = None,
        name: str = "",
    ) -> P:
        """Print the first `n` samples, and then every `every`-th one, to `stream` (by default standard error)."""
        return self.compose(self._stages.info(fmt, n, every, width, stream, name))

    def shuffle(
        self: P,
        size: int,
        *,
        initial: float = 100,
        rng: random.Random | None = None,
        seed: int | None = None,
        handler: Handler | None = None,
        max_bytes: int | None = None,
    ) -> P:
        """Shuffle with a buffer of `size` samples, or `max_bytes` bytes of them; a size below 1 does nothing.

        The first sample is yielded when `initial` samples are buffered.
        """
        if size < 1:
            return self
        options = {"initial": initial, "rng": rng, "seed": seed, "handler": handler, "max_bytes": max_bytes}
        return self.compose(self._stages.shuffle(size, **options))

    def map(self: P, f: Function, handler: Handler = reraise_exception, threads: int = 0) -> P:
        """Replace each sample by the result of a function; None drops it."""
        return self.compose(self._stages.map(f, handler=handler, threads=threads))

    def decode(
        self: P,
        *args: str | FieldDecoder,
        pre: Iterable[FieldDecoder] | None = None,
        post: Iterable[FieldDecoder] | None = None,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
        handler: Handler = reraise_exception,
        allow_pickle: bool = False,
        limits: Limits | None = None,
        threads: int = 0,
    ) -> P:
        """Decode fields by extension; strings such as "rgb8" set the format of images.

        `threads` is the number of samples decoded at a time, in this process, in order. `limits` bounds the size of
        decoded fields; by default it is that of the dataset.
        """
        return self.compose(
            self._stages.decode(
                *args,
                handler=handler,
                threads=threads,
                pre=pre,
                post=post,
                only=only,
                partial=partial,
                allow_pickle=allow_pickle,
                limits=self.limits if limits is None else limits,
            )
        )

    def map_dict(self: P, handler: Handler = reraise_exception, **kw: Function) -> P:
        """Apply functions to fields by name."""
        return self.compose(self._stages.map_dict(handler=handler, **kw))

    def select(self: P, predicate: Function, **kw: Unpack[_SelectOptions]) -> P:
        """Keep the samples for which a function returns true; `handler` decides about its errors."""
        return self.compose(self._stages.select(predicate, **kw))

    def to_tuple(
        self: P,
        *args: str | Sequence[str],
        handler: Handler = reraise_exception,
        missing_is_error: bool = True,
        none_is_error: bool | None = None,
    ) -> P:
        """Make a tuple of fields; `"jpg;png"` takes the first of them that the sample has."""
        return self.compose(
            self._stages.to_tuple(
                *args, handler=handler, missing_is_error=missing_is_error, none_is_error=none_is_error
            )
        )

    def map_tuple(self: P, *args: Function | None, handler: Handler = reraise_exception) -> P:
        """Apply functions to the first items of each tuple."""
        return self.compose(self._stages.map_tuple(*args, handler=handler))

    def slice(self: P, *args: int | None) -> P:
        """Keep some of the items, as itertools.islice does."""
        return self.compose(self._stages.slice(*args))

    def rename(
        self: P, *, handler: Handler = reraise_exception, keep: bool = True, **kw: str | Sequence[str]
    ) -> P:
        """Rename fields: `jpg="jpg;jpeg;png"`."""
        return self.compose(self._stages.rename(handler=handler, keep=keep, **kw))

    def associate(
        self: P,
        associator: Mapping[str, Mapping[str, Any]] | Callable[[str], Mapping[str, Any]],
        *,
        handler: Handler = reraise_exception,
    ) -> P:
        """Add fields by key, from a dictionary or a function."""
        return self.compose(self._stages.associate(associator, handler=handler))

    def rsample(self: P, p: float = 0.5) -> P:
        """Keep each sample with probability `p`."""
        return self.compose(self._stages.rsample(p))

    def rename_keys(
        self: P,
        *args: tuple[str, str],
        keep_unselected: bool = False,
        must_match: bool = True,
        duplicate_is_error: bool = True,
        handler: Handler = reraise_exception,
        **kw: str,
    ) -> P:
        """Rename fields by shell pattern: `image="*.jpg"`."""
        return self.compose(
            self._stages.rename_keys(
                *args,
                keep_unselected=keep_unselected,
                must_match=must_match,
                duplicate_is_error=duplicate_is_error,
                handler=handler,
                **kw,
            )
        )

    def extract_keys(
        self: P,
        *args: str | Sequence[str],
        duplicate_is_error: bool = True,
        ignore_missing: bool = False,
        handler: Handler = reraise_exception,
    ) -> P:
        """Make a tuple of fields by shell pattern."""
        return self.compose(
            self._stages.extract_keys(
                *args, duplicate_is_error=duplicate_is_error, ignore_missing=ignore_missing, handler=handler
            )
        )

    def xdecode(
        self: P,
        *args: tuple[str, Any],
        must_decode: bool = True,
        defaults: Iterable[tuple[str, Any]] = fields.X_DECODERS,
        handler: Handler = reraise_exception,
        **kw: Any,
    ) -> P:
        """Decode fields by shell pattern, with functions that read a stream."""
        return self.compose(
            self._stages.xdecode(*args, must_decode=must_decode, defaults=defaults, handler=handler, **kw)
        )

    def mcached(self: P) -> P:
        """Keep samples in memory after the first complete epoch."""
        return self.compose(self._stages.Cached())

    def lmdb_cached(
        self: P,
        fname: str | os.PathLike[str],
        map_size: float = 1e12,
        pickler: Any = pickle,
        chunksize: int = 500,
    ) -> P:
        """Keep samples in an LMDB environment after the first complete epoch."""
        return self.compose(self._stages.LMDBCached(fname, map_size, pickler, chunksize))

    def db_cached(self: P, dbname: str | os.PathLike[str], pickler: Any = pickle, chunksize: int = 500) -> P:
        """Keep samples in an SQLite file after the first complete epoch."""
        return self.compose(self._stages.DBCache(dbname, pickler, chunksize))
