"""Pack documents of different lengths into sequences of one length: which pieces make up each sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tarmac.errors import UsageError
from tarmac.runtime.types import Integers


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Pieces of documents in the order of their sequences: sequence i has those from bounds[i] to bounds[i + 1]."""

    bounds: Integers
    documents: Integers
    """The number of the document of each piece, ..."""
    starts: Integers
    """... where the piece begins in it, ..."""
    lengths: Integers
    """... and the length of the piece."""
    size: int

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def fill(self) -> float:
        """The share of the sequences that is not padding."""
        return float(self.lengths.sum() / max(len(self) * self.size, 1))


def pack_lengths(lengths: Integers, size: int, *, across_documents: bool = False) -> Packing:
    """Pack documents of these lengths into sequences of at most `size` elements.

    Best fit, longest first: each document goes into the fullest sequence that has room for it. A document that is
    longer than a sequence is cut into whole sequences and a rest. With `across_documents`, documents are laid end to
    end and cut every `size` elements instead. Documents without elements are in no sequence. The result depends on
    the arguments alone. Sequences, and the pieces of each, are in the order of the documents.
    """
    if size < 1:
        raise UsageError(f"expected 1 or more, got {size}.", field="pack")
    lengths = np.asarray(lengths, np.int64)
    if across_documents:
        return _end_to_end(lengths, size)
    documents, starts, pieces = _cut(lengths, size)
    sequences = _best_fit(pieces, size)
    # By the first document of each sequence: the order in which best fit begins them is by length.
    firsts = np.full(int(sequences.max(initial=-1)) + 1, len(pieces))
    np.minimum.at(firsts, sequences, np.arange(len(pieces)))
    order = np.lexsort((np.arange(len(pieces)), firsts[sequences]))
    counts = np.bincount(sequences, minlength=len(firsts))[np.argsort(firsts)]
    return Packing(_bounds(counts), documents[order], starts[order], pieces[order], size)


def _end_to_end(lengths: Integers, size: int) -> Packing:
    """Cut the documents, laid end to end, where a document or a sequence ends."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.union1d(ends, np.arange(0, total + size, size).clip(max=total))
    begins, stops = cuts[:-1], cuts[1:]
    if cuts[:1].any():
        begins, stops = np.r_[0, begins], cuts
    documents = np.searchsorted(ends, begins, side="right")
    starts = begins - (ends - lengths)[documents]
    counts = np.bincount(begins // size, minlength=-(-total // size))
    return Packing(_bounds(counts), documents, starts, stops - begins, size)


def _cut(lengths: Integers, size: int) -> tuple[Integers, Integers, Integers]:
    """Return document, start and length of pieces that fit into a sequence."""
    counts = -(-lengths // size)
    documents = np.repeat(np.arange(len(lengths)), counts)
    starts = size * (np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts))
    return documents, starts, np.minimum(lengths[documents] - starts, size)


def _best_fit(lengths: Integers, size: int) -> Integers:
    """Return the number of the sequence of each piece.

    Pieces of equal length are placed together, and so are sequences with equal room: the work depends on the number of
    different lengths, hardly on the number of pieces.
    """
    result = np.empty(len(lengths), np.int64)
    if not len(lengths):
        return result
    order = np.argsort(-lengths, kind="stable")
    distinct, begins = np.unique(-lengths[order], return_index=True)
    open_: list[Integers] = [np.zeros(0, np.int64)] * (size + 1)
    """The sequences with each amount of room."""
    rooms = np.zeros(size + 1, np.int64)
    """How many there are of each."""
    count = 0
    for length, pieces in zip((-distinct).tolist(), np.split(order, begins[1:]), strict=True):
        while len(pieces):
            present = np.flatnonzero(rooms[length:])
            room = length + int(present[0]) if len(present) else size
            each = room // length
            needed = -(-len(pieces) // each)
            if len(present):
                taken, open_[room] = open_[room][:needed], open_[room][needed:]
                rooms[room] -= len(taken)
            else:
                taken = np.arange(count, count + needed)
                count += needed
            placed, pieces = pieces[: each * len(taken)], pieces[each * len(taken) :]
            result[placed] = np.repeat(taken, each)[: len(placed)]
            # All but the last of them hold `each` pieces more.
            last = len(placed) - each * (len(taken) - 1)
            _leave(open_, rooms, taken[:-1], room - each * length)
            _leave(open_, rooms, taken[-1:], room - last * length)
    return result


def _leave(open_: list[Integers], rooms: Integers, sequences: Integers, room: int) -> None:
    if room and len(sequences):
        open_[room] = np.concatenate([open_[room], sequences])
        rooms[room] += len(sequences)


def _bounds(counts: Integers) -> Integers:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
