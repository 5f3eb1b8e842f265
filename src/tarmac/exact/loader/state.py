"""The state of a loader: a few numbers, valid for any world size, number of threads and processes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tarmac.errors import StateMismatch
from tarmac.exact.order.bijection import MAX_SIZE

VERSION = 1


@dataclass(frozen=True, slots=True)
class LoaderState:
    """The position in an epoch, and everything that the order of the epoch depends on."""

    seed: int | float | str
    epoch: int
    position: int
    """Samples of the epoch yielded so far, over all ranks."""
    shuffle: bool
    streams: int
    window: int
    samples: int
    shards: int
    fingerprint: str
    step: int | None = None
    """Batches of the epoch yielded so far by each rank; None in states of versions that did not count them."""

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {"tarmac_loader": VERSION} | asdict(self)

    @classmethod
    def from_dict(cls, state: Any) -> LoaderState:
        """Read a state; raise if it is invalid or of another version."""
        if not isinstance(state, dict) or "tarmac_loader" not in state:
            raise StateMismatch("this is not the state of a Loader.")
        if state["tarmac_loader"] != VERSION:
            raise StateMismatch(
                f"expected a state of version {VERSION}, got version {state['tarmac_loader']!r}.",
                hint="use the version of tarmac that saved it.",
            )
        names = cls.__dataclass_fields__
        missing = names.keys() - state.keys() - {"step"}  # absent in states of earlier versions
        if missing:
            raise StateMismatch(f"the state lacks {', '.join(sorted(missing))}.")
        values: dict[str, Any] = {name: state.get(name) for name in names}
        result = cls(**values)
        result._check_values()
        return result

    def _check_values(self) -> None:
        """Raise if a value is impossible."""
        values = asdict(self)
        types = {"shuffle": bool, "fingerprint": str, "seed": int | float | str}
        wrong = [name for name, expected in types.items() if not isinstance(values[name], expected)]
        counts = values.keys() - types - ({"step"} if self.step is None else set())
        wrong += [name for name in counts if not _is_count(values[name])]
        if not wrong:
            # Mixtures count positions over all epochs, so the product is bounded.
            wrong += [] if self.epoch * max(self.samples, 1) <= MAX_SIZE else ["epoch"]
            wrong += [] if self.position <= self.samples else ["position"]
            wrong += [] if (self.step or 0) <= self.position else ["step"]
        if wrong:
            invalid = ", ".join(f"{name} {repr(values[name])[:50]}" for name in sorted(wrong))
            raise StateMismatch(f"the state has invalid values: {invalid}.")

    def check(self, current: LoaderState) -> None:
        """Raise if the current loader has different data or a different order; the error lists the differences."""
        changed = [
            f"{name} was {getattr(self, name)!r}, now {getattr(current, name)!r}"
            for name in ("shards", "samples", "shuffle", "streams", "window")
            if getattr(self, name) != getattr(current, name)
        ]
        if not changed and self.fingerprint != current.fingerprint:
            changed = ["the samples are different: some shards were rewritten or selected differently"]
        if changed:
            raise StateMismatch(
                f"the state was saved with different data or a different order: {'; '.join(changed)}.",
                hint="use the dataset and Loader options of the saved state, or start without the state.",
            )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_SIZE
