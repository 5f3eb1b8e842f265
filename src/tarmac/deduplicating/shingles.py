"""Turn texts into sets of short pieces, whose overlap says how similar texts are."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from tarmac.errors import UsageError
from tarmac.runtime.types import Integers

Hashes = NDArray[np.uint32]
CHARACTERS, WORDS = "chars", "words"
_TEXT = re.compile(rf"({CHARACTERS}|{WORDS}):([1-9][0-9]?)")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def normalized(text: str) -> str:
    """Return a text without differences of case, white space and compatible characters."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


@dataclass(frozen=True)
class Shingles:
    """The hashes of the pieces of several texts, each text's sorted and once."""

    values: Hashes
    offsets: Integers
    """Where the pieces of each text begin, and at the end the number of all."""

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class Cutter:
    """How texts are cut: every run of `size` characters, or words."""

    unit: str
    size: int

    @classmethod
    def parse(cls, text: str) -> Cutter:
        """Return what `chars:5` or `words:3` means."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise UsageError(f"expected chars:N or words:N, got {text!r}.", field="shingle")
        return cls(match[1], int(match[2]))

    def __call__(self, texts: Sequence[str]) -> Shingles:
        """Return the pieces of normalised texts. A text that is too short for one is a piece itself."""
        tokens, lengths = _characters(texts) if self.unit == CHARACTERS else _words(texts)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        counts = np.where(lengths > 0, np.maximum(lengths - self.size + 1, 1), 0)
        owner = np.repeat(np.arange(len(texts)), counts)
        begins = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + offsets[owner]
        ends = offsets[owner + 1]
        hashes = np.zeros(len(owner), np.uint64)
        for step in range(self.size):
            within = begins + step < ends
            token = tokens[np.minimum(begins + step, max(len(tokens) - 1, 0))] if len(tokens) else hashes
            hashes = _mixed(hashes * _FACTOR + np.where(within, token, np.uint64(0)))
        # Sorting numbers of texts and hashes together leaves each text's in its own run.
        both = np.unique(owner.astype(np.uint64) << np.uint64(32) | hashes >> np.uint64(32))
        sizes = np.bincount((both >> np.uint64(32)).astype(np.int64), minlength=len(texts))
        return Shingles(both.astype(np.uint32), np.concatenate([[0], np.cumsum(sizes)]))


def _characters(texts: Sequence[str]) -> tuple[NDArray[np.uint64], Integers]:
    joined = "".join(texts).encode("utf-32-le", "surrogatepass")
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return np.frombuffer(joined, "<u4").astype(np.uint64) + np.uint64(1), lengths


def _words(texts: Sequence[str]) -> tuple[NDArray[np.uint64], Integers]:
    words = [text.split() for text in texts]
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    digest = xxhash.xxh3_64_intdigest
    hashes = (digest(word.encode("utf-8", "surrogatepass")) for each in words for word in each)
    return np.fromiter(hashes, np.uint64), lengths


def _mixed(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = (hashes ^ (hashes >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return mixed ^ (mixed >> np.uint64(32))
