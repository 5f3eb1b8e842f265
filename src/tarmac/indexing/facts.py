"""Describe a shard as a whole, in its sidecar, and check that a shard is the one that was indexed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tarmac.errors import IndexDamaged, IndexStale
from tarmac.indexing.sampled_digests import Held, SampledDigest, find_difference, parse_digests
from tarmac.storage import ObjectInfo, StorageOptions, is_local

VERSION = 1
MAX_NUMBER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Facts:
    """What a sidecar stores about its shard as a whole."""

    size: int
    """Bytes of the shard when it was indexed."""
    version: str | None
    """Its modification time or ETag at that time."""
    local: bool
    """Whether it was a local file of the machine that indexed it."""
    samples: int
    fingerprint: str
    """Hash of all keys, fields, offsets and sizes: equal for all copies of the shard."""
    digests: bool
    layout: list[str] | None
    """The fields of every sample, if all samples have the same fields in the same order."""
    columns: dict[str, str]
    """A hash of each metadata column."""
    sampled_digests: tuple[SampledDigest, ...] = ()
    """Digests of a few spans of the shard; empty in sidecars of earlier versions."""
    bad_meta: bool = False
    """Whether damaged fields became null in metadata columns instead of raising."""
    rows: bool = False
    """Whether this indexes the rows of records, parts of members, so that no header precedes the indexed bytes."""

    def same_version(self, info: ObjectInfo, url: str) -> bool | None:
        """Return whether time or ETag equal those that were indexed; None where they cannot be compared."""
        if not self.version or not info.version or is_local(url) != self.local:
            return None
        return self.version == info.version

    def check_size(self, info: ObjectInfo, url: str) -> None:
        """Raise IndexStale unless the shard has the size that was indexed."""
        if info.size != self.size:
            raise IndexStale(f"expected {self.size} bytes, as when it was indexed, got {info.size}.", url=url)

    def check_shard(
        self, info: ObjectInfo, url: str, storage: StorageOptions, held: Held | None = None
    ) -> bool:
        """Raise IndexStale unless the shard is the one that was indexed; the bytes `held` need not be read again.

        Return True if size and version are unchanged. A copy has another version and is recognised by its
        sampled digests. The bytes between them are unchecked, so the result is then False.
        """
        self.check_size(info, url)
        same = self.same_version(info, url)
        if same:
            return True
        try:
            if not self.sampled_digests:
                raise LookupError("the index has no sampled digests to recognise a copy")
            difference = find_difference(self.sampled_digests, url, info, storage, held)
        except LookupError as error:
            if same is False:
                changed = "modification time" if self.local else "ETag"
                what = f"the {changed} of the shard has changed since it was indexed, and {error.args[0]}."
                raise IndexStale(what, url=url) from None
            return False  # a copy elsewhere, of which only the size is known
        if difference is not None:
            span = f"between byte {difference.start} and byte {difference.stop}"
            raise IndexStale(f"the content of the shard has changed since it was indexed, {span}.", url=url)
        return False


def facts_to_json(facts: Facts) -> str:
    """Return the facts as the schema metadata of a sidecar stores them."""
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
            "marks": facts.sampled_digests,
            "bad_meta": facts.bad_meta,
        }
        | ({"rows": True} if facts.rows else {})
    )


def parse_facts(text: bytes, url: str) -> Facts:
    """Parse the facts in a sidecar; invalid ones raise LookupError, TypeError or ValueError."""
    content = json.loads(text)
    if content["version"] != VERSION:
        raise IndexDamaged(
            f"the index has version {content['version']!r}; this tarmac reads version {VERSION}.",
            url=url,
            hint="use a newer tarmac, or run tarmac index with this one.",
        )
    size = _number(content, "shard_size")
    version = content["shard_version"]
    if not isinstance(version, str | None):
        raise ValueError("shard_version must be text or null")
    return Facts(
        size=size,
        version=version,
        local=bool(content["local"]),
        samples=_number(content, "samples"),
        fingerprint=str(content["fingerprint"]),
        digests=content["digests"] is not None,
        layout=content["layout"],
        columns=dict(content["columns"]),
        sampled_digests=parse_digests(content.get("marks", []), size),
        bad_meta=bool(content.get("bad_meta", False)),
        rows=bool(content.get("rows", False)),
    )


def _number(content: Any, name: str) -> int:
    value = content[name]
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise ValueError(f"{name} must be an integer below 2^63")
    return value
