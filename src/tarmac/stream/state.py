"""How far an iteration of a pipeline has come, and the state that is made of it.

A state says which pass it is, what the shares of readers follow from, how many items the prompt stages at the
end have taken in this pass, and what the pass follows from beyond its number: seeds that were drawn. Where
the source itself returns to a place and only prompt stages are behind it, the state of the source is in it
instead.
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
from tarmac.stream.epochs import Epoch

__all__ = ["Position", "Progress", "check_state", "identity_of", "skip"]

STATE_VERSION = 2
_LARGEST = 2**63
_FACTS = ("bufsize", "initial", "max_bytes", "size", "p", "n", "nshards", "longest", "probs")
_COUNTS = ("epoch", "pass", "emitted", "consumed", "shared")


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two items that the prompt stages take."""

    consumed: int
    source: Any = None
    """The state of a source that returns to a place by itself."""


@dataclass(slots=True)
class Progress:
    """Where one iteration of a pipeline is."""

    number: int = 0
    """Of the pass within this iteration."""
    epoch: int = 0
    """Of the pass since the pipeline was made, or since `set_epoch`."""
    shared: int = 0
    """What the stages before a split follow from: the same for all readers."""
    user_epoch: int | None = None
    """The epoch that `set_epoch` gave last."""
    emitted: int = 0
    """Items of the last stage, in this iteration."""
    consumed: int = 0
    """Items that the prompt stages took, in this pass."""
    begun: bool = False
    """Whether anything was handed out or passed over, or is about to be."""
    repetitions: int = 1
    """Passes of this iteration."""
    all_shared: bool = False
    """Whether this pipeline is before a split, so that all its stages must be the same for all readers."""
    found: bool = False
    """Whether anything was read in this pass."""
    seeds: list[Any] | None = None
    """What the pass follows from, stage by stage; None between passes."""
    source: Callable[[], Any] | None = None
    """Where to ask a source that returns to a place by itself."""
    identity: str = ""
    """A hash of the pipeline, for its states."""
    marks: list[deque[Position]] = field(default_factory=list)
    """For each stage with threads the positions before the items in work."""

    @classmethod
    def of(cls, state: Mapping[str, Any] | None) -> Progress:
        """Return to a saved place, or begin."""
        if state is None:
            return cls()
        begun = bool(state["pass"] or state["emitted"] or state["consumed"])
        return cls(
            state["pass"],
            state["epoch"],
            state["shared"],
            state["user_epoch"],
            state["emitted"],
            state["consumed"],
            begun,
        )

    def begin(self, turn: Epoch, shared: int) -> None:
        """Begin a pass, or go on with the one that was saved."""
        self.epoch, self.shared, self.user_epoch = turn.number, shared, turn.agreed if turn.explicit else None
        self.marks, self.found, self.begun, self.all_shared = [], False, True, turn.shared

    def end(self) -> None:
        """End a pass."""
        self.number, self.epoch, self.consumed = self.number + 1, self.epoch + 1, 0
        self.marks, self.seeds = [], None

    def counted(self, items: Iterator[Any]) -> Iterator[Any]:
        """Count what the prompt stages take."""
        for item in items:
            self.consumed += 1
            yield item

    def watched(self, items: Iterator[Any]) -> Iterator[Any]:
        """Note whether anything comes, at no cost for each item."""
        first = list(islice(items, 1))
        self.found = bool(first)
        return chain(first, items)

    def position(self, stages: int | None = None) -> Position:
        """The place behind the last item that has left the first so many stages with threads, or all."""
        for marks in reversed(self.marks[:stages]):
            if marks:
                return marks[0]
        return Position(self.consumed, None if self.source is None else self.source())

    def to_state(self, place: WorkerInfo, seeds: list[Any]) -> dict[str, Any]:
        """Return the place after the last item that was handed out, as JSON."""
        position = self.position()
        return {
            "version": STATE_VERSION,
            "epoch": self.epoch,
            "pass": self.number,
            "shared": self.shared,
            "user_epoch": self.user_epoch,
            "emitted": self.emitted,
            "consumed": position.consumed,
            "place": [place.rank, place.world_size, place.worker, place.workers],
            "pipeline": self.identity,
            "stages": seeds if self.seeds is None else self.seeds,
            "source": position.source,
        }


def identity_of(stages: Iterable[Any]) -> str:
    """Return a hash of what the order of items follows from: stages, their shards, sizes and given seeds."""
    digest = xxhash.xxh3_64()
    for stage in stages:
        name = getattr(stage, "__name__", type(stage).__name__)
        facts = [f"{fact}={getattr(stage, fact)!r}" for fact in _FACTS if hasattr(stage, fact)]
        facts += [repr(value) for value in getattr(stage, "args", ()) if isinstance(value, int | float | str)]
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


def check_state(state: object, place: WorkerInfo, stages: int, identity: str) -> dict[str, Any]:
    """Return the state if it fits a pipeline of so many stages at this place; else raise StateMismatch."""
    if not isinstance(state, Mapping):
        raise StateMismatch(f"a state is a dictionary, got {type(state).__name__}.")
    if state.get("version") != STATE_VERSION:
        raise StateMismatch(
            f"the state has version {state.get('version')!r}, this tarmac reads {STATE_VERSION}."
        )
    for name in _COUNTS:
        _check_count(state, name)
    if state.get("user_epoch", -1) is not None:
        _check_count(state, "user_epoch")
    if "source" not in state or not isinstance(state.get("stages"), list):
        raise StateMismatch("the state is damaged: it has no stages or no source.")
    if len(state["stages"]) != stages:
        raise StateMismatch(f"the state is of {len(state['stages'])} stages, this pipeline has {stages}.")
    _check_place(state.get("place"), place)
    if state.get("pipeline") != identity:
        raise StateMismatch(
            "the state is of a pipeline with other shards, stages, sizes or seeds.",
            hint="make the pipeline as it was; stages behind the last shuffle may differ.",
        )
    return dict(state)


def _check_count(state: Mapping[str, Any], name: str) -> None:
    value = state.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST:
        raise StateMismatch(f"the state is damaged: {name!r} must be a whole number, found {value!r}.")


def _check_place(saved: object, place: WorkerInfo) -> None:
    here = [place.rank, place.world_size, place.worker, place.workers]
    if saved == here:
        return
    if not isinstance(saved, list) or len(saved) != 4 or not all(isinstance(each, int) for each in saved):
        raise StateMismatch(f"the state is damaged: 'place' must be four whole numbers, found {saved!r}.")
    if saved[1::2] != here[1::2]:
        raise StateMismatch(
            f"the state is of {saved[1]} ranks with {saved[3]} workers, "
            f"this is one of {place.world_size} with {place.workers}.",
            hint="resume streams on the same numbers; an indexed Dataset resumes on any.",
        )
    raise StateMismatch(
        f"the state is of rank {saved[0]}, worker {saved[2]}, "
        f"this is rank {place.rank}, worker {place.worker}.",
        hint="save a state on every rank; that of a Loader over an indexed Dataset is the same on all.",
    )


def skip(items: Iterator[Any], count: int) -> None:
    """Pass over items that a resumed pipeline has had."""
    skipped = sum(1 for _ in islice(items, count))
    if skipped < count:
        raise StateMismatch(f"the state is {count} samples into its pass, but there are only {skipped} now.")
