"""The position of a pipeline, and the state that is saved of it.

A state holds the epoch, the epoch that the split of shards depends on, the number of items that the stateless stages at
the end have taken in this epoch, and the seeds that stages drew. If the source restores its own position and only
stateless stages follow, the state of the source replaces the number of items.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import xxhash

from tarmac.errors import StateMismatch
from tarmac.runtime.worker_info import WorkerInfo
from tarmac.steps.stage import Epoch, is_curried

STATE_VERSION = 3
_MAX_INT = 2**63
_ORDER_OPTIONS = (
    *("bufsize", "initial", "max_bytes", "size", "p", "n", "nshards", "longest", "probs"),
    *("seeded", "seed_assigned", "deterministic"),
)
_COUNTS = ("epoch", "pass", "emitted", "consumed", "shared")


Position = tuple[int, Any]
"""How many items the stateless stages have taken, and the state of a source that restores its own position."""


@dataclass(slots=True)
class Progress:
    """The position of one iteration over a pipeline, which may consist of several epochs."""

    index: int = 0
    """The number of the epoch within this iteration."""
    epoch: int = 0
    """The number of the epoch, counted since the pipeline was created or since `set_epoch`."""
    shared: int = 0
    """The epoch that stages before a split use: the same on all readers."""
    user_epoch: int | None = None
    """The epoch that `set_epoch` gave last."""
    emitted: int = 0
    """The number of items that the last stage has yielded in this iteration."""
    consumed: int = 0
    """The number of items that the stateless stages have taken in this epoch."""
    begun: bool = False
    """Whether an item was yielded or skipped, or is about to be."""
    repetitions: int = 1
    """The number of epochs in this iteration."""
    before_split: bool = False
    """Whether the whole pipeline is before a split, so that all its stages must do the same on all readers."""
    read_any: bool = False
    """Whether anything was read in this epoch."""
    seeds: list[Any] | None = None
    """The seeds of this epoch, stage by stage; None between epochs."""
    source: Callable[[], Any] | None = None
    """Returns the state of a source that restores its own position."""
    identity: str = ""
    """The digest of the pipeline for its states."""
    pending: list[deque[Position]] = field(default_factory=list)
    """For each stage with threads, the positions before the items in progress."""

    @classmethod
    def of(cls, state: Mapping[str, Any] | None) -> Progress:
        """Return the progress of a saved state, or that of a new iteration."""
        if state is None:
            return cls()
        names = ("epoch", "shared", "user_epoch", "emitted", "consumed")
        begun = bool(state["pass"] or state["emitted"] or state["consumed"])
        return cls(state["pass"], **{name: state[name] for name in names}, begun=begun)

    def begin(self, epoch: Epoch, shared: int) -> None:
        """Begin an epoch, or continue the saved one."""
        self.epoch, self.shared = epoch.number, shared
        self.user_epoch = epoch.agreed if epoch.explicit else None
        self.pending, self.read_any, self.begun, self.before_split = [], False, True, epoch.shared

    def end(self) -> None:
        """End an epoch."""
        self.index, self.epoch, self.consumed = self.index + 1, self.epoch + 1, 0
        self.pending, self.seeds = [], None

    def count_consumed(self, items: Iterator[Any]) -> Iterator[Any]:
        """Count the items that the stateless stages take."""
        for item in items:
            self.consumed += 1
            yield item

    def note_first(self, items: Iterator[Any]) -> Iterator[Any]:
        """Note whether there is any item, at no cost per item."""
        first = list(islice(items, 1))
        self.read_any = bool(first)
        return chain(first, items)

    def position(self, stages: int | None = None) -> Position:
        """Return the position after the last item that left the first `stages` stages with threads, or all."""
        for positions in reversed(self.pending[:stages]):
            if positions:
                return positions[0]
        return self.consumed, None if self.source is None else self.source()

    def to_state(self, info: WorkerInfo, seeds: list[Any]) -> dict[str, Any]:
        """Return the position after the last item that was yielded, as JSON."""
        consumed, source = self.position()
        return {
            "version": STATE_VERSION,
            "epoch": self.epoch,
            "pass": self.index,
            "shared": self.shared,
            "user_epoch": self.user_epoch,
            "emitted": self.emitted,
            "consumed": consumed,
            "reader": [info.rank, info.world_size, info.worker, info.workers],
            "pipeline": self.identity,
            "stages": seeds if self.seeds is None else self.seeds,
            "source": source,
        }


def identity_of(stages: Iterable[Any]) -> str:
    """Return a digest of what determines the order of items: stages, their shards, sizes and given seeds."""
    digest = xxhash.xxh3_64()
    for stage in stages:
        name = getattr(stage, "state_name", None) or getattr(stage, "__name__", type(stage).__name__)
        facts = [f"{fact}={getattr(stage, fact)!r}" for fact in _ORDER_OPTIONS if hasattr(stage, fact)]
        args = getattr(stage, "args", ()) if is_curried(stage) or hasattr(stage, "loader") else ()
        facts += [repr(value) for value in args if isinstance(value, int | float | str)]
        if not getattr(stage, "_drawn", False):
            facts.append(repr(getattr(stage, "seed", None)))
        digest.update(f"{name} {' '.join(facts)}\n".encode())
        for url in getattr(stage, "urls", ()):
            digest.update(f"{url}\n".encode("utf-8", "surrogateescape"))
        inner = getattr(stage, "dataset", None)
        inside = getattr(stage, "pipeline", None) or getattr(stage, "datasets", None) or [inner]
        if inside != [None]:
            digest.update(identity_of(inside).encode())
    return digest.hexdigest()


def check_state(state: object, info: WorkerInfo, stages: int, identity: str) -> dict[str, Any]:
    """Return the state; raise StateMismatch if it is not one of this pipeline, rank and worker."""
    if not isinstance(state, Mapping):
        raise StateMismatch(f"expected a dictionary, got {type(state).__name__}.")
    check_version(state)
    for name in _COUNTS:
        _check_count(state, name)
    if state.get("user_epoch", -1) is not None:
        _check_count(state, "user_epoch")
    if "source" not in state or not isinstance(state.get("stages"), list):
        raise StateMismatch("the state is damaged: 'stages' or 'source' is missing.")
    if len(state["stages"]) != stages:
        raise StateMismatch(f"the state has {len(state['stages'])} stages, this pipeline has {stages}.")
    _check_reader(state.get("reader", state.get("place")), info)
    if state.get("pipeline") != identity:
        raise StateMismatch(
            "the state belongs to a pipeline with different shards, stages, sizes or seeds.",
            hint="build the same pipeline; only stages after the last shuffle may differ.",
        )
    return dict(state)


def check_version(state: Mapping[str, Any]) -> None:
    """Raise StateMismatch if the orders that a state refers to have changed since it was saved."""
    if state.get("version") != STATE_VERSION:
        raise StateMismatch(f"expected a state of version {STATE_VERSION}, got {state.get('version')!r}.")


def _check_count(state: Mapping[str, Any], name: str) -> None:
    value = state.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MAX_INT:
        raise StateMismatch(f"the state is damaged: {name!r} must be an integer of 0 or more, got {value!r}.")


def _check_reader(saved: object, info: WorkerInfo) -> None:
    current = [info.rank, info.world_size, info.worker, info.workers]
    if saved == current:
        return
    if not isinstance(saved, list) or len(saved) != 4 or not all(isinstance(each, int) for each in saved):
        raise StateMismatch(f"the state is damaged: 'reader' must be four integers, got {saved!r}.")
    if saved[1::2] != current[1::2]:
        raise StateMismatch(
            f"the state was saved with {saved[1]} ranks of {saved[3]} workers, "
            f"now there are {info.world_size} ranks of {info.workers} workers.",
            hint="resume with the same numbers; a Loader over an indexed Dataset resumes with any.",
        )
    raise StateMismatch(
        f"the state was saved by rank {saved[0]}, worker {saved[2]}, "
        f"and this is rank {info.rank}, worker {info.worker}.",
        hint="save a state on every rank; with a Loader over an indexed Dataset, one state serves all ranks.",
    )


def skip(items: Iterator[Any], count: int) -> None:
    """Skip the items that were taken before the state was saved."""
    skipped = sum(1 for _ in islice(items, count))
    if skipped < count:
        raise StateMismatch(f"the state is {count} samples into its epoch, which now has only {skipped}.")
