"""What a sidecar says of its shard as a whole, and whether a shard is still the one that was indexed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tarmac.errors import IndexDamaged, IndexStale
from tarmac.indexing.marks import Mark, differing_mark, parse_marks
from tarmac.storage import ObjectInfo, StorageOptions, is_local

__all__ = ["Facts", "facts_to_json", "parse_facts"]

VERSION = 1
LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Facts:
    """What a sidecar knows of its shard as a whole."""

    size: int
    """Bytes of the shard when it was indexed."""
    version: str | None
    """Its modification time or ETag then."""
    local: bool
    """Whether it was a file of the machine that indexed it."""
    samples: int
    fingerprint: str
    """Hash of all keys, fields, offsets and sizes: the same wherever the shard lies."""
    digests: bool
    layout: list[str] | None
    """The fields of every sample, where all have the same in the same order."""
    columns: dict[str, str]
    """A hash of each metadata column."""
    marks: tuple[Mark, ...] = ()
    """Digests of a few places of the shard; none in sidecars of former versions of tarmac."""
    bad_meta: bool = False
    """Whether damaged fields gave null in metadata columns, instead of an error."""

    def same_version(self, info: ObjectInfo, url: str) -> bool | None:
        """Whether a shard has the time or ETag that was indexed; None where that cannot be compared."""
        if not self.version or not info.version or is_local(url) != self.local:
            return None
        return self.version == info.version

    def check_shard(self, info: ObjectInfo, url: str, storage: StorageOptions, content: Any = None) -> bool:
        """Refuse a shard that is not the one that was indexed; `content` is all of it, where it is at hand.

        An unchanged size and version is enough. A copy has another version; it is known by its marks. These
        say nothing of what lies between them: then the answer is False.
        """
        if info.size != self.size:
            raise IndexStale(f"the shard has {info.size} bytes, {self.size} when indexed.", url=url)
        same = self.same_version(info, url)
        if same:
            return True
        try:
            if not self.marks:
                raise LookupError("its index has no marks to know a copy by")
            differing = differing_mark(self.marks, url, info, storage, content)
        except LookupError as error:
            if same is False:
                kind = "modification time" if self.local else "ETag"
                what = f"the shard has another {kind} than when indexed, and {error.args[0]}."
                raise IndexStale(what, url=url) from None
            return False  # a copy elsewhere, known by its size alone
        if differing is not None:
            place = f"between byte {differing.start} and byte {differing.stop}"
            raise IndexStale(f"the shard has other content than when indexed, {place}.", url=url)
        return False


def facts_to_json(facts: Facts) -> str:
    """Write facts as they stand in the metadata of a sidecar."""
    return json.dumps(
        {
            "version": VERSION,
            "shard_size": facts.size,
            "shard_version": facts.version,
            "local": facts.local,
            "samples": facts.samples,
            "fingerprint": facts.fingerprint,
            "digests": "xxh3-64" if facts.digests else None,
            "layout": facts.layout,
            "columns": facts.columns,
            "marks": facts.marks,
            "bad_meta": facts.bad_meta,
        }
    )


def parse_facts(text: bytes, url: str) -> Facts:
    """Read the facts of a sidecar; what is missing or absurd raises LookupError, TypeError or ValueError."""
    found = json.loads(text)
    if found["version"] != VERSION:
        raise IndexDamaged(
            f"the index has version {found['version']!r}; this tarmac knows version {VERSION}.",
            url=url,
            hint="a newer tarmac, or tarmac index with this one.",
        )
    size = _number(found, "shard_size")
    version = found["shard_version"]
    if not isinstance(version, str | None):
        raise ValueError("shard_version must be text or null")
    return Facts(
        size=size,
        version=version,
        local=bool(found["local"]),
        samples=_number(found, "samples"),
        fingerprint=str(found["fingerprint"]),
        digests=found["digests"] is not None,
        layout=found["layout"],
        columns=dict(found["columns"]),
        marks=parse_marks(found.get("marks", []), size),
        bad_meta=bool(found.get("bad_meta", False)),
    )


def _number(found: Any, name: str) -> int:
    value = found[name]
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"{name} must be a whole number below 2^63")
    return value
