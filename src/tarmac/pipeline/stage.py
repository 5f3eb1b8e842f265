"""Stages: what a pipeline is made of.

A stage is anything callable from an iterator to an iterator. Three things help the pipeline beyond that,
all optional: `set_epoch(n)` is called before pass n; `drops` counts what a handler has dropped; and
`prompt` says that the stage keeps nothing back between two items it hands out, so that a resumed
pipeline need not run it again over what came before.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tarmac.errors import TarmacError
from tarmac.pipeline.handlers import Drops, Handler, reraise_exception
from tarmac.pipeline.threads import in_threads

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
        self._position: Callable[[], int] | None = None
        self._marks: deque[int] = deque()

    def apply(self, item: Any) -> Any:
        """Return what becomes of the item."""
        raise NotImplementedError

    def run(self, *args: Any) -> Iterator[Any]:
        (source,) = args
        if not self.threads:
            return self._results(map(self._try, source))
        self._marks.clear()
        results = in_threads(self._try, self._marked(source), self.threads)
        return self._results(self._unmarked(results))

    def follow(self, position: Callable[[], int]) -> None:
        """Learn how to ask where the pipeline is, to know where an item came from that is still in work."""
        self._position = position

    def oldest(self) -> int | None:
        """The position before the first item that is still in work, if there is one."""
        return self._marks[0] if self._marks else None

    def _marked(self, source: Iterable[Any]) -> Iterator[Any]:
        items = iter(source)
        while True:
            mark = 0 if self._position is None else self._position()
            for item in items:
                self._marks.append(mark)
                yield item
                break
            else:
                return

    def _unmarked(self, results: Iterable[Any]) -> Iterator[Any]:
        for result in results:
            self._marks.popleft()
            yield result

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


class FilterFunction:
    """A generator function with all its arguments but the source; picklable."""

    def __init__(self, f: Callable[..., Iterable[Any]], *args: Any, **kw: Any) -> None:
        self.f, self.args, self.kw = f, args, kw

    def __call__(self, source: Iterable[Any]) -> Iterable[Any]:
        return self.f(source, *self.args, **self.kw)

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
