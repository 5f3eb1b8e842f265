"""Group members into samples: contiguous members that share a key form one sample.

Nothing is merged by guessing. A duplicate field and a key that occurs again later are errors, unless whole samples may
repeat (`samples/repeated.py`). A sample is yielded only after the member that follows it, or the end of the shard, was
read intact.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from tarmac.errors import DuplicateField, RepeatedSample, SampleError, SplitSample, Truncated, TruncatedTail
from tarmac.limits import DEFAULT_LIMITS
from tarmac.samples.naming import Splitter, first_dot, is_metadata, is_reserved
from tarmac.samples.native import NativeRuns, Value
from tarmac.samples.repeated import OnError, Run, whole_samples
from tarmac.tar import Member, Repeated, TarOptions
from tarmac.tar.reader import RUN

Sample = dict[str, Any]
"""One sample: `__key__`, `__url__` and its fields, which are bytes until they are decoded."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Options for grouping members."""

    split_name: Splitter = first_dot
    lower: bool = True
    """Convert field names to lower case, so that `JPG` and `jpg` are one field."""
    lenient: bool = False
    """At a truncated end, yield the complete samples and warn instead of raising."""
    tracked_keys: int = DEFAULT_LIMITS.tracked_keys
    repeated: Repeated = "error"

    @classmethod
    def of(cls, tar: TarOptions, split_name: Splitter, *, lower: bool = True) -> Self:
        """Return the options for members that are read with the options of an archive."""
        return cls(split_name, lower, tar.end == "lenient", tar.limits.tracked_keys, tar.repeated)


DEFAULT_GROUPING = Grouping()
NONE_SPLIT: Mapping[str, SampleError] = MappingProxyType({})
_MAX_FIELDS = 1000
_NO_KEY = b"\0"  # no member name contains a NUL
_PREFIX = 32
"""Characters of field names that are remembered, which may be long."""
_HINT = "`repeated` keep, if each of them begins a whole sample."


def _raise(error: SampleError) -> None:
    raise error


def group_members(
    members: Iterator[Member],
    url: str,
    options: Grouping = DEFAULT_GROUPING,
    *,
    skipped: Counter[str] | None = None,
    on_error: OnError = _raise,
    split: Mapping[str, SampleError] = NONE_SPLIT,
    value: Value | None = None,
    runs: NativeRuns | None = None,
) -> Iterator[Sample]:
    """Yield one dictionary per sample: `__key__`, `__url__`, and the bytes of each field, or `value` of it.

    Members that belong to no sample (no dot in the name, reserved names) are counted in `skipped`. Duplicate
    fields and non-contiguous samples go to `on_error`; if it returns, the rest of the sample is dropped.
    Samples in `split`, which are known to be non-contiguous, are one error each and dropped whole.
    `runs` must be that of `members`, with the same `value`.
    """
    counts: Counter[str] = Counter() if skipped is None else skipped
    if options.repeated == "keep":
        parts = _group(members, url, options, counts, on_error, NONE_SPLIT, value, runs)
        return whole_samples(parts, url, options.tracked_keys, on_error, split)
    return _group(members, url, options, counts, on_error, split, value, runs)


def _group(
    members: Iterator[Member],
    url: str,
    options: Grouping,
    counts: Counter[str],
    on_error: OnError,
    split: Mapping[str, SampleError],
    value: Value | None,
    runs: NativeRuns | None,
) -> Iterator[Sample]:
    """Yield samples; if they may repeat, yield runs of members, whatever their keys."""
    naming = Naming(options, counts)
    known_field = naming.fields.get
    conventional = options.split_name is first_dot
    keep = options.repeated == "keep"
    tracked = options.tracked_keys
    seen: dict[int, str] = dict.fromkeys(map(hash, split), "")  # how the first field of each key begins
    unreported = dict(split)
    sample: Sample = {}
    current = _NO_KEY
    if runs is not None and conventional:
        runs.start(url, naming.fields, seen, tracked, _PREFIX)
    try:
        for name, offset, size, data in members:
            # Most names are a key and a known field. Known fields passed all checks and contain no slash, so
            # a dot before one is the first of the base name. A miss is a dot in a directory, such as "./", or
            # a new field.
            stem, _, rest = name.partition(b".")
            field = known_field(rest) if conventional else None
            if field is None and conventional:
                stem = name[: name.find(b".", name.rfind(b"/") + 1)]
                field = known_field(name[len(stem) + 1 :])
            if field is None or (stem != current and _needs_check(stem)):
                if name is RUN:
                    if sample:
                        yield sample
                    sample, current = {}, _NO_KEY
                    yield from data  # type: ignore[misc]
                    if keep:
                        seen.clear()
                    continue
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
                key_hash = hash(key)
                if keep:
                    # `whole_samples` compares keys. Here, only runs in C need one: they must not begin inside a sample.
                    seen.clear()
                elif key_hash in seen:
                    if key in unreported:
                        on_error(unreported.pop(key))
                    elif key not in split:
                        on_error(_occurs_again(seen[key_hash] == field[:_PREFIX], url, name, key))
                    continue
                if len(seen) < tracked:
                    seen[key_hash] = field[:_PREFIX]
                sample = {"__key__": key, "__url__": url}
            if field in sample:
                if keep:
                    yield Run(sample)
                    sample = {"__key__": sample["__key__"], "__url__": url}
                else:
                    what, key = f'duplicate field "{field}".', sample["__key__"]
                    on_error(DuplicateField(what, url=url, member=name, key=key, hint=_HINT))
                    sample = {}
            if sample:
                sample[field] = data if value is None else value(offset, size, data)
    except Truncated as error:
        if not options.lenient:
            raise
        _warn_truncated(error, sample, counts)
        if error.torn:
            return
    if sample:
        yield sample


def _occurs_again(same_field: bool, url: str, member: bytes, key: str) -> SplitSample:
    """Return the error of a key that had a sample before, which begins with the same field or another one."""
    if same_field:
        return RepeatedSample(
            "a sample with this key precedes it in the shard.", url=url, member=member, key=key
        )
    what = "the members of this sample are not contiguous in the shard."
    return SplitSample(what, url=url, member=member, key=key)


def _needs_check(stem: bytes) -> bool:
    """Return whether a key is empty or may be metadata."""
    return stem[-1:] in b"/" or stem[:2] == b"__"


class Naming:
    """Applies the naming rule to member names, caching field names."""

    def __init__(self, options: Grouping, counts: Counter[str]) -> None:
        self._split_name = options.split_name
        self._lower = options.lower
        self._counts = counts
        self.fields: dict[bytes, str] = {}

    def __call__(self, name: bytes) -> tuple[bytes, str] | None:
        """Return the key and the field; None if the member belongs to no sample."""
        if is_metadata(name):
            self._counts["metadata"] += 1
            return None
        named = self._split_name(name.decode("utf-8", "surrogateescape"))
        if named is None:
            self._counts["no field in name"] += 1
            return None
        key, field = named
        if is_reserved(field):
            self._counts["reserved field"] += 1
            return None
        encoded = field.encode("utf-8", "surrogateescape")
        field = field.lower() if self._lower else field
        if len(self.fields) < _MAX_FIELDS:
            self.fields[encoded] = field
        return key.encode("utf-8", "surrogateescape"), field


def _warn_truncated(error: Truncated, sample: Sample, counts: Counter[str]) -> None:
    counts["truncated tail"] += 1
    if not sample:
        consequence = "No sample is affected."
    elif error.torn:
        consequence = f'The incomplete sample "{sample["__key__"]}" is skipped.'
    else:
        consequence = f'The last sample, "{sample["__key__"]}", may lack fields.'
    warnings.warn(f"{error.location}: {error.what} {consequence}", TruncatedTail, stacklevel=4)
