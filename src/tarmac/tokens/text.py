"""Tokenize texts with a file of the tokenizers library, or with any object that has `encode`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np

from tarmac import environment
from tarmac.errors import UsageError
from tarmac.extras import import_extra
from tarmac.tools.map.functions import load_function
from tarmac.tools.mappers.records import Ragged

_SIZES = ("vocab_size", "n_vocab", "get_vocab_size")
"""Attributes by which tokenizers tell the size of their vocabulary."""


class TextTokenizer(Protocol):
    """Turns texts into token numbers."""

    vocab_size: int
    special_tokens: dict[str, int]
    pad_token: int

    def encode(self, texts: list[str]) -> tuple[Ragged, np.ndarray[Any, Any]]:
        """Return the tokens of each text, and how many were cut off."""


def load_text_tokenizer(
    source: Any, *, block_size: int | None, vocab_size: int | None, add_tokens: Sequence[str]
) -> TextTokenizer:
    """Load a tokenizer from a file, from `module:Class`, or from an object."""
    if isinstance(source, str | os.PathLike) and _is_file(os.fspath(source)):
        return _FromFile(os.fspath(source), block_size, vocab_size, add_tokens)
    if add_tokens:
        what = "tokens can be added only to the tokenizers of files."
        raise UsageError(what, field="add_tokens")
    if isinstance(source, str | os.PathLike):
        source = load_function(os.fspath(source))
    return _FromObject(source() if isinstance(source, type) else source, block_size, vocab_size)


def _is_file(name: str) -> bool:
    return name.endswith(".json") or os.path.isfile(name)


class _FromFile:
    """A tokenizer of the tokenizers library."""

    def __init__(
        self, path: str, block_size: int | None, vocab_size: int | None, add_tokens: Sequence[str]
    ) -> None:
        environment.keep_tokenizers_single()
        tokenizers = import_extra("tokenizers", "tokens", "tokenize")
        if not os.path.isfile(path):
            raise UsageError("no such file.", field="tokenizer", url=path)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(path)
        except Exception as error:  # the library raises Exception itself
            what = f"this is not a file of the tokenizers library ({str(error)[:200]})."
            raise UsageError(what, field="tokenizer", url=path) from None
        if add_tokens:
            self._tokenizer.add_special_tokens(list(add_tokens))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        if block_size is not None:
            self._tokenizer.enable_truncation(block_size)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_tokens = {token.content: number for number, token in added.items() if token.special}
        numbers = self._tokenizer.get_vocab(with_added_tokens=True).values()
        self.vocab_size = _checked_size(vocab_size, max(numbers, default=-1) + 1)
        pads = [number for name, number in self.special_tokens.items() if "pad" in name.lower()]
        self.pad_token = min(pads, default=0)
        self._truncates = block_size is not None
        self._extra = self._tokenizer.num_special_tokens_to_add(is_pair=False)

    def encode(self, texts: list[str]) -> tuple[Ragged, np.ndarray[Any, Any]]:
        encodings = self._tokenizer.encode_batch_fast(texts)
        # One array for all: making one for each text would take as long as tokenizing short ones.
        ids = [encoding.ids for encoding in encodings]
        if not self._truncates:
            return ragged(ids), np.zeros(len(ids), np.uint32)
        cut = [sum(len(more) - self._extra for more in encoding.overflowing) for encoding in encodings]
        return ragged(ids), np.array(cut, np.uint32)


class _FromObject:
    """A tokenizer with a method `encode_batch` or `encode`, or a function of a text."""

    def __init__(self, tokenizer: Any, block_size: int | None, vocab_size: int | None) -> None:
        self._block_size = block_size
        self._encode_one = getattr(tokenizer, "encode", tokenizer)
        self._encode_batch = getattr(tokenizer, "encode_batch", None)
        if not callable(self._encode_one):
            what = f"expected a tokenizer with a method `encode`, got {type(tokenizer).__name__}."
            raise UsageError(what, field="tokenizer")
        size = next((getattr(tokenizer, name) for name in _SIZES if hasattr(tokenizer, name)), None)
        self.vocab_size = _checked_size(vocab_size, size() if callable(size) else size)
        self.special_tokens = dict(getattr(tokenizer, "special_tokens", {}))
        self.pad_token = int(getattr(tokenizer, "pad_token_id", None) or 0)

    def encode(self, texts: list[str]) -> tuple[Ragged, np.ndarray[Any, Any]]:
        encoded = self._encode_batch(texts) if self._encode_batch else map(self._encode_one, texts)
        ids = [list(getattr(each, "ids", each)) for each in encoded]
        if self._block_size is None:
            return ragged(ids), np.zeros(len(ids), np.uint32)
        cut = [max(len(each) - self._block_size, 0) for each in ids]
        return ragged([each[: self._block_size] for each in ids]), np.array(cut, np.uint32)


def ragged(lists: Sequence[Sequence[int]]) -> Ragged:
    """Return lists of token numbers as one array."""
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(list(map(len, lists)), out=offsets[1:])
    return Ragged(np.fromiter(chain.from_iterable(lists), np.int64, int(offsets[-1])), offsets)


def _checked_size(given: int | None, own: int | None) -> int:
    if given is None and not own:
        what = "the tokenizer does not tell the size of its vocabulary."
        raise UsageError(what, field="tokenizer", hint="`vocab_size` with that number.")
    size = given or own or 0
    if not 0 < size <= 1 << 32:
        raise UsageError(f"expected a size from 1 to 2^32, got {size}.", field="vocab_size")
    return size
