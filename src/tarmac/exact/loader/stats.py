"""Where the time of a loader goes, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Stats"]


@dataclass(slots=True)
class Stats:
    """Seconds, added up over all workers; `waiting` and `consuming` are those of the training loop."""

    samples: int = 0
    batches: int = 0
    read: float = 0.0
    """Finding samples and getting their bytes."""
    steps: float = 0.0
    """Decoding and the other steps of the dataset."""
    collate: float = 0.0
    """Writing items into batches."""
    hand_over: float = 0.0
    """Getting batches out of worker processes."""
    waiting: float = 0.0
    """The training loop waits for a batch."""
    consuming: float = 0.0
    """The training loop works on a batch."""

    def __add__(self, other: Stats) -> Stats:
        return Stats(*[mine + theirs for mine, theirs in zip(self._all(), other._all(), strict=True)])

    def _all(self) -> list[Any]:
        return list(asdict(self).values())

    def as_dict(self) -> dict[str, Any]:
        """The numbers by name, with the verdict."""
        return asdict(self) | {"verdict": self.verdict()}

    def verdict(self) -> str:
        """Say in one line what is slow."""
        total = self.waiting + self.consuming
        if not self.batches or total <= 0:
            return "nothing was loaded yet"
        share = self.waiting / total
        rate = f"{self.samples / total:,.0f} samples/s"
        if share < 0.05:
            return f"{rate}: the consumer is the limit; it waits {share:.0%} of the time"
        work = {"reading": self.read, "decoding and mapping": self.steps, "collating": self.collate}
        work["handing over"] = self.hand_over
        slowest = max(work, key=work.__getitem__)
        of_work = work[slowest] / (sum(work.values()) or 1)
        advice = {
            "reading": "a cache, faster storage, or larger shards",
            "decoding and mapping": "more threads; processes if a step holds Python's lock",
            "collating": "smaller items",
            "handing over": "threads instead of processes",
        }[slowest]
        return (
            f"{rate}: the consumer waits {share:.0%} of the time, mostly for {slowest} "
            f"({of_work:.0%} of the work); try {advice}"
        )
