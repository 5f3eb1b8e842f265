"""Count the samples of shards from their headers."""

from __future__ import annotations

from collections.abc import Iterable

from tarmac.samples.grouping import Grouping, group_members
from tarmac.samples.reader import SampleReader
from tarmac.tar import read_members


def count_samples(urls: Iterable[str], reader: SampleReader | None = None) -> int:
    """Return the number of samples in shards. Payload of local shards is not read; remote ones are streamed."""
    reader = SampleReader([]) if reader is None else reader
    return sum(_count_one(url, reader) for url in urls)


def _count_one(url: str, reader: SampleReader) -> int:
    grouping = Grouping(split_name=reader.split_name, lower=reader.lower)
    with reader.open(url) as source:
        members = read_members(source.map() or source, reader.tar, url=url, payload=False)
        return sum(1 for _ in group_members(members, url, grouping))
