"""DataPipeline: stages one after the other, passes counted, a place that can be saved and returned to."""

from __future__ import annotations

import copy
import functools
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Self

import xxhash

from tarmac.errors import NotPicklable, NotResumable, StateMismatch
from tarmac.runtime.agreement import Site, check_agreement
from tarmac.runtime.seeds import all_seeds, load_all_seeds
from tarmac.runtime.worker_info import WorkerInfo, current_worker_info, remember_rank
from tarmac.steps.handlers import Drops
from tarmac.steps.stage import Each, PipelineStage
from tarmac.stream.batch import Batched
from tarmac.stream.epochs import Epoch, EpochAware, EpochCounter, StreamSource
from tarmac.stream.shards.split import is_foreign, is_splitter, splits_nodes, with_parts
from tarmac.stream.state import Position, Progress, check_state, identity_of, skip

__all__ = ["DataPipeline"]

COMPARED_AFTER = 4
"""Items after which ranks compare their epochs: a look at the first few is no epoch."""
EMPTY_PASSES = 100
"""Passes in a row in which every sample was dropped, after which an endless pipeline gives up."""


class DataPipeline(PipelineStage, StreamSource):
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
        self._progress = Progress()
        self._resume: dict[str, Any] | None = None
        self._site = Site()
        self._front = 0  # stages of a subclass's that belong to the splitting, whatever they are

    # -- iteration --------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        context = sys.modules.get("multiprocessing.context")
        if context is not None and context.get_spawning_popen() is not None:
            for number, stage in enumerate(self.pipeline):
                _check_picklable(number, stage)
        place = current_worker_info()
        # What a source is asked for its state stays with the iteration that runs here.
        return {**self.__dict__, "_rank": (place.rank, place.world_size), "_progress": Progress()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A worker in a fresh interpreter cannot ask torch.distributed for the rank of its parent.
        remember_rank(*state.pop("_rank"))
        self.__dict__.update(state)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next; all ranks must say the same.

        A state that was loaded is kept if it is of this epoch, and forgotten otherwise.
        """
        super().set_epoch(epoch)
        self._progress = Progress()
        if self._resume is not None and epoch != self._resume["epoch"] - self._resume["pass"]:
            self.forget_state()

    def forget_state(self) -> None:
        """Forget a state that was loaded: the next iteration begins a new pass."""
        self._resume = None
        if self._source_resumes():
            self.pipeline[0].forget_state()

    @property
    def found(self) -> bool:
        """Whether anything was read in the last pass, be it that stages dropped all of it."""
        return self._progress.found or (self._reader() == 0 and getattr(self.pipeline[0], "found", False))

    def _reader(self) -> int:
        """The number of the stage whose items are samples: the one that reads shards, or the source."""
        return next((n for n, stage in enumerate(self.pipeline) if getattr(stage, "reads_parts", False)), 0)

    def begin_epoch(self, turn: Epoch) -> None:
        """Begin the next iteration with the pass that what is around this pipeline says."""
        self._epochs.dictate(turn)

    def __iter__(self) -> Iterator[Any]:
        if not self.pipeline:
            raise ValueError("the pipeline has no stages")
        source = self.pipeline[0]
        epoch = source.new_epoch() if hasattr(source, "new_epoch") else None
        if epoch is not None:
            self.set_epoch(epoch)  # an epoch given to the dataset of a loader holds for the loader
        resumed, self._resume = self._resume, None
        progress = self._progress = Progress.of(resumed)
        progress.repetitions, most = self._limits()
        left = most - progress.emitted if most > 0 else sys.maxsize
        if resumed is not None:
            # An iteration that was complete when it was saved has used up its pass.
            turn = Epoch(
                progress.epoch + (left <= 0), progress.user_epoch, explicit=progress.user_epoch is not None
            )
            self._epochs.resume(turn, current_worker_info().worker)
            if left <= 0 or progress.number >= progress.repetitions:
                self.forget_state()
        items = self._all_passes(progress, progress.begun)
        return islice(items, left) if left < sys.maxsize else items

    def _all_passes(self, progress: Progress, resumed: bool) -> Iterator[Any]:
        place, empty = current_worker_info(), 0
        while progress.number < progress.repetitions:
            turn = self._epochs.begin(place.worker)
            # The share stays the same within an iteration: readers make different numbers of passes in it.
            new = not resumed and (progress.number == 0 or self._is_alone(place))
            progress.begin(turn, self._agreed(turn, place) if new else progress.shared)
            self.check_ranks()
            before = progress.emitted
            for item in self._one_pass(progress):
                progress.emitted += 1
                if progress.emitted == COMPARED_AFTER:
                    self.check_epoch(progress.shared)
                yield item
            empty = 0 if resumed or progress.emitted > before else empty + 1
            if empty and not self.found:
                return  # nothing comes, and nothing will
            if empty == EMPTY_PASSES and progress.number + 1 < progress.repetitions:
                raise ValueError(
                    f"{empty} passes over the data in a row gave nothing: the stages drop every sample. "
                    "Try: look at select() and at drops()."
                )
            resumed = False
            progress.end()

    def _limits(self) -> tuple[int, int]:
        """How many passes an iteration has at most, and how many items; -1 for any number."""
        return self.repetitions, self.nsamples

    def _one_pass(self, progress: Progress) -> Iterator[Any]:
        """One pass over the stages, from its beginning or from where a saved one was."""
        self._begin_stages(progress)
        split = self._prompt_from()
        progress.seeds = self.seeds()
        progress.source = self.pipeline[0].state_dict if self._source_resumes() else None
        reader = self._reader()
        source: Iterable[Any] = ()
        for number, stage in enumerate(self.pipeline[:split]):
            if is_splitter(stage):
                stage = with_parts(stage, self.pipeline[number + 1 :])
            source = self.invoke(stage, source) if number else self.invoke(stage)
            if number == reader:
                source = progress.watched(iter(source))
        items = iter(source)
        if progress.source is None:
            skip(items, progress.consumed)
        source = progress.counted(items)
        for stage in self.pipeline[split:]:
            if getattr(stage, "threads", 0) and hasattr(stage, "follow"):
                marks: deque[Position] = deque()
                stage.follow(functools.partial(progress.position, len(progress.marks)), marks)
                progress.marks.append(marks)
            source = self.invoke(stage, source)
        return iter(source)

    def _begin_stages(self, progress: Progress) -> None:
        """Give each stage the number of the pass: before a split the one that all readers agree on."""
        front = len(self.pipeline) if progress.all_shared else self._behind_splitters()
        own, shared = progress.epoch, progress.shared
        for number, stage in reversed(list(enumerate(self.pipeline))):
            before = number < front and not getattr(stage, "per_reader", False)
            if hasattr(stage, "begin_epoch"):
                explicit = progress.user_epoch is not None
                stage.begin_epoch(Epoch(shared if before else own, shared, explicit, shared=before))
            elif hasattr(stage, "set_epoch"):
                stage.set_epoch(shared if before else own)
                if isinstance(stage, EpochAware):
                    stage.shared = before
            if hasattr(stage, "filled_in"):
                # What a cache in memory gives was made in another pass, and a resumed one makes it again.
                own, shared = stage.filled_in(own, shared)

    def _behind_splitters(self) -> int:
        """The number of the first stage that sees only the share of this reader.

        Before shards are read, a function of the user's may be a splitter.
        """
        front = self._front
        for number, stage in enumerate(self.pipeline[1:], 1):
            if getattr(stage, "reads_parts", False) or isinstance(stage, Each | Batched):
                break
            front = number + 1 if is_foreign(stage) else front
        known = (number + 1 for number, stage in enumerate(self.pipeline) if is_splitter(stage))
        return max(front, *known, 0)

    def _is_alone(self, place: WorkerInfo) -> bool:
        """Whether this is the only reader; a custom splitter may know of others."""
        return place.count == 1 and all(map(is_splitter, self.pipeline[1 : self._front]))

    def _agreed(self, turn: Epoch, place: WorkerInfo) -> int:
        """Return a number that is the same for all readers, however often each of them has iterated."""
        if turn.shared or self._is_alone(place):
            return turn.number
        if turn.agreed is not None and (turn.explicit or place.world_size == 1):
            return turn.agreed
        return 0

    def check_ranks(self) -> None:
        """Raise RanksDisagree if another rank splits other shards, or by another seed."""
        place, before = current_worker_info(), self.pipeline[: self._behind_splitters()]
        if place.world_size == 1 or not self._splits_nodes():
            return
        facts = {}
        if hasattr(before[0], "urls"):
            digest = xxhash.xxh3_64("\n".join(before[0].urls).encode("utf-8", "surrogateescape"))
            facts["shards"] = f"{len(before[0].urls)} shards (hash {digest.hexdigest()})"
        for number, stage in enumerate(before):
            if hasattr(stage, "seed"):
                facts[f"seed of stage {number}, {type(stage).__name__}"] = str(stage.seed)
        self._site.check(place, facts, None)

    def check_epoch(self, epoch: int) -> None:
        """Raise RanksDisagree if another rank deals out the shards of another epoch."""
        place = current_worker_info()
        if place.world_size > 1 and self._splits_nodes():
            number = self._epochs.compared(epoch)
            check_agreement(f"{self._site.name}/epoch {number}", place, {"epoch": epoch})

    def _splits_nodes(self) -> bool:
        stages = self.pipeline[: self._behind_splitters()]
        return any(map(splits_nodes, stages)) and not getattr(stages[0], "per_reader", False)

    def _source_resumes(self) -> bool:
        """Whether the source itself returns to a saved place, and nothing behind it must be run again."""
        return self._prompt_from() == 1 and getattr(self.pipeline[0], "resumes_itself", False)

    def _prompt_from(self) -> int:
        """The number of the first stage from which on all stages keep nothing back between items."""
        split = len(self.pipeline)
        while split > 1 and getattr(self.pipeline[split - 1], "stateless", False):
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
        return self._one_pass(Progress())

    def iterator(self) -> Iterator[Any]:
        """Make all passes."""
        return self._all_passes(Progress(repetitions=self.repetitions), resumed=False)

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
        result._epochs, result._progress, result._site = EpochCounter(), Progress(), Site()
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
        """Return the place after the last item that was handed out: JSON, a few hundred bytes.

        Raise NotResumable if a stage cannot return to a place.
        """
        self._check_resumable()
        if self._resume is not None:
            return dict(self._resume)
        if self._source_resumes():
            self._progress.source = self.pipeline[0].state_dict
        self._progress.identity = self._progress.identity or self._identity()
        if not self._progress.begun:
            self._progress.epoch, self._progress.user_epoch = self._epochs.last + 1, self._epochs.user_epoch
        state = self._progress.to_state(current_worker_info(), self.seeds())
        if 0 < self._limits()[1] <= self._progress.emitted:
            state["stages"] = self.seeds()  # nothing of this pass is left: the next one follows from these
        return state

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continue from a saved place at the next iteration, on the same rank and worker of as many."""
        self._check_resumable()
        state = check_state(state, current_worker_info(), len(self.pipeline), self._identity())
        self.load_seeds(state["stages"])
        if self._source_resumes() != (state["source"] is not None):
            raise StateMismatch("the state is of a pipeline with other stages.")
        if state["source"] is not None and state["consumed"]:  # otherwise the pass has not begun
            self.pipeline[0].load_state_dict(state["source"])
        self._resume = state

    def _identity(self) -> str:
        return identity_of(self.pipeline[: self._prompt_from()])

    def seeds(self) -> list[Any]:
        """Return what the stages follow from beyond the number of a pass, as JSON."""
        return all_seeds(self.pipeline)

    def load_seeds(self, seeds: Any) -> None:
        """Make the stages follow from what `seeds` returned."""
        load_all_seeds(self.pipeline, seeds)

    def _check_resumable(self) -> None:
        for number, stage in enumerate(self.pipeline):
            reason = getattr(stage, "not_resumable", None)
            if reason:
                raise NotResumable(f"stage {number}, {type(stage).__name__}: {reason}.")

    @property
    def not_resumable(self) -> str | None:
        """Say why this pipeline, as the source of another, has no state."""
        return next(filter(None, (getattr(stage, "not_resumable", None) for stage in self.pipeline)), None)

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
