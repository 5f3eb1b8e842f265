"""Find what can be trusted in a damaged archive.

Headers are recognised by their checksum, so reading continues at the next one after the damage. What is adjacent
to the damage is in doubt: a member whose end is uncertain, a name that an extended header may have changed, a
sample that may lack fields. Only samples that are certainly complete are kept; nothing is guessed.
"""

from __future__ import annotations

import mmap
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tarmac.errors import ArchiveError, TarmacWarning, TrailingData
from tarmac.samples.naming import Splitter, first_dot, is_metadata, is_reserved
from tarmac.tar import TarOptions, read_members
from tarmac.tar.header import BLOCK, UNKNOWN_FORMAT, ZERO_BLOCK, classify, octal, padded, verify

Buffer = bytes | mmap.mmap
MemberSpan = tuple[bytes, int, int]
"""Name, offset and size of a member."""

_MAGIC_AT = 257
WITNESSES = 2
"""Number of samples beyond doubt that must agree on their fields before one in doubt counts as complete."""
_MAYBE = "possibly an archive inside a field"
_ZEROS = "zeros between members; if archives were joined here, nothing is lost."
_NUMBERS = ((100, 108), (108, 116), (116, 124), (124, 136), (136, 148), (148, 156))
"""Ranges of the numbers in a header: mode, owner, group, size, time, checksum."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A part of a damaged shard that its clean copy lacks."""

    what: str
    """A `sample`, unreadable `bytes`, or a `tail` that may be missing."""
    reason: str
    key: str | None = None
    start: int | None = None
    stop: int | None = None


@dataclass(slots=True)
class Stretch:
    """Consecutive members without damage between them."""

    start: int
    members: list[MemberSpan] = field(default_factory=list)
    torn_before: bool = False
    torn_after: bool = False
    certain: bool = True
    """Whether its last member certainly ends where its header says."""


class _From:
    """A buffer from a position on, as a stream."""

    def __init__(self, buffer: Buffer, position: int) -> None:
        self._buffer, self._position = buffer, position

    def read(self, size: int, /) -> bytes:
        piece = self._buffer[self._position : self._position + size]
        self._position += len(piece)
        return piece


def scan(
    buffer: Buffer, options: TarOptions, *, split_name: Splitter = first_dot, deep: bool = False
) -> tuple[list[Stretch], list[Loss]]:
    """Return all stretches of readable members, and the bytes between them.

    `deep` also searches inside members that are in doubt. It finds more, including the headers of archives
    inside fields, so it is only for callers that verify what it finds.
    """
    stretches: list[Stretch] = []
    losses: list[Loss] = []
    start: int | None = 0
    inside, payload, nested = False, -1, False
    while start is not None:
        stretch = Stretch(start, torn_before=bool(start))
        error = _read(buffer, stretch, options)
        stretches.append(stretch)
        end = _end_of(stretch)
        if error is not None:
            stretch.torn_after = True
            _judge(buffer, stretch, end)
        inner = isinstance(error, TrailingData) and _is_inner(buffer, stretch, end, stretches)
        suspect = not deep and stretch.torn_before and (nested or inside or start == payload)
        if inner or (suspect and not _alike(stretches, split_name)):
            losses.append(Loss("bytes", "an archive inside a field" if inner else _MAYBE, None, start, end))
            stretches.pop()
        else:
            nested = nested or (error is not None and _holds_archives(buffer, stretch))
        if error is None:
            break
        unsure = bool(stretch.members) and not stretch.certain
        inside = unsure and (deep or _misjudged(buffer, stretch, options))
        after = max(stretch.members, key=_offset)[1] if inside else end + 1
        payload = end + BLOCK  # where the bytes of a member with a destroyed header would begin
        start = _next_header(buffer, after if stretch.members else stretch.start + 1)
        stop = len(buffer) if start is None else start
        empty = not buffer[end:stop].strip(b"\0")
        if end < stop and not (empty and start is None):
            losses.append(Loss("bytes", _ZEROS if empty else error.what, None, end, stop))
        elif start is None and not isinstance(error, TrailingData):
            losses.append(Loss("tail", error.what, None, min(end, stop), stop))
    return stretches, losses


def _read(buffer: Buffer, stretch: Stretch, options: TarOptions) -> ArchiveError | None:
    source = _From(buffer, stretch.start)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TarmacWarning)
            for name, offset, size, _ in read_members(source, options, payload=False):
                stretch.members.append((name, stretch.start + offset, size))
    except ArchiveError as error:
        return error
    return None


def _end_of(stretch: Stretch) -> int:
    if not stretch.members:
        return stretch.start
    _, offset, size = max(stretch.members, key=_offset)
    return offset + padded(size)


def _offset(member: tuple[bytes, int, int]) -> int:
    """Return the offset of a member; that of a hard link is the offset of its target."""
    return member[1]


def _judge(buffer: Buffer, stretch: Stretch, end: int) -> None:
    """Set whether the last member of a stretch certainly ends there: a header must follow it."""
    if not stretch.members:
        return
    _, offset, size = max(stretch.members, key=_offset)
    if offset + size > len(buffer):
        stretch.certain = False
        return
    block = buffer[end : end + BLOCK]
    if len(block) < BLOCK:
        return  # the file was truncated after this member
    if block == ZERO_BLOCK:
        # Zeros written over the archive would also cover the end of the member.
        stretch.certain = size == 0 or buffer[offset + size - 1] != 0
    else:
        stretch.certain = _is_header(block) or _resembles_header(block)


def _misjudged(buffer: Buffer, stretch: Stretch, options: TarOptions) -> bool:
    """Return whether the last member claims to extend beyond the file, and contains a complete archive.

    Either its size is wrong, or the shard was truncated inside a field that is an archive; `scan` decides which.
    """
    _, offset, size = max(stretch.members, key=_offset)
    start = _next_header(buffer, offset) if offset + size > len(buffer) else None
    return start is not None and _read(buffer, Stretch(start), options) is None


def _is_header(block: bytes) -> bool:
    if len(block) < BLOCK or block[_MAGIC_AT : _MAGIC_AT + 5] != b"ustar":
        return False
    try:
        verify(block)
        octal(block[124:136], "size")
    except ArchiveError:
        return False
    return classify(block[156:]).type != UNKNOWN_FORMAT and block[0] != 0


def _resembles_header(block: bytes) -> bool:
    """Return whether a block is a header of which a few bytes are damaged."""
    if block[_MAGIC_AT : _MAGIC_AT + 5] != b"ustar":
        return False
    intact = sum(block[begin:end].strip(b"\0 ").isdigit() for begin, end in _NUMBERS)
    return intact >= len(_NUMBERS) - 2


def _is_inner(buffer: Buffer, stretch: Stretch, end: int, before: list[Stretch]) -> bool:
    """Return whether a stretch after damage is an archive inside a field: it ends, and the outer one continues."""
    if not stretch.torn_before or _joined(buffer, stretch, before):
        return False
    after = end
    while buffer[after : after + BLOCK] == ZERO_BLOCK:
        after += BLOCK
    return _is_header(buffer[after : after + BLOCK])


def _holds_archives(buffer: Buffer, stretch: Stretch) -> bool:
    """Return whether a field of a stretch is an archive."""
    return any(
        size > BLOCK and _is_header(buffer[offset : offset + BLOCK]) for _, offset, size in stretch.members
    )


def _alike(stretches: list[Stretch], split_name: Splitter) -> bool:
    """Return whether a sample of the last stretch has the same fields as all samples beyond doubt before it."""
    *before, last = stretches
    layout = layout_of(list(runs_of(before, split_name)))
    return layout is not None and any(tuple(run.fields) == layout for run in runs_of([last], split_name))


def layout_of(runs: list[SampleRun]) -> tuple[str, ...] | None:
    """Return the fields of all samples beyond doubt, if they agree."""
    layouts = Counter(tuple(run.fields) for run in runs if not run.doubt and not run.broken)
    return next(iter(layouts)) if len(layouts) == 1 and layouts.total() >= WITNESSES else None


def _joined(buffer: Buffer, stretch: Stretch, before: list[Stretch]) -> bool:
    """Return whether a stretch follows the end-of-archive marker of another archive."""
    if len(before) < 2:
        return False
    end = _end_of(before[-2])
    between = buffer[end : stretch.start]
    return before[-2].certain and len(between) >= 2 * BLOCK and not between.strip(b"\0")


def _next_header(buffer: Buffer, position: int) -> int | None:
    """Return the offset of the next header, which may be unaligned."""
    position = min(position, len(buffer))  # a size may be wrong
    while True:
        magic = buffer.find(b"ustar", position + _MAGIC_AT)
        if magic < 0:
            return None
        position = magic - _MAGIC_AT
        if _is_header(buffer[position : position + BLOCK]):
            return position
        position += 1


@dataclass(slots=True)
class SampleRun:
    """Contiguous members that share a key."""

    key: str
    fields: dict[str, tuple[int, int]] = field(default_factory=dict)
    doubt: bool = False
    """Whether fields may be missing."""
    broken: str = ""
    """Why it cannot be a complete sample."""
    start: int = 0
    stop: int = 0


def runs_of(stretches: list[Stretch], split_name: Splitter = first_dot) -> Iterator[SampleRun]:
    """Yield the samples of the stretches, or parts of them."""
    extended = _has_extensions(stretches)
    for stretch in stretches:
        run: SampleRun | None = None
        last = len(stretch.members) - 1
        for number, (name, offset, size) in enumerate(stretch.members):
            key, fieldname = _named(name, split_name)
            if not fieldname:
                continue
            if run is None or key != run.key:
                if run is not None:
                    yield run
                run = SampleRun(key, doubt=run is None and stretch.torn_before, start=offset - BLOCK)
            if fieldname in run.fields:
                run.broken = run.broken or f'the field "{fieldname}" is repeated'
            run.fields[fieldname] = offset, size
            run.stop = offset + padded(size)
            if number == 0 and stretch.torn_before and (extended or len(name) >= 100):
                run.broken = "its name may have been in a damaged extended header"
            if number == last and not stretch.certain:
                run.broken = f'the end of "{fieldname}" is uncertain'
        if run is not None:
            run.doubt = run.doubt or stretch.torn_after
            yield run


def _named(name: bytes, split_name: Splitter) -> tuple[str, str]:
    """Return the key and the field of a member; both are empty if it belongs to no sample."""
    named = None if is_metadata(name) else split_name(name.decode("utf-8", "surrogateescape"))
    if named is None or is_reserved(named[1]):
        return "", ""
    return named[0], named[1].lower()


def _has_extensions(stretches: list[Stretch]) -> bool:
    """Return whether there is other data between members, such as extended headers."""
    for stretch in stretches:
        end = stretch.start
        for _, offset, size in stretch.members:
            if offset - BLOCK != end:
                return True
            end = offset + padded(size)
    return False
