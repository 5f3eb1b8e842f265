"""Where a loader is, as a few numbers that hold on any number of ranks, threads and processes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tarmac.errors import StateMismatch

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
        missing = names.keys() - state.keys()
        if missing:
            raise StateMismatch(f"the state lacks {', '.join(sorted(missing))}.")
        return cls(**{name: state[name] for name in names})

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
        if self.position < 0:
            raise StateMismatch(f"no epoch has a position {self.position}.")
