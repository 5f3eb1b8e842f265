"""Where the time of a loader goes, and how to save it."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Stats:
    """Seconds, summed over all workers; `waiting` and `consuming` are those of the training loop."""

    samples: int = 0
    batches: int = 0
    requests: int = 0
    """Requests for pieces of remote shards, ..."""
    fetched: int = 0
    """... and their bytes."""
    fetch: float = 0.0
    """Waiting for remote bytes before a batch can be built."""
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
        return Stats(*[getattr(self, name) + getattr(other, name) for name in _NAMES])

    def verdict(self) -> str:
        """Name the bottleneck in one line."""
        total = self.waiting + self.consuming
        if not self.batches or total <= 0:
            return "no batches were loaded yet"
        share = self.waiting / total
        rate = f"{self.samples / total:,.0f} samples/s"
        if share < 0.05:
            return f"{rate}: the training loop is the bottleneck; it waits {share:.0%} of the time"
        work = {
            "fetching": (self.fetch, "a cache, a larger remote_budget, or a faster network"),
            "reading": (self.read, "a cache, faster storage, or larger shards"),
            "decoding and mapping": (self.steps, "more threads; processes if a step holds the GIL"),
            "collating": (self.collate, "smaller items"),
            "transfer": (self.transfer, "threads instead of processes"),
        }
        slowest = max(work, key=lambda name: work[name][0])
        seconds, advice = work[slowest]
        part = seconds / (sum(spent for spent, _ in work.values()) or 1)
        return (
            f"{rate}: the training loop waits {share:.0%} of the time, mostly for {slowest} "
            f"({part:.0%} of the work); try {advice}"
        )


_NAMES = [field.name for field in fields(Stats)]
