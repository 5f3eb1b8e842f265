"""DataPipeline: stages one after the other, passes counted, a place that can be saved and returned to."""

from __future__ import annotations

import copy
import functools
import sys
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Self

from tarmac.errors import NotPicklable, StateMismatch
from tarmac.order.passes import PassCounter, Source
from tarmac.order.workers import current_place, remember_rank
from tarmac.pipeline.handlers import Drops
from tarmac.pipeline.stage import PipelineStage

__all__ = ["DataPipeline"]

STATE_VERSION = 1


class DataPipeline(PipelineStage, Source):
    """Run stages one after the other.

    The first stage is an iterable (a shard list, a dataset, a DataLoader, a list) or a function without
    arguments; each later one is a function from iterator to iterator. Lists among the arguments are taken
    apart, None is left out. Iterating makes a pass; shuffles differ from pass to pass.

    `state_dict()` between two items holds where the pipeline is; `load_state_dict` in a new pipeline of the
    same stages makes the next iteration continue there. What comes before the place is read again but not
    decoded: the stages at the end that keep nothing back (decode, map, batched, …) are not run for it.
    """

    resumes_itself = True  # as the first stage of another pipeline

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        if kwargs:
            raise TypeError(f"DataPipeline takes stages, not {', '.join(kwargs)}")
        self.pipeline: list[Any] = []
        for arg in args:
            if isinstance(arg, list):
                self.pipeline.extend(stage for stage in arg if stage is not None)
            elif arg is not None:
                self.pipeline.append(arg)
        self.length: int | None = None
        self.repetitions = 1
        self.nsamples = -1
        self._progress = _Progress()
        self._resume: dict[str, Any] | None = None

    # -- iteration --------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        context = sys.modules.get("multiprocessing.context")
        if context is not None and context.get_spawning_popen() is not None:
            for number, stage in enumerate(self.pipeline):
                _check_picklable(number, stage)
        place = current_place()
        return {**self.__dict__, "_rank": (place.rank, place.world)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A worker in a fresh interpreter cannot ask torch.distributed for the rank of its parent.
        remember_rank(*state.pop("_rank"))
        self.__dict__.update(state)

    def __iter__(self) -> Iterator[Any]:
        if not self.pipeline:
            raise ValueError("the pipeline has no stages")
        resumed, self._resume = self._resume, None
        progress = self._progress = _Progress(resumed)
        left = self.nsamples - progress.emitted if self.nsamples > 0 else sys.maxsize
        if resumed is not None:
            # An iteration that was complete when it was saved has used up its pass.
            self._passes.set(progress.epoch + (left <= 0), current_place().worker)
        items = self._all_passes(progress, resumed is not None)
        return islice(items, left) if left < sys.maxsize else items

    def _all_passes(self, progress: _Progress, resumed: bool) -> Iterator[Any]:
        worker = current_place().worker
        while progress.number < self.repetitions:
            progress.epoch = self._passes.next(worker)
            before = progress.emitted
            for item in self._one_pass(progress):
                progress.emitted += 1
                yield item
            if progress.emitted == before and not resumed:
                return  # nothing comes, and nothing will
            resumed = False
            progress.next_pass()

    def _one_pass(self, progress: _Progress) -> Iterator[Any]:
        """One pass over the stages, from its beginning or from where a saved one was."""
        for stage in self.pipeline:
            if hasattr(stage, "set_epoch"):
                stage.set_epoch(progress.epoch)
        split = self._prompt_from()
        source = self.invoke(self.pipeline[0])
        for stage in self.pipeline[1:split]:
            source = self.invoke(stage, source)
        items = iter(source)
        if not self._source_resumes():
            _skip(items, progress.consumed)
        source = progress.counted(items)
        for number, stage in enumerate(self.pipeline[split:], split):
            if hasattr(stage, "follow"):
                stage.follow(functools.partial(_done_with, progress, self.pipeline[split:number]))
            source = self.invoke(stage, source)
        return iter(source)

    def _source_resumes(self) -> bool:
        """Whether the source itself returns to a saved place, and nothing behind it must be run again."""
        return self._prompt_from() == 1 and getattr(self.pipeline[0], "resumes_itself", False)

    def _prompt_from(self) -> int:
        """The number of the first stage from which on all stages keep nothing back between items."""
        split = len(self.pipeline)
        while split > 1 and getattr(self.pipeline[split - 1], "prompt", False):
            split -= 1
        return split

    def invoke(self, f: Any, *args: Any) -> Iterable[Any]:
        """Run one stage on its source."""
        if not args and isinstance(f, Iterable):
            return f
        if isinstance(f, PipelineStage):
            return f.run(*args)
        if callable(f):
            result: Iterable[Any] = f(*args)
            return result
        raise ValueError(f"{f!r} is not a stage: a function from iterator to iterator is needed")

    def run(self, *args: Any) -> Iterable[Any]:
        """Use the whole pipeline as the first stage of another."""
        if args:
            raise ValueError("a pipeline can be a source, not a later stage")
        return iter(self)

    def iterator1(self) -> Iterator[Any]:
        """Make one pass, without counting it."""
        return self._one_pass(_Progress())

    def iterator(self) -> Iterator[Any]:
        """Make all passes."""
        return self._all_passes(_Progress(), resumed=False)

    # -- building ---------------------------------------------------------------------------------

    def stage(self, i: int) -> Any:
        """Return stage number `i`."""
        return self.pipeline[i]

    def append(self, f: Any) -> None:
        """Add a stage at the end, in place."""
        self.pipeline.append(f)

    def compose(self, *args: Any) -> Self:
        """Return a copy with more stages. Stages that count passes are copied, not shared."""
        result = copy.copy(self)
        result.pipeline = [
            copy.copy(stage) if hasattr(stage, "set_epoch") else stage for stage in self.pipeline
        ]
        result.pipeline += args
        result._passes, result._progress = PassCounter(), _Progress()
        return result

    def _changed(self, **attributes: Any) -> Self:
        for name, value in attributes.items():
            setattr(self, name, value)
        return self

    def with_length(self, n: int, silent: bool = False) -> Self:
        """Set what `len()` says, for frameworks that ask; the number of items does not change."""
        if not silent:
            warnings.warn("with_length() sets what len() says, not how many items there are.", stacklevel=2)
        return self._changed(length=n)

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("this pipeline has no length; with_length(n) sets one")
        return self.length

    def __bool__(self) -> bool:
        return True  # asking for truth must not ask for a length

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> Self:
        """Make an iteration end after so many items of the last stage, repeating the data if need be."""
        return self._changed(repetitions=sys.maxsize, nsamples=max(nsamples, nbatches))

    def repeat(self, nepochs: int = -1, nbatches: int = -1) -> Self:
        """Make an iteration consist of so many passes, or endlessly many, cut after `nbatches` items."""
        return self._changed(repetitions=nepochs if nepochs > 0 else sys.maxsize, nsamples=nbatches)

    def close(self) -> None:
        """Close stages that can be closed; the pipeline cannot be used any more."""
        for stage in self.pipeline:
            if hasattr(stage, "close"):
                stage.close()
        self.pipeline = []

    # -- state and report -------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last item that was handed out: JSON, a few hundred bytes."""
        place, progress = current_place(), self._progress
        if self._resume is not None:
            return dict(self._resume)
        return {
            "version": STATE_VERSION,
            "epoch": progress.epoch,
            "pass": progress.number,
            "emitted": progress.emitted,
            "consumed": _done_with(progress, self.pipeline),
            "place": [place.rank, place.world, place.worker, place.workers],
            "stages": [
                stage.state_dict() if hasattr(stage, "state_dict") else None for stage in self.pipeline
            ],
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continue from a saved place at the next iteration, on the same rank and worker of as many."""
        if state.get("version") != STATE_VERSION:
            raise StateMismatch(
                f"the state has version {state.get('version')!r}, this tarmac reads {STATE_VERSION}."
            )
        if len(state["stages"]) != len(self.pipeline):
            raise StateMismatch(
                f"the state is of {len(state['stages'])} stages, this pipeline has {len(self.pipeline)}."
            )
        place = current_place()
        here = [place.rank, place.world, place.worker, place.workers]
        if state["place"][1::2] != here[1::2]:
            raise StateMismatch(
                f"the state is of {state['place'][1]} ranks with {state['place'][3]} workers, "
                f"this is one of {place.world} with {place.workers}.",
                hint="resume streams on the same numbers; an indexed Dataset resumes on any.",
            )
        for stage, saved in zip(self.pipeline, state["stages"], strict=True):
            if saved is not None and (self._source_resumes() or not getattr(stage, "resumes_itself", False)):
                stage.load_state_dict(saved)
        self._resume = dict(state)

    def drops(self) -> dict[str, Drops]:
        """What handlers have dropped in this process, by stage."""
        return {
            f"{number} {type(stage).__name__}": stage.drops
            for number, stage in enumerate(self.pipeline)
            if isinstance(getattr(stage, "drops", None), Drops)
        }


def _check_picklable(number: int, stage: Any) -> None:
    """Find the stage that keeps a pipeline from being sent to a new process, and say which it is."""
    from multiprocessing.reduction import ForkingPickler

    try:
        ForkingPickler.dumps(stage)
    except Exception as error:
        raise NotPicklable(f"stage {number}, {type(stage).__name__}, cannot be pickled: {error}.") from error


def _done_with(progress: _Progress, stages: list[Any]) -> int:
    """How many items were taken and have left these stages; their threads may have taken more."""
    in_work = (stage.oldest() for stage in stages if hasattr(stage, "oldest"))
    return min([progress.consumed, *(int(mark) for mark in in_work if mark is not None)])


def _skip(items: Iterator[Any], count: int) -> None:
    """Pass over items that a resumed pipeline has had."""
    skipped = sum(1 for _ in islice(items, count))
    if skipped < count:
        raise StateMismatch(f"the state is {count} samples into its pass, but there are only {skipped} now.")


class _Progress:
    """How far an iteration has come."""

    def __init__(self, saved: dict[str, Any] | None = None) -> None:
        saved = saved or {}
        self.number: int = saved.get("pass", 0)  # of the pass within this iteration
        self.epoch: int = saved.get("epoch", 0)  # of the pass since the pipeline was made
        self.emitted: int = saved.get("emitted", 0)  # items of the last stage, in this iteration
        self.consumed: int = saved.get("consumed", 0)  # items that the prompt stages took, in this pass

    def next_pass(self) -> None:
        self.number, self.epoch, self.consumed = self.number + 1, self.epoch + 1, 0

    def counted(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.consumed += 1
            yield item
