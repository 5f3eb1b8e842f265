"""Stages: what a pipeline is made of.

A stage is anything callable from an iterator to an iterator. Some things help the pipeline beyond that, all
optional:
- `set_epoch(n)` is called before pass n;
- `drops` counts what a handler has dropped;
- `prompt` says that the stage keeps nothing back between two items it hands out, so that a resumed pipeline
need not run it again over what came before;
- `seeds()` and `load_seeds(seeds)` save and restore, as JSON, what a pass follows from beyond its number;
- `not_resumable` is a sentence that says why a pipeline with this stage has no state;
- `keeps_parts` and `reads_parts` say that the stage hands on, or reads, parts of shards
(`stream/splitting.py`).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tarmac.errors import TarmacError
from tarmac.runtime.lookahead import in_threads
from tarmac.steps.handlers import Drops, Handler, reraise_exception

__all__ = ["Each", "FilterFunction", "PipelineStage", "RestCurried", "located", "pipelinefilter"]


def located(error: TarmacError, sample: Any) -> TarmacError:
    """Add to an error which sample it is about."""
    if isinstance(sample, Mapping):
        url, key = sample.get("__url__"), sample.get("__key__")
        error.at(url=url if isinstance(url, str) else None, key=key if isinstance(key, str) else None)
    return error


class PipelineStage:
    """Base for stages written as classes: implement `run(source)`."""

    prompt = False

    def run(self, *args: Any) -> Iterable[Any]:
        """Return the items of this stage, made from those of `source`; the first stage gets none."""
        raise NotImplementedError(f"{type(self).__name__} has no run method")

    def __call__(self, *args: Any) -> Iterable[Any]:
        return self.run(*args)


class Each(PipelineStage):
    """A stage that looks at one item at a time and hands out at most one for it: `apply(item)`.

    An item for which `apply` returns None is left out. With `threads`, that many items are worked on at a
    time and still come out in order; it pays for work that lets go of Python's lock, as decoding images does.
    """

    prompt = True

    def __init__(self, handler: Handler = reraise_exception, threads: int = 0) -> None:
        if threads < 0:
            raise ValueError(f"threads must not be negative, got {threads}")
        self.handler, self.threads = handler, threads
        self.drops = Drops()
        self._follower: tuple[Callable[[], Any], deque[Any]] | None = None

    def apply(self, item: Any) -> Any:
        """Return what becomes of the item."""
        raise NotImplementedError

    def run(self, *args: Any) -> Iterator[Any]:
        (source,) = args
        follower, self._follower = self._follower, None
        if not self.threads:
            return self._results(map(self._try, source))
        if follower is None:
            return self._results(in_threads(self._try, source, self.threads))
        position, marks = follower
        results = in_threads(self._try, _marked(source, position, marks), self.threads)
        return self._results(_unmarked(results, marks))

    def follow(self, position: Callable[[], Any], marks: deque[Any]) -> None:
        """Keep in `marks`, oldest first, the positions before the items in work during the next run."""
        self._follower = position, marks

    def _results(self, results: Iterable[tuple[Any, Exception | None]]) -> Iterator[Any]:
        for result, error in results:
            if error is not None:
                if self.drops.ask(self.handler, error):
                    continue
                return
            if result is not None:
                yield result

    def _try(self, item: Any) -> tuple[Any, Exception | None]:
        try:
            return self.apply(item), None
        except Exception as exn:
            return None, exn


def _marked(source: Iterable[Any], position: Callable[[], Any], marks: deque[Any]) -> Iterator[Any]:
    items = iter(source)
    while True:
        mark = position()
        for item in items:
            marks.append(mark)
            yield item
            break
        else:
            return


def _unmarked(results: Iterable[Any], marks: deque[Any]) -> Iterator[Any]:
    for result in results:
        marks.popleft()
        yield result


class FilterFunction:
    """A generator function with all its arguments but the source; picklable."""

    def __init__(self, f: Callable[..., Iterable[Any]], *args: Any, **kw: Any) -> None:
        self.f, self.args, self.kw = f, args, kw

    def __call__(self, source: Iterable[Any]) -> Iterable[Any]:
        return self.f(source, *self.args, **self.kw)

    @property
    def keeps_parts(self) -> bool:
        """Whether the function hands on parts of shards."""
        return getattr(self.f, "keeps_parts", False)

    @property
    def reads_parts(self) -> bool:
        """Whether the function reads parts of shards."""
        return getattr(self.f, "reads_parts", False)

    def __repr__(self) -> str:
        return f"<{self.f.__name__} {self.args} {self.kw}>"


class RestCurried:
    """Turns `f(source, …)` into `stage(…)(source)`."""

    def __init__(self, f: Callable[..., Iterable[Any]]) -> None:
        self.f = f
        functools.update_wrapper(self, f)

    def __call__(self, *args: Any, **kw: Any) -> FilterFunction:
        return FilterFunction(self.f, *args, **kw)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return RestCurried, (self.f,)


def pipelinefilter(f: Callable[..., Iterable[Any]]) -> RestCurried:
    """Make a stage out of a generator function whose first argument is the source."""
    return RestCurried(f)
