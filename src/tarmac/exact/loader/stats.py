"""Where the time of a loader goes, and how to save it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class Stats:
    """Seconds, summed over all workers; `waiting` and `consuming` are those of the training loop."""

    samples: int = 0
    batches: int = 0
    read: float = 0.0
    """Locating and reading samples."""
    steps: float = 0.0
    """Decoding and the other steps of the dataset."""
    collate: float = 0.0
    """Copying items into batches."""
    transfer: float = 0.0
    """Transferring batches from worker processes."""
    waiting: float = 0.0
    """The training loop waits for a batch."""
    consuming: float = 0.0
    """The training loop works on a batch."""

    def __add__(self, other: Stats) -> Stats:
        return Stats(*[mine + theirs for mine, theirs in zip(self._all(), other._all(), strict=True)])

    def _all(self) -> list[Any]:
        return list(asdict(self).values())

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers by name, and the verdict."""
        return asdict(self) | {"verdict": self.verdict()}

    def verdict(self) -> str:
        """Name the bottleneck in one line."""
        total = self.waiting + self.consuming
        if not self.batches or total <= 0:
            return "no batches were loaded yet"
        share = self.waiting / total
        rate = f"{self.samples / total:,.0f} samples/s"
        if share < 0.05:
            return f"{rate}: the training loop is the bottleneck; it waits {share:.0%} of the time"
        work = {"reading": self.read, "decoding and mapping": self.steps, "collating": self.collate}
        work["transfer"] = self.transfer
        slowest = max(work, key=work.__getitem__)
        part = work[slowest] / (sum(work.values()) or 1)
        advice = {
            "reading": "a cache, faster storage, or larger shards",
            "decoding and mapping": "more threads; processes if a step holds the GIL",
            "collating": "smaller items",
            "transfer": "threads instead of processes",
        }[slowest]
        return (
            f"{rate}: the training loop waits {share:.0%} of the time, mostly for {slowest} "
            f"({part:.0%} of the work); try {advice}"
        )
