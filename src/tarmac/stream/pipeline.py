"""DataPipeline: run stages one after the other, count epochs, save and restore the position."""

from __future__ import annotations

import copy
import functools
import json
import sys
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeVar

import xxhash

from tarmac.errors import NoSamples, NotPicklable, NotResumable, StateMismatch, UsageError
from tarmac.runtime.agreement import Site, check_agreement, remember_rendezvous, rendezvous
from tarmac.runtime.seeds import all_seeds, load_all_seeds
from tarmac.runtime.worker_info import WorkerInfo, current_worker_info, loader_token, remember_rank
from tarmac.steps.handlers import Drops
from tarmac.steps.stage import Each, Epoch, PipelineStage, as_stage
from tarmac.stream.batch import Batched
from tarmac.stream.describe import html_table, one_line
from tarmac.stream.epochs import EpochAware, EpochCounter, NumberedEpochs, StreamSource
from tarmac.stream.length import add_length
from tarmac.stream.shards.split import is_foreign, is_splitter, splits_nodes, with_parts
from tarmac.stream.state import Progress, check_state, identity_of, skip

P = TypeVar("P", bound="DataPipeline")  # not Self: see stream/fluent.py
COMPARED_AFTER = 4
"""The number of items after which ranks compare their epochs, so that a rank may look at the first few alone."""
MAX_EMPTY_EPOCHS = 100
"""The number of consecutive epochs without items after which an endless pipeline raises."""


class DataPipeline(StreamSource):
    """Run stages one after the other.

    The first stage is an iterable (a shard list, a dataset, a DataLoader) or a function without arguments. Each later
    one is a function from iterator to iterator, or a `PipelineStage`. Lists among the arguments are flattened, and
    None is skipped. Iterating runs one epoch; shuffles differ from epoch to epoch.

    `state_dict()` returns the position between two items. `load_state_dict` in a new pipeline of the same stages makes
    the next iteration continue there. The data before the position is read again, but not decoded: the stateless
    stages at the end (decode, map, batched, …) skip it.
    """

    resumes_itself: bool = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        if kwargs:
            raise TypeError(f"DataPipeline takes stages, not {', '.join(kwargs)}")
        stages = (stage for arg in args for stage in (arg if isinstance(arg, list) else [arg]))
        self.pipeline: list[Any] = [stage for stage in stages if stage is not None]
        self.length: int | None = None
        self.repetitions: int = 1
        self.nsamples: int = -1
        self._progress = Progress()
        self._resume: dict[str, Any] | None = None
        self._site = Site()
        self._front = 0  # the number of stages that belong to the split, whatever they are

    def __repr__(self) -> str:
        return one_line(self)

    def _repr_html_(self) -> str:
        return html_table(self)

    def __dir__(self) -> Iterator[str]:
        contract = {*vars(PipelineStage), *vars(EpochAware), "check_epoch", "check_ranks"}
        hidden = contract - {"close", "set_epoch"}  # users call these, stages the others
        return (name for name in super().__dir__() if name.startswith("_") or name not in hidden)

    # -- iteration --------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        context = sys.modules.get("multiprocessing.context")
        if context is not None and context.get_spawning_popen() is not None:
            for number, stage in enumerate(self.pipeline):
                _check_picklable(number, stage)
        info = current_worker_info()
        # The progress belongs to the iteration in this process; it refers to the source.
        own = {"_rank": (info.rank, info.world_size), "_rendezvous": rendezvous(), "_progress": Progress()}
        return self.__dict__ | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        # In a worker with a new interpreter, torch.distributed does not know the rank of the parent.
        remember_rank(*state.pop("_rank"))
        remember_rendezvous(state.pop("_rendezvous"))
        self.__dict__.update(state)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, which must be the same on all ranks.

        A loaded state is kept if it belongs to this epoch, and discarded otherwise.
        """
        super().set_epoch(epoch)
        self._progress = Progress()
        if self._resume is not None and epoch != self._resume["epoch"] - self._resume["pass"]:
            self.forget_state()

    def forget_state(self) -> None:
        """Discard a loaded state: the next iteration begins a new epoch."""
        self._resume = None
        if self._source_resumes():
            self.pipeline[0].forget_state()

    @property
    def read_any(self) -> bool:  # type: ignore[override]
        """Whether any sample was read in the last epoch, even if stages dropped all of them."""
        return self._progress.read_any or (self._reader() == 0 and as_stage(self.pipeline[0]).read_any)

    def _reader(self) -> int:
        """Return the number of the stage whose items are samples: the one that reads shards, or the source."""
        return next((n for n, stage in enumerate(self.pipeline) if as_stage(stage).reads_parts), 0)

    def __iter__(self) -> Iterator[Any]:
        if not self.pipeline:
            raise UsageError("the pipeline has no stages.")
        resumed, self._resume = self._resume, None
        progress = self._progress = Progress.of(resumed)
        progress.repetitions, max_items = self._limits()
        left = max_items - progress.emitted if max_items > 0 else sys.maxsize
        if resumed is not None:
            # An iteration that was complete when it was saved has used up its epoch.
            number, user_epoch = progress.epoch + (left <= 0), progress.user_epoch
            epoch = Epoch(number, user_epoch, explicit=user_epoch is not None)
            self._epochs.resume(epoch, current_worker_info().worker)
            if left <= 0 or progress.index >= progress.repetitions:
                self.forget_state()
        items = self._all_epochs(progress, progress.begun)
        return islice(items, left) if left < sys.maxsize else items

    def _all_epochs(self, progress: Progress, resumed: bool) -> Iterator[Any]:
        info, empty, max_items = current_worker_info(), 0, self._limits()[1]
        while progress.index < progress.repetitions:
            epoch = self._epochs.begin(info.worker)
            # The split stays the same within an iteration: readers run different numbers of epochs in it.
            new = not resumed and (progress.index == 0 or self._is_alone(info))
            progress.begin(epoch, self._agreed(epoch, info) if new else progress.shared)
            self.check_ranks()
            previous = progress.emitted
            for item in self._one_epoch(progress):
                progress.emitted += 1
                if progress.emitted == COMPARED_AFTER:
                    self.check_epoch(progress.shared)
                if progress.emitted == max_items:  # nothing runs after the last item
                    self._complete(progress)
                yield item
            empty = 0 if resumed or progress.emitted > previous else empty + 1
            if empty and not self.read_any:
                break  # the source is empty, and will be in the next epochs
            if empty == MAX_EMPTY_EPOCHS and progress.index + 1 < progress.repetitions:
                raise NoSamples(
                    f"{empty} epochs in a row yielded nothing: the stages drop every sample.",
                    hint="check the conditions of select() and the errors in drops().",
                )
            resumed = False
            progress.end()
        self._complete(progress)

    def _complete(self, progress: Progress) -> None:
        """Compare a short iteration at its end; the next one is another, whatever its epoch."""
        if 0 < progress.emitted < COMPARED_AFTER:
            self.check_epoch(progress.shared)
        self.complete_epoch()

    def complete_epoch(self) -> None:
        """Note that an iteration is complete: the next one is compared with other ranks again."""
        self._site.complete()

    def _limits(self) -> tuple[int, int]:
        """Return the maximum numbers of epochs and of items in an iteration; -1 for any number of items."""
        return self.repetitions, self.nsamples

    def _one_epoch(self, progress: Progress) -> Iterator[Any]:
        """Run the stages for one epoch, from its beginning or from a saved position."""
        self._begin_stages(progress)
        stateless = self._stateless_from()
        progress.seeds = self.seeds()
        progress.source = self.pipeline[0].state_dict if self._source_resumes() else None
        reader = self._reader()
        source: Iterable[Any] = ()
        for number, stage in enumerate(self.pipeline[:stateless]):
            if is_splitter(stage):
                stage = with_parts(stage, self.pipeline[number + 1 :])
            source = self.invoke(stage, source) if number else self.invoke(stage)
            if number == reader:
                source = progress.note_first(iter(source))
        items = iter(source)
        if progress.source is None:
            skip(items, progress.consumed)
        source = progress.count_consumed(items)
        for stage in self.pipeline[stateless:]:
            pending = as_stage(stage).track(functools.partial(progress.position, len(progress.pending)))
            if pending is not None:
                progress.pending.append(pending)
            source = self.invoke(stage, source)
        return iter(source)

    def _begin_stages(self, progress: Progress) -> None:
        """Tell each stage its epoch: before a split, the one that all readers agree on."""
        front = len(self.pipeline) if progress.before_split else self._behind_splitters()
        own, shared = progress.epoch, progress.shared
        for number, raw in reversed(list(enumerate(self.pipeline))):
            stage = as_stage(raw)
            before_split = number < front and not stage.per_reader
            explicit = progress.user_epoch is not None
            stage.begin_epoch(Epoch(shared if before_split else own, shared, explicit, shared=before_split))
            own, shared = stage.upstream_epochs(own, shared)

    def _behind_splitters(self) -> int:
        """Return the number of the first stage after the split.

        Any foreign function before the stage that reads shards may be a splitter.
        """
        front = self._front
        for number, stage in enumerate(self.pipeline[1:], 1):
            if as_stage(stage).reads_parts or isinstance(stage, Each | Batched):
                break
            front = number + 1 if is_foreign(stage) else front
        known = (number + 1 for number, stage in enumerate(self.pipeline) if is_splitter(stage))
        return max(front, *known, 0)

    def _is_alone(self, info: WorkerInfo) -> bool:
        """Return whether this is the only reader; a custom splitter may know of others."""
        return info.count == 1 and all(map(is_splitter, self.pipeline[1 : self._front]))

    def _agreed(self, epoch: Epoch, info: WorkerInfo) -> int:
        """Return an epoch that is the same on all readers, however often each of them has iterated."""
        if epoch.shared or self._is_alone(info):
            return epoch.number
        if epoch.agreed is not None and (epoch.explicit or info.world_size == 1):
            return epoch.agreed
        return 0

    def check_ranks(self) -> None:
        """Raise RanksDisagree if another rank splits different shards, or uses a different seed."""
        info, front = current_worker_info(), self.pipeline[: self._behind_splitters()]
        if info.world_size == 1 or not self._splits_nodes():
            return
        facts = {}
        if hasattr(front[0], "urls"):
            digest = xxhash.xxh3_64("\n".join(front[0].urls).encode("utf-8", "surrogateescape"))
            facts["shards"] = f"{len(front[0].urls)} shards (hash {digest.hexdigest()})"
        for number, stage in enumerate(front):
            if hasattr(stage, "seed") and not hasattr(stage, "seed_assigned"):
                facts[_seed_name(number, stage)] = str(stage.seed)
        self._site.check(info, facts)

    def check_epoch(self, epoch: int) -> None:
        """Raise RanksDisagree if another rank splits the shards of another epoch."""
        info = current_worker_info()
        if info.world_size > 1 and self._splits_nodes():
            facts = {"epoch": epoch, **_assigned(self.pipeline[: self._behind_splitters()])}
            if loader_token() is None:
                self._site.check_epoch(info, facts)
            else:  # workers count the epochs of their rank in a file
                number = self._epochs.compared(json.dumps(facts))
                check_agreement(f"{self._site.name}/epoch {number}", info, facts)

    def _splits_nodes(self) -> bool:
        stages = self.pipeline[: self._behind_splitters()]
        return any(map(splits_nodes, stages)) and not as_stage(stages[0]).per_reader

    def _source_resumes(self) -> bool:
        """Return whether the source restores its own position, and no later stage must be rerun."""
        return self._stateless_from() == 1 and as_stage(self.pipeline[0]).resumes_itself

    def _stateless_from(self) -> int:
        """Return the number of the first stage from which on all stages are stateless."""
        first = len(self.pipeline)
        while first > 1 and as_stage(self.pipeline[first - 1]).stateless:
            first -= 1
        return first

    def invoke(self, f: Any, *args: Any) -> Iterable[Any]:
        """Run one stage on its source."""
        return f if not args and isinstance(f, Iterable) else as_stage(f).run(*args)

    def run(self, *args: Any) -> Iterable[Any]:
        """Use the whole pipeline as the first stage of another one."""
        if args:
            raise UsageError("a pipeline can only be the first stage of another pipeline.")
        return iter(self)

    def iterator1(self) -> Iterator[Any]:
        """Run one epoch without counting it."""
        return self._one_epoch(Progress())

    def iterator(self) -> Iterator[Any]:
        """Run all epochs of an iteration."""
        return self._all_epochs(Progress(repetitions=self.repetitions), resumed=False)

    # -- building ---------------------------------------------------------------------------------

    def stage(self, i: int) -> Any:
        """Return stage number `i`."""
        return self.pipeline[i]

    def append(self, f: Any) -> None:
        """Add a stage at the end, in place."""
        self.pipeline.append(f)

    def compose(self: P, *args: Any) -> P:
        """Return a copy with more stages. The copy counts its own epochs."""
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

    def with_length(self: P, n: int, silent: bool = False) -> P:
        """Set the result of `len()`, for frameworks that need one; the number of items does not change.

        Before, the pipeline has no `__len__`.
        """
        if not silent:
            warnings.warn("with_length() sets the result of len(), not the number of items.", stacklevel=2)
        add_length(self)
        return self._changed(length=n)

    if TYPE_CHECKING:  # at run time only after `with_length`

        def __len__(self) -> int:
            """Return the length that `with_length` has set."""

    def with_epoch(self: P, nsamples: int = -1, nbatches: int = -1) -> P:
        """End an iteration after this number of items of the last stage, repeating the data if necessary."""
        return self._changed(repetitions=sys.maxsize, nsamples=max(nsamples, nbatches))

    def repeat(self: P, nepochs: int = -1, nbatches: int = -1) -> P:
        """Run `nepochs` epochs in one iteration, or without end, and stop after `nbatches` items."""
        return self._changed(repetitions=nepochs if nepochs > 0 else sys.maxsize, nsamples=nbatches)

    def close(self) -> None:
        """Close the stages; the pipeline cannot be used any more."""
        for stage in self.pipeline:
            as_stage(stage).close()
        self.pipeline = []

    # -- state and report -------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last item, as JSON of a few hundred bytes.

        Raise NotResumable if a stage cannot be restored.
        """
        if not self._progress.identity:
            self._check_resumable()
            self._progress.identity = self._identity()
        if self._resume is not None:
            return dict(self._resume)
        if self._source_resumes():
            self._progress.source = self.pipeline[0].state_dict
        if not self._progress.begun:
            self._progress.epoch, self._progress.user_epoch = self._epochs.last + 1, self._epochs.user_epoch
        state = self._progress.to_state(current_worker_info(), self.seeds())
        if 0 < self._limits()[1] <= self._progress.emitted:
            state["stages"] = self.seeds()  # the epoch is complete: these are the seeds of the next one
        return state

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continue at a saved position in the next iteration, with the same numbers of ranks and workers."""
        self._check_resumable()
        state = check_state(state, current_worker_info(), len(self.pipeline), self._identity())
        self.load_seeds(state["stages"])
        if self._source_resumes() != (state["source"] is not None):
            raise StateMismatch("the state belongs to a pipeline with different stages.")
        if state["source"] is not None and state["consumed"]:  # otherwise the epoch has not begun
            self.pipeline[0].load_state_dict(state["source"])
        self._resume = state

    def _identity(self) -> str:
        return identity_of(self.pipeline[: self._stateless_from()])

    def seeds(self) -> list[Any]:
        return all_seeds(self.pipeline)

    def load_seeds(self, seeds: Any) -> None:
        load_all_seeds(self.pipeline, seeds)

    def _check_resumable(self) -> None:
        for number, stage in enumerate(self.pipeline):
            reason = as_stage(stage).not_resumable
            if reason:
                raise NotResumable(f"stage {number}, {type(stage).__name__}: {reason}.")

    @property
    def not_resumable(self) -> str | None:  # type: ignore[override]
        """Why this pipeline has no state."""
        return next(filter(None, (as_stage(stage).not_resumable for stage in self.pipeline)), None)

    def drops(self) -> dict[str, Drops]:
        """Return what handlers have dropped in this process, by stage."""
        drops = {
            f"{n} {type(stage).__name__}": as_stage(stage).drops for n, stage in enumerate(self.pipeline)
        }
        return {name: dropped for name, dropped in drops.items() if isinstance(dropped, Drops)}


def _assigned(stages: list[Any]) -> dict[str, Any]:
    """Return the seeds and epochs of single stages that a program may set before each epoch."""
    facts: dict[str, Any] = {}
    for number, stage in enumerate(stages):
        if hasattr(stage, "seed_assigned"):
            facts[_seed_name(number, stage)] = f"{stage.seed}{', assigned' * stage.seed_assigned}"
        if isinstance(stage, NumberedEpochs):
            facts[f"epoch of stage {number}, {type(stage).__name__}"] = stage.epoch
    return facts


def _seed_name(number: int, stage: Any) -> str:
    return f"seed of stage {number}, {type(stage).__name__}"


def _check_picklable(number: int, stage: Any) -> None:
    """Raise NotPicklable if the stage cannot be sent to a worker process."""
    from multiprocessing.reduction import ForkingPickler

    try:
        ForkingPickler.dumps(stage)
    except Exception as error:
        raise NotPicklable(f"stage {number}, {type(stage).__name__}, cannot be pickled: {error}.") from error
