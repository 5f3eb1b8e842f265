"""The fluent interface: every stage as a method that returns a longer pipeline."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, Self, TypedDict, Unpack

from tarmac.codecs.handlers import Handler as FieldDecoder
from tarmac.codecs.resize import Size
from tarmac.limits import DEFAULT_LIMITS, Limits
from tarmac.steps import fields
from tarmac.steps.handlers import Handler, reraise_exception
from tarmac.stream import batch, debug, sample_cache
from tarmac.stream.batch import Batched, default_collation_fn
from tarmac.stream.shuffle import Rsample, Shuffle

Function = Callable[[Any], Any]


class _SelectOptions(TypedDict, total=False):
    handler: Handler


class FluidInterface:
    """Methods that add stages, for classes with a `compose` method."""

    limits: Limits = DEFAULT_LIMITS
    """The default limits of `decode`."""
    _decode_stage = fields.Decode

    def compose(self, *args: Any) -> Self:
        """Return a copy with more stages."""
        raise NotImplementedError

    def pipe(self, *stages: Any) -> Self:
        """Add custom stages: functions from iterator to iterator, or `PipelineStage` objects."""
        return self.compose(*stages)

    def batched(
        self,
        batchsize: int,
        collation_fn: Callable[[list[Any]], Any] | None = default_collation_fn,
        partial: bool = True,
    ) -> Self:
        """Collect samples into batches; `partial=False` drops a last batch that is not full."""
        return self.compose(Batched(batchsize, collation_fn, partial))

    def unbatched(self) -> Self:
        """Split batches into samples."""
        return self.compose(batch.unbatched())

    def listed(self, batchsize: int, partial: bool = True) -> Self:
        """Collect items into lists."""
        return self.compose(Batched(batchsize, None, partial))

    def unlisted(self) -> Self:
        """Split lists into items."""
        return self.compose(batch.unlisted())

    def log_keys(self, logfile: str | None = None) -> Self:
        """Append the key of each sample to a file."""
        return self.compose(debug.log_keys(logfile))

    def info(
        self,
        fmt: str | None = None,
        n: int = 3,
        every: int = -1,
        width: int = 50,
        stream: IO[str] | None = None,
        name: str = "",
    ) -> Self:
        """Print the first `n` samples, and then every `every`-th one, to `stream` (by default standard error)."""
        return self.compose(debug.info(fmt, n, every, width, stream, name))

    def shuffle(
        self,
        size: int,
        *,
        initial: float = 100,
        rng: random.Random | None = None,
        seed: int | None = None,
        handler: Handler | None = None,
        max_bytes: int | None = None,
    ) -> Self:
        """Shuffle with a buffer of `size` samples, or `max_bytes` bytes of them; a size below 1 does nothing.

        The first sample is yielded when `initial` samples are buffered.
        """
        return self if size < 1 else self.compose(Shuffle(size, initial, rng, seed, handler, max_bytes))

    def map(self, f: Function, handler: Handler = reraise_exception, threads: int = 0) -> Self:
        """Replace each sample by the result of a function; None drops it."""
        return self.compose(fields.Map(f, handler, threads))

    def decode(
        self,
        *args: str | FieldDecoder,
        pre: Iterable[FieldDecoder] | None = None,
        post: Iterable[FieldDecoder] | None = None,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
        handler: Handler = reraise_exception,
        allow_pickle: bool = False,
        limits: Limits | None = None,
        threads: int = 0,
        size: Size | None = None,
    ) -> Self:
        """Decode fields by extension; strings such as "rgb8" set the format of images.

        `size` resizes images: it is the length of the shorter side, or width and height. `threads` is the number of
        samples decoded at a time, in this process, in order. `limits` bounds the size of decoded fields; by default
        it is that of the dataset.
        """
        return self.compose(
            self._decode_stage(
                *args,
                handler=handler,
                threads=threads,
                pre=pre,
                post=post,
                only=only,
                partial=partial,
                allow_pickle=allow_pickle,
                limits=self.limits if limits is None else limits,
                size=size,
            )
        )

    def map_dict(self, handler: Handler = reraise_exception, **kw: Function) -> Self:
        """Apply functions to fields by name."""
        return self.compose(fields.MapDict(handler, **kw))

    def select(self, predicate: Function, **kw: Unpack[_SelectOptions]) -> Self:
        """Keep the samples for which a function returns true; `handler` decides about its errors."""
        return self.compose(fields.Select(predicate, **kw))

    def to_tuple(
        self,
        *args: str | Sequence[str],
        handler: Handler = reraise_exception,
        missing_is_error: bool = True,
        none_is_error: bool | None = None,
    ) -> Self:
        """Make a tuple of fields; `"jpg;png"` takes the first of them that the sample has."""
        return self.compose(
            fields.ToTuple(
                *args, handler=handler, missing_is_error=missing_is_error, none_is_error=none_is_error
            )
        )

    def map_tuple(self, *args: Function | None, handler: Handler = reraise_exception) -> Self:
        """Apply functions to the first items of each tuple."""
        return self.compose(fields.MapTuple(*args, handler=handler))

    def slice(self, *args: int | None) -> Self:
        """Keep some of the items, as itertools.islice does."""
        return self.compose(batch.slice_stage(*args))

    def rename(
        self, *, handler: Handler = reraise_exception, keep: bool = True, **kw: str | Sequence[str]
    ) -> Self:
        """Rename fields: `jpg="jpg;jpeg;png"`."""
        return self.compose(fields.Rename(handler, keep, **kw))

    def associate(
        self,
        associator: Mapping[str, Mapping[str, Any]] | Callable[[str], Mapping[str, Any]],
        *,
        handler: Handler = reraise_exception,
    ) -> Self:
        """Add fields by key, from a dictionary or a function."""
        return self.compose(fields.Associate(associator, handler))

    def rsample(self, p: float = 0.5) -> Self:
        """Keep each sample with probability `p`."""
        return self.compose(Rsample(p))

    def rename_keys(
        self,
        *args: tuple[str, str],
        keep_unselected: bool = False,
        must_match: bool = True,
        duplicate_is_error: bool = True,
        handler: Handler = reraise_exception,
        **kw: str,
    ) -> Self:
        """Rename fields by shell pattern: `image="*.jpg"`."""
        return self.compose(
            fields.RenameKeys(
                *args,
                keep_unselected=keep_unselected,
                must_match=must_match,
                duplicate_is_error=duplicate_is_error,
                handler=handler,
                **kw,
            )
        )

    def extract_keys(
        self,
        *args: str | Sequence[str],
        duplicate_is_error: bool = True,
        ignore_missing: bool = False,
        handler: Handler = reraise_exception,
    ) -> Self:
        """Make a tuple of fields by shell pattern."""
        return self.compose(
            fields.ExtractKeys(
                *args, duplicate_is_error=duplicate_is_error, ignore_missing=ignore_missing, handler=handler
            )
        )

    def xdecode(
        self,
        *args: tuple[str, Any],
        must_decode: bool = True,
        defaults: Iterable[tuple[str, Any]] = fields.X_DECODERS,
        handler: Handler = reraise_exception,
        **kw: Any,
    ) -> Self:
        """Decode fields by shell pattern, with functions that read a stream."""
        return self.compose(
            fields.XDecode(*args, must_decode=must_decode, defaults=defaults, handler=handler, **kw)
        )

    def mcached(self) -> Self:
        """Keep samples in memory after the first complete epoch."""
        return self.compose(sample_cache.Cached())

    def lmdb_cached(
        self,
        fname: str | os.PathLike[str],
        map_size: float = 1e12,
        pickler: Any = pickle,
        chunksize: int = 500,
    ) -> Self:
        """Keep samples in an LMDB environment after the first complete epoch."""
        return self.compose(sample_cache.LMDBCached(fname, map_size, pickler, chunksize))

    def db_cached(self, dbname: str | os.PathLike[str], pickler: Any = pickle, chunksize: int = 500) -> Self:
        """Keep samples in an SQLite file after the first complete epoch."""
        return self.compose(sample_cache.DBCache(dbname, pickler, chunksize))
