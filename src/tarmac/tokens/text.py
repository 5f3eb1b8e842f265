"""Tokenize texts with the tokenizers library, or with any object that has `encode`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice, pairwise
from operator import index
from typing import Any, Protocol

import numpy as np

from tarmac import environment
from tarmac.errors import TransformFailed, UsageError
from tarmac.extras import import_extra
from tarmac.limits import MIB
from tarmac.tokens.cut import Array, cut_to
from tarmac.tools.mappers.loading import load_object
from tarmac.tools.mappers.records import Ragged

_SIZES = ("vocab_size", "n_vocab", "get_vocab_size", "__len__")
"""Attributes by which tokenizers tell the size of their vocabulary; some do not count added tokens in all of them."""

SLICE = 4 * MIB
"""Characters that a tokenizer gets at a time, about."""


class TextTokenizer(Protocol):
    """Turns texts into token numbers."""

    vocab_size: int
    special_tokens: dict[str, int]
    pad_token: int

    def encode(self, texts: list[str]) -> tuple[Ragged, Array]:
        """Return the tokens of each text, and how many were cut off."""


def load_text_tokenizer(
    source: Any, *, block_size: int | None, vocab_size: int | None, add_tokens: Sequence[str]
) -> TextTokenizer:
    """Load a tokenizer from a file, from `module:Class`, or from an object."""
    if isinstance(source, str | os.PathLike) and _is_file(os.fspath(source)):
        return _OfLibrary(_from_file(os.fspath(source)), block_size, vocab_size, add_tokens)
    if is_of_library(source):
        environment.keep_tokenizers_single()
        return _OfLibrary(type(source).from_str(source.to_str()), block_size, vocab_size, add_tokens)
    if add_tokens:
        what = "tokens can be added only to tokenizers of the tokenizers library."
        raise UsageError(what, field="add_tokens")
    if isinstance(source, str | os.PathLike) and ":" not in os.fspath(source):
        what = f"expected a file of the tokenizers library or module:Class, got {os.fspath(source)!r}."
        hint = "tokenizers.Tokenizer.from_pretrained(NAME).save(FILE) writes the file of a tokenizer of Hugging Face."
        raise UsageError(what, field="tokenizer", hint=hint)
    return _OfObject(load_object(source, "tokenizer"), block_size, vocab_size)


def is_of_library(tokenizer: Any) -> bool:
    """Return whether an object is a tokenizer of the tokenizers library."""
    return type(tokenizer).__module__.split(".")[0] == "tokenizers" and hasattr(tokenizer, "to_str")


def _is_file(name: str) -> bool:
    return name.endswith(".json") or os.path.isfile(name)


def _from_file(path: str) -> Any:
    environment.keep_tokenizers_single()
    tokenizers = import_extra("tokenizers", "tokens", "tokenize")
    if not os.path.isfile(path):
        raise UsageError("no such file.", field="tokenizer", url=path)
    try:
        return tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the library raises Exception itself
        what = f"this is not a file of the tokenizers library ({str(error)[:200]})."
        raise UsageError(what, field="tokenizer", url=path) from None


class _OfLibrary:
    """A tokenizer of the tokenizers library. It neither pads nor truncates, whatever its file says."""

    def __init__(
        self, tokenizer: Any, block_size: int | None, vocab_size: int | None, add_tokens: Sequence[str]
    ) -> None:
        self._tokenizer, self._block_size = tokenizer, block_size
        if add_tokens:
            tokenizer.add_special_tokens(list(add_tokens))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        added = tokenizer.get_added_tokens_decoder()
        self.special_tokens = {token.content: number for number, token in added.items() if token.special}
        numbers = tokenizer.get_vocab(with_added_tokens=True).values()
        self.vocab_size = _checked_size(vocab_size, max(numbers, default=-1) + 1)
        pads = [number for name, number in self.special_tokens.items() if "pad" in name.lower()]
        self.pad_token = min(pads, default=0)
        self._behind = _tokens_behind(tokenizer)
        extra = tokenizer.num_special_tokens_to_add(is_pair=False)
        if block_size is not None and block_size < extra:
            what = f"expected at least {extra}, as many as the tokenizer adds to each text, got {block_size}."
            raise UsageError(what, field="block_size")

    def encode(self, texts: list[str]) -> tuple[Ragged, Array]:
        return _sliced(self._encode, texts)

    def _encode(self, texts: list[str]) -> tuple[Ragged, Array]:
        # One array for all: making one for each text would take as long as tokenizing short ones. Truncating in the
        # library would make an object of each piece that is cut off.
        tokens = _ragged([each.ids for each in self._tokenizer.encode_batch_fast(texts)], np.uint32)
        return cut_to(tokens, self._block_size, self._behind)


def _tokens_behind(tokenizer: Any) -> int:
    """Return how many special tokens follow a text, such as the end of a sentence; these are not cut off."""
    for text in ("a", *islice(tokenizer.get_vocab(), 100)):
        mask = tokenizer.encode(text).special_tokens_mask
        if 0 in mask:
            return int(mask[::-1].index(0))
    return 0


class _OfObject:
    """A tokenizer with a method `encode_batch` or `encode`, or a function of a text."""

    def __init__(self, tokenizer: Any, block_size: int | None, vocab_size: int | None) -> None:
        self._block_size = block_size
        self._encode_one = getattr(tokenizer, "encode", tokenizer)
        self._encode_batch = getattr(tokenizer, "encode_batch", None)
        if not callable(self._encode_one):
            what = f"expected a tokenizer with a method `encode`, got {type(tokenizer).__name__}."
            raise UsageError(what, field="tokenizer")
        sizes = [getattr(tokenizer, name) for name in _SIZES if hasattr(tokenizer, name)]
        self.vocab_size = _checked_size(
            vocab_size, max((s() if callable(s) else s for s in sizes), default=None)
        )
        self.special_tokens = _special_tokens(tokenizer)
        self.pad_token = int(getattr(tokenizer, "pad_token_id", None) or 0)

    def encode(self, texts: list[str]) -> tuple[Ragged, Array]:
        return _sliced(self._encode, texts)

    def _encode(self, texts: list[str]) -> tuple[Ragged, Array]:
        encoded = self._encode_batch(texts) if self._encode_batch else map(self._encode_one, texts)
        return cut_to(_ragged([_numbers(each) for each in encoded]), self._block_size)


def _numbers(encoded: Any) -> list[int]:
    """Return the token numbers in what a tokenizer returns for a text."""
    ids = encoded["input_ids"] if isinstance(encoded, Mapping) else getattr(encoded, "ids", encoded)
    try:
        return list(map(index, ids.tolist() if hasattr(ids, "tolist") else ids))
    except TypeError:
        what = f"the tokenizer returned {str(ids)[:80]!r} for a text, expected a list of integers."
        raise TransformFailed(what) from None


def _special_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the special tokens of an object that names them as `transformers` or `tiktoken` does."""
    if hasattr(tokenizer, "all_special_tokens") and hasattr(tokenizer, "all_special_ids"):
        return dict(zip(map(str, tokenizer.all_special_tokens), tokenizer.all_special_ids, strict=False))
    if hasattr(tokenizer, "special_tokens_set") and hasattr(tokenizer, "encode_single_token"):
        return {name: tokenizer.encode_single_token(name) for name in sorted(tokenizer.special_tokens_set)}
    return dict(getattr(tokenizer, "special_tokens", {}))


def _sliced(encode: Callable[[list[str]], tuple[Ragged, Array]], texts: list[str]) -> tuple[Ragged, Array]:
    """Encode long texts a few at a time: what tokenizers return takes thirty times the memory of the texts."""
    if sum(map(len, texts)) < SLICE:
        return encode(texts)
    slices = np.cumsum(list(map(len, texts))) // SLICE
    starts = np.flatnonzero(np.diff(slices, prepend=-1)).tolist()
    parts = [encode(texts[start:stop]) for start, stop in pairwise([*starts, len(texts)])]
    lengths = np.concatenate([tokens.lengths for tokens, _ in parts])
    values = np.concatenate([tokens.values for tokens, _ in parts])
    return Ragged(values, np.r_[0, np.cumsum(lengths)]), np.concatenate([lost for _, lost in parts])


def _ragged(lists: Sequence[Sequence[int]], kind: type[Any] = np.int64) -> Ragged:
    """Return lists of token numbers as one array."""
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(list(map(len, lists)), out=offsets[1:])
    return Ragged(np.fromiter(chain.from_iterable(lists), kind, int(offsets[-1])), offsets)


def _checked_size(given: int | None, own: int | None) -> int:
    if given is None and not own:
        what = "the tokenizer does not tell the size of its vocabulary."
        raise UsageError(what, field="tokenizer", hint="`vocab_size` with that number.")
    size = given if given is not None else own or 0
    if not 0 < size <= 1 << 32:
        raise UsageError(f"expected a size from 1 to 2^32, got {size}.", field="vocab_size")
    return size
