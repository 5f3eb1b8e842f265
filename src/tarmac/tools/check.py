"""Read shards to their ends and say, for each, what is in it or where it is damaged."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from tarmac.errors import MissingField, TarmacError, TransferError, UrlError
from tarmac.samples.reader import SampleReader, read, read_shard
from tarmac.storage import StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tar import TarOptions
from tarmac.tar.reader import DEFAULT_OPTIONS
from tarmac.urls import Shards

__all__ = ["ShardCheck", "check"]


@dataclass(slots=True)
class ShardCheck:
    """The verdict on one shard: what was read, and the error that ended the reading, if any."""

    url: str
    samples: int = 0
    payload: int = 0
    fields: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    error: TarmacError | None = None

    @property
    def ok(self) -> bool:
        """Whether the shard is complete and well formed."""
        return self.error is None

    @property
    def unreachable(self) -> bool:
        """Whether the shard could not be read at all, as opposed to being damaged."""
        return isinstance(self.error, TransferError | UrlError)


def check(
    shards: Shards,
    *,
    require: Collection[str] = (),
    tar: TarOptions = DEFAULT_OPTIONS,
    storage: StorageOptions = DEFAULT_STORAGE,
) -> Iterator[ShardCheck]:
    """Check shard after shard; a damaged one does not keep the others from being checked."""
    for url in read(shards, tar=tar, storage=storage).urls:
        yield _check_one(SampleReader([url], tar=tar, storage=storage), url, frozenset(require))


def _check_one(reader: SampleReader, url: str, require: frozenset[str]) -> ShardCheck:
    result = ShardCheck(url)
    try:
        for sample in read_shard(reader, url):
            result.samples += 1
            for name, value in sample.items():
                if name not in ("__key__", "__url__"):
                    result.fields[name] = result.fields.get(name, 0) + 1
                    result.payload += len(value)
            missing = require - sample.keys()
            if missing:
                names = ", ".join(sorted(missing))
                raise MissingField(f"the sample has no {names}.", url=url, key=sample["__key__"])
    except TarmacError as error:
        result.error = error
    result.skipped = dict(reader.report.skipped)
    return result
