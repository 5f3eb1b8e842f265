"""Where a loader is, as a few numbers that hold on any number of ranks, threads and processes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tarmac.errors import StateMismatch
from tarmac.exact.order.bijection import MAX_SIZE

__all__ = ["LoaderState"]

VERSION = 1


@dataclass(frozen=True, slots=True)
class LoaderState:
    """The position in an epoch, and what gives it its meaning."""

    seed: int | str
    epoch: int
    position: int
    """Samples of the whole epoch handed out so far, by all ranks together."""
    shuffle: bool
    streams: int
    window: int
    samples: int
    shards: int
    fingerprint: str
    step: int | None = None
    """Batches of the epoch that each rank has had so far, whatever their size was; None if nobody counted."""

    def as_dict(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {"tarmac_loader": VERSION} | asdict(self)

    @classmethod
    def from_dict(cls, state: Any) -> LoaderState:
        """Read a state; one of another version, or none at all, is refused."""
        if not isinstance(state, dict) or "tarmac_loader" not in state:
            raise StateMismatch("this is not the state of a Loader.")
        if state["tarmac_loader"] != VERSION:
            raise StateMismatch(
                f"the state has version {state['tarmac_loader']!r}; this tarmac knows version {VERSION}.",
                hint="continue with the tarmac that saved it.",
            )
        names = cls.__dataclass_fields__
        missing = names.keys() - state.keys() - {"step"}  # which former versions did not count
        if missing:
            raise StateMismatch(f"the state lacks {', '.join(sorted(missing))}.")
        values: dict[str, Any] = {name: state.get(name) for name in names}
        found = cls(**values)
        found._check_values()
        return found

    def _check_values(self) -> None:
        """Refuse values that no loader can have saved."""
        values = asdict(self)
        kinds = {"shuffle": bool, "fingerprint": str, "seed": int | float | str}
        wrong = [name for name, kind in kinds.items() if not isinstance(values[name], kind)]
        counts = values.keys() - kinds - ({"step"} if self.step is None else set())
        wrong += [name for name in counts if not _is_count(values[name])]
        if not wrong:
            # Positions are counted over epochs in mixtures, so both together are bounded.
            wrong += [] if self.epoch * max(self.samples, 1) <= MAX_SIZE else ["epoch"]
            wrong += [] if self.position <= self.samples else ["position"]
            wrong += [] if (self.step or 0) <= self.position else ["step"]
        if wrong:
            found = ", ".join(f"{name} {repr(values[name])[:50]}" for name in sorted(wrong))
            raise StateMismatch(f"no Loader can have saved this state: it has {found}.")

    def check(self, now: LoaderState) -> None:
        """Refuse to continue with other data or another order, saying what is different."""
        changed = [
            f"{name} was {getattr(self, name)!r} and is {getattr(now, name)!r}"
            for name in ("shards", "samples", "shuffle", "streams", "window")
            if getattr(self, name) != getattr(now, name)
        ]
        if not changed and self.fingerprint != now.fingerprint:
            changed = ["there are as many samples, but not the same: some shards were written again"]
        if changed:
            raise StateMismatch(
                f"the state was saved with other data or another order: {'; '.join(changed)}.",
                hint="the dataset and the options of the Loader as they were, or begin without the state.",
            )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_SIZE
