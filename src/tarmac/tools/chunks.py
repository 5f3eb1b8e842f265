"""Group samples into chunks, for work with a cost per call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tarmac.samples.grouping import Sample
from tarmac.tools.output import fields_of


def chunks(samples: Iterable[Sample], max_samples: int, max_bytes: int) -> Iterator[list[Sample]]:
    """Yield lists of at most `max_samples` samples; a list ends with the sample that reaches `max_bytes`."""
    chunk: list[Sample] = []
    size = 0
    for sample in samples:
        chunk.append(sample)
        size += sum(map(len, fields_of(sample).values()))
        if len(chunk) >= max_samples or size >= max_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
