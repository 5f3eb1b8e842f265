"""Members to samples: files next to each other that share a key form one sample.

Nothing is merged by guessing. A field that comes twice and a key that comes again later are errors,
and a sample is handed out only when the member after it, or the end of the shard, was read intact.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tarmac.errors import DuplicateField, SampleError, SplitSample, Truncated, TruncatedTail
from tarmac.limits import DEFAULT_LIMITS
from tarmac.samples.naming import Splitter, first_dot, is_metadata, is_reserved
from tarmac.tar import Member

__all__ = ["Grouping", "Sample", "group_members"]

Sample = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Grouping:
    """How members become samples."""

    split: Splitter = first_dot
    lower: bool = True
    """Read field names in lower case, so that `JPG` and `jpg` are one field."""
    lenient: bool = False
    """At a tear, hand out the samples that are whole and warn, instead of raising."""
    tracked_keys: int = DEFAULT_LIMITS.tracked_keys


DEFAULT_GROUPING = Grouping()
_SPLIT = "files of this sample came earlier in the shard, with others between them."
_IN_PIECES = "the files of this sample are not next to each other in the shard."


def _raise(error: SampleError) -> None:
    raise error


def group_members(
    members: Iterator[Member],
    url: str,
    options: Grouping = DEFAULT_GROUPING,
    *,
    skipped: Counter[str] | None = None,
    on_error: Callable[[SampleError], None] = _raise,
    in_pieces: frozenset[str] = frozenset(),
) -> Iterator[Sample]:
    """Yield one dictionary per sample: `__key__`, `__url__`, and the bytes of each field.

    Members that belong to no sample (no dot in the name, reserved names) are counted in `skipped`. A
    sample that has a field twice or comes in pieces is an error; an `on_error` that does not raise it drops
    what there is of the sample. Samples known to come in pieces are one error each, and dropped whole.
    """
    counts: Counter[str] = Counter() if skipped is None else skipped
    naming = _Naming(options, counts)
    known = naming.fields.get
    conventional = options.split is first_dot
    tracked = options.tracked_keys
    seen: set[int] = set(map(hash, in_pieces))
    unreported = set(in_pieces)
    sample: Sample = {}
    current = b"\0"  # key of the sample being gathered; no member's name has a NUL
    try:
        for name, _offset, _size, data in members:
            # Most names are a key and a field seen before. The fields known passed all checks and have
            # no slash, so a dot before one of them is the first of the base name. A miss is a dot in a
            # directory, such as "./", or a new field.
            stem, _, rest = name.partition(b".")
            field = known(rest) if conventional else None
            if field is None and conventional:
                stem = _stem(name)
                field = known(name[len(stem) + 1 :])
            if field is None or (stem != current and _doubtful(stem)):
                named = naming(name)
                if named is None:
                    continue
                stem, field = named
            if stem != current:
                if sample:
                    yield sample
                    sample = {}
                current = stem
                key = stem.decode("utf-8", "surrogateescape")
                mark = hash(key)
                if mark in seen:
                    if key in unreported or key not in in_pieces:
                        unreported.discard(key)
                        what = _IN_PIECES if in_pieces else _SPLIT
                        on_error(SplitSample(what, url=url, member=name, key=key))
                    continue
                if len(seen) < tracked:
                    seen.add(mark)
                sample = {"__key__": key, "__url__": url}
            if field in sample:
                what = f'the field "{field}" comes twice.'
                on_error(DuplicateField(what, url=url, member=name, key=sample["__key__"]))
                sample = {}
            if sample:
                sample[field] = data
    except Truncated as error:
        if not options.lenient:
            raise
        _report_tear(error, sample, counts)
        if error.torn:
            return
    if sample:
        yield sample


def _stem(name: bytes) -> bytes:
    """The key by the usual convention, on bytes."""
    return name[: name.find(b".", name.rfind(b"/") + 1)]


def _doubtful(stem: bytes) -> bool:
    """Whether a key is empty, or may be of a name that belongs to no sample."""
    return stem[-1:] in b"/" or stem[:2] == b"__"


class _Naming:
    """Apply the naming rule to member names, remembering field names so that they are decoded once."""

    def __init__(self, options: Grouping, counts: Counter[str]) -> None:
        self._split = options.split
        self._lower = options.lower
        self._counts = counts
        self.fields: dict[bytes, str] = {}

    def __call__(self, name: bytes) -> tuple[bytes, str] | None:
        """Return the key and the field; None for what is in no sample."""
        if is_metadata(name):
            self._counts["metadata"] += 1
            return None
        named = self._split(name.decode("utf-8", "surrogateescape"))
        if named is None:
            self._counts["no field in name"] += 1
            return None
        key, field = named
        if is_reserved(field):
            self._counts["reserved field"] += 1
            return None
        plain = field.encode("utf-8", "surrogateescape")
        field = field.lower() if self._lower else field
        if len(self.fields) < 1000:
            self.fields[plain] = field
        return key.encode("utf-8", "surrogateescape"), field


def _report_tear(error: Truncated, sample: Sample, counts: Counter[str]) -> None:
    counts["torn tail"] += 1
    if not sample:
        fate = "No sample was begun."
    elif error.torn:
        fate = f'The sample "{sample["__key__"]}" is left out.'
    else:
        fate = f'The last sample, "{sample["__key__"]}", may lack fields.'
    warnings.warn(f"{error.location}: {error.what} {fate}", TruncatedTail, stacklevel=4)
