"""The contract between a pipeline and its stages, and base classes for stages.

A stage is a function from an iterator to an iterator; the first one is an iterable. Such stages need no base
class. A class derived from `PipelineStage` declares more about itself.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ClassVar

from tarmac.display import display_url, visible
from tarmac.errors import TarmacError, UsageError
from tarmac.runtime.lookahead import in_threads
from tarmac.steps.handlers import Drops, Handler, reraise_exception


def located(error: TarmacError, sample: Any) -> TarmacError:
    """Add the URL and key of a sample to an error."""
    if isinstance(sample, Mapping):
        name_sample(error, sample.get("__url__"), sample.get("__key__"))
    return error


def name_sample(error: Exception, url: object, key: object) -> None:
    """Add the URL and key of a sample to an error of tarmac, or as a note to one of the user's function."""
    if isinstance(error, TarmacError):
        error.at(url=url if isinstance(url, str) else None, key=key if isinstance(key, str) else None)
    elif isinstance(key, str):
        shard = f" of {display_url(url)}" if isinstance(url, str) else ""
        error.add_note(visible(f'at sample "{key}"{shard}'))


@dataclass(frozen=True, slots=True)
class Epoch:
    """The epoch that a reader (one worker of one rank) begins."""

    number: int
    """Determines the reader's own random order."""
    agreed: int | None
    """A number that all readers have in common, on which the split of shards may depend; None if unknown."""
    explicit: bool = False
    """Whether `set_epoch` gave `agreed`, so that all ranks agree on it, not only the workers of one loader."""
    shared: bool = False
    """Whether a split follows, so that the stage must do the same on all readers."""


class PipelineStage:
    """Base class of stages. Implement up to three things:

    - `run(source)` returns the items of the stage. It is called once an epoch; the first stage gets no source.
    - `begin_epoch(epoch)` is called before `run`, for stages that differ from epoch to epoch.
      `tarmac.stream.epochs.EpochAware` implements it.
    - `seeds()` and `load_seeds(seeds)` save and restore, as JSON, what the items depend on beyond the source and
      the epoch, such as a seed that was drawn at random.

    Everything else has a default that is correct, if not the fastest. A state is accepted only by stages with the
    same class names and the same values of `seed`, `size` and the like (`tarmac.stream.state.identity_of`).
    """

    stateless: bool = False
    """Whether the stage holds nothing back between two items. A resumed pipeline does not rerun such stages at its
    end for the items that it skips."""
    not_resumable: str | None = None
    """Why a pipeline with this stage has no state, as a clause."""
    splits: bool = False
    """Whether the stage splits shards between readers. Stages before it must do the same on all readers."""
    splits_nodes: bool = False
    """Whether it splits them between ranks, too."""
    per_reader: bool = False
    """Whether each reader draws on its own, so that the stage uses the reader's own epoch even before a split."""
    keeps_parts: bool = False
    """Whether the stage hands on parts of shards unchanged (see `tarmac.stream.shards.split`)."""
    reads_parts: bool = False
    """Whether the stage reads shards into samples, and understands parts of shards."""
    state_name: ClassVar[str | None] = None
    """The name of the stage in saved states, if it is not that of its class."""
    drops: Drops | Callable[[], dict[str, Drops]] | None = None
    """What an error handler has dropped."""

    def __repr__(self) -> str:
        """Return the name of the stage in lower case, its numbers and its functions: `<shuffle bufsize=1000>`."""
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()
        shown = {k: v for k, v in vars(self).items() if isinstance(v, int | float) or callable(v)}
        options = "".join(f" {k}={v!r}" for k, v in shown.items() if k[0] != "_" and k != "handler")
        return f"<{name}{options}>"

    def run(self, *args: Any, **kwargs: Any) -> Iterable[Any]:
        """Return the items of this stage, made from those of the source."""
        raise NotImplementedError(f"{type(self).__name__} has no run method")

    def __call__(self, *args: Any) -> Iterable[Any]:
        return self.run(*args)

    def begin_epoch(self, epoch: Epoch) -> None:
        """Prepare for the epoch that the next `run` belongs to."""

    def seeds(self) -> Any:
        """Return what the items depend on beyond the source and the epoch, as JSON; None if nothing."""
        return None

    def load_seeds(self, seeds: Any) -> None:
        """Restore what `seeds` returned."""
        raise TypeError("the stage has no seeds")

    def close(self) -> None:
        """Release resources; the stage is not used any more."""

    # -- sources that restore their own position, instead of being read again up to it ---------------

    resumes_itself: bool = False
    """Whether the source restores its own position. It then has `state_dict()` and `load_state_dict(state)`; other
    stages must not, since torchdata's loaders would call them."""
    read_any: bool = False
    """Whether the source read any sample in its last epoch, even if its stages dropped all of them."""

    def forget_state(self) -> None:
        """Discard a state that was loaded and not yet used."""

    # -- stages that read ahead, or replay an earlier epoch --------------------------------------------

    def track(self, position: Callable[[], Any]) -> deque[Any] | None:
        """Return a queue that, during the next `run`, holds the position before each item in progress.

        A stage with threads takes items before it hands out earlier ones; a state must not skip those. None
        means that the stage takes no item before the previous one has left it.
        """
        return None

    def upstream_epochs(self, own: int, shared: int) -> tuple[int, int]:
        """Return the epochs for the stages before this one: those of the samples that the stage replays."""
        return own, shared


class _Adapter(PipelineStage):
    """A stage that wraps any callable or iterable, with defaults for the parts of the contract that it lacks."""

    def __init__(self, target: Any) -> None:
        self.target = target
        if isinstance(target, FunctionType) and not vars(target):
            return  # the usual case; states are taken after each item in workers, so this must be fast
        for name in _CONTRACT:
            if hasattr(target, name):
                setattr(self, name, getattr(target, name))

    def run(self, *args: Any) -> Iterable[Any]:
        if not callable(self.target):
            raise ValueError(f"{self.target!r} is not a stage: expected a function from iterator to iterator")
        result: Iterable[Any] = self.target(*args)
        return result

    def begin_epoch(self, epoch: Epoch) -> None:
        if hasattr(self.target, "set_epoch"):
            self.target.set_epoch(epoch.number)


_CONTRACT = [name for name in vars(PipelineStage) if not name.startswith("_") and name != "run"]


def as_stage(stage: Any) -> PipelineStage:
    """Return `stage` itself, or an adapter if it does not derive from `PipelineStage`."""
    return stage if isinstance(stage, PipelineStage) else _Adapter(stage)


class Each(PipelineStage):
    """A stage that yields at most one item per input item: `apply(item)`; None drops the item.

    `threads` is the number of items processed at a time; they are still yielded in order. Threads help where the work
    releases Python's global lock, as decoding images does.
    """

    stateless = True

    def __init__(self, handler: Handler = reraise_exception, threads: int = 0) -> None:
        if threads < 0:
            raise UsageError(f"expected 0 or more, got {threads}.", field="threads")
        self.handler: Handler = handler
        self.threads: int = threads
        self.drops: Drops = Drops()
        self._tracked: tuple[Callable[[], Any], deque[Any]] | None = None

    def apply(self, item: Any) -> Any:
        """Return the new item, or None to drop it."""
        raise NotImplementedError

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        tracked, self._tracked = self._tracked, None
        if not self.threads:
            return self._results(map(self._try, source))
        if tracked is None:
            return self._results(in_threads(self._try, source, self.threads))
        position, pending = tracked
        results = in_threads(self._try, _push_positions(source, position, pending), self.threads)
        return self._results(_pop_positions(results, pending))

    def track(self, position: Callable[[], Any]) -> deque[Any] | None:
        if not self.threads:
            return None
        self._tracked = position, deque()
        return self._tracked[1]

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
            if isinstance(item, Mapping):
                name_sample(exn, item.get("__url__"), item.get("__key__"))
            return None, exn


def _push_positions(source: Iterable[Any], position: Callable[[], Any], pending: deque[Any]) -> Iterator[Any]:
    before = position()
    for item in source:
        pending.append(before)
        yield item
        before = position()


def _pop_positions(results: Iterable[Any], pending: deque[Any]) -> Iterator[Any]:
    for result in results:
        pending.popleft()
        yield result


class FilterFunction:
    """A generator function with all its arguments except the source; picklable."""

    def __init__(self, f: Callable[..., Iterable[Any]], *args: Any, **kw: Any) -> None:
        self.f: Callable[..., Iterable[Any]] = f
        self.args: tuple[Any, ...] = args
        self.kw: dict[str, Any] = kw
        self.keeps_parts: bool = getattr(f, "keeps_parts", False)
        self.reads_parts: bool = getattr(f, "reads_parts", False)

    def __call__(self, source: Iterable[Any]) -> Iterable[Any]:
        return self.f(source, *self.args, **self.kw)

    def __repr__(self) -> str:
        return f"<{self.f.__name__} {self.args} {self.kw}>"


def is_curried(stage: object) -> bool:
    """Return whether `f` and `args` determine a stage; other stages have attributes of their own."""
    return isinstance(stage, FilterFunction) and not isinstance(stage, PipelineStage)


class RestCurried:
    """Make a stage out of a generator function: `f(source, …)` becomes `stage(…)(source)`."""

    def __init__(self, f: Callable[..., Iterable[Any]]) -> None:
        self.f: Callable[..., Iterable[Any]] = f
        functools.update_wrapper(self, f)

    def __call__(self, *args: Any, **kw: Any) -> FilterFunction:
        return FilterFunction(self.f, *args, **kw)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return RestCurried, (self.f,)


pipelinefilter = RestCurried
