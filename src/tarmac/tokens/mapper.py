"""The mapper of `tokenize`: texts, images, or both in one sequence become token numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from tarmac.codecs.images import IMAGE_EXTENSIONS
from tarmac.errors import DecodeFailed, MissingField, TransformFailed, UsageError
from tarmac.samples.grouping import Sample
from tarmac.tokens.cut import Array, cut_to
from tarmac.tokens.images import ImageTokenizer, pixels
from tarmac.tokens.info import IMAGE, IMAGE_MODALITY, MODALITY, TEXT, TOKENS, TRUNCATED, TokenInfo
from tarmac.tokens.text import TextTokenizer, load_text_tokenizer
from tarmac.tools.mappers.contract import Column, Mapper
from tarmac.tools.mappers.records import Ragged

Part = str | Array
"""A text, or the pixels of an image."""
_NONE = np.zeros(0, np.int64)


@dataclass
class TokenMapper(Mapper):
    """Tokenizes samples. It pickles as its arguments; each process loads the tokenizers itself."""

    text: str | None = None
    """The field of the text; alternatives are divided by `;`."""
    tokenizer: Any = None
    image: str | None = None
    image_tokenizer: Any = None
    resolution: int = 256
    interleave: tuple[str, ...] = ()
    """Fields that become one sequence, in this order."""
    block_size: int | None = None
    vocab_size: int | None = None
    image_vocab_size: int | None = None
    image_token_shift: int = 0
    pad_token: int | None = None
    add_tokens: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    """What is recorded about the tokenizers."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @cached_property
    def _texts(self) -> TextTokenizer:
        # A sequence is cut as a whole, so its texts are not.
        block_size = None if self.interleave else self.block_size
        return load_text_tokenizer(
            self.tokenizer, block_size=block_size, vocab_size=self.vocab_size, add_tokens=self.add_tokens
        )

    @cached_property
    def _images(self) -> ImageTokenizer:
        return ImageTokenizer(self.image_tokenizer, self.image_vocab_size)

    def setup(self, device: str) -> None:
        if self.tokenizer is not None:
            _ = self._texts
        if self.image_tokenizer is not None:
            self._images.setup(device)

    def close(self) -> None:
        if "_images" in self.__dict__:
            self._images.close()

    @property
    def uses_device(self) -> bool:
        """Whether there is a model that computes on a device."""
        return self.image_tokenizer is not None

    @property
    def _paired(self) -> bool:
        return bool(self.text and self.image and not self.interleave)

    @cached_property
    def outputs(self) -> dict[str, Column]:  # type: ignore[override]
        text = self._texts.vocab_size if self.tokenizer is not None else 0
        image = self._images.vocab_size if self.image_tokenizer is not None else 0
        cut = {TRUNCATED: Column("uint32")} if self.block_size is not None else {}
        if self._paired:
            return {TEXT: Column(smallest(text), (None,)), IMAGE: Column(smallest(image), (None,)), **cut}
        modality = {MODALITY: Column("uint8", (None,))} if self.interleave else {}
        return {TOKENS: Column(smallest(max(text, image)), (None,)), **modality, **cut}

    @cached_property
    def info(self) -> dict[str, Any]:  # type: ignore[override]
        texts = self._texts if self.tokenizer is not None else None
        pad = self.pad_token if self.pad_token is not None else texts.pad_token if texts else 0
        self._check_pad(pad)
        return TokenInfo(
            vocab_size=texts.vocab_size if texts else 0,
            image_vocab_size=self._images.vocab_size if self.image_tokenizer is not None else 0,
            image_token_shift=self.image_token_shift,
            block_size=self.block_size,
            pad_token=pad,
            special_tokens=texts.special_tokens if texts else {},
            sources=self.sources,
        ).to_json()

    def _check_pad(self, pad: int) -> None:
        largest = min(
            np.iinfo(self.outputs[name].dtype).max for name in (TOKENS, TEXT, IMAGE) if name in self.outputs
        )
        if not 0 <= pad <= largest:
            raise UsageError(f"expected a number from 0 to {largest}, got {pad}.", field="pad_token")

    def prepare(self, sample: Sample) -> Part | list[Part]:
        """Return the text of a sample, the pixels of its image, or a list of such parts."""
        if self.interleave:
            return [part for name in self.interleave for part in self._parts(sample, name)]
        fields = [name for name in (self.text, self.image) if name]
        parts = [self._part(sample, _present(sample, name), is_image=name == self.image) for name in fields]
        return parts if self._paired else parts[0]

    def prepare_all(self, samples: Sequence[Sample]) -> list[str] | None:
        """Return what `prepare` returns for each, if that is a text: of such samples there may be billions."""
        name = self.text
        if name is None or self.image:
            return None
        return [str(sample[name], "utf-8") for sample in samples]

    def _parts(self, sample: Sample, name: str) -> Iterator[Part]:
        """Yield what a field of a sequence contributes; a JSON field lists texts and names of image fields."""
        name = _present(sample, name)
        if name.rpartition(".")[2] != "json":
            yield self._part(sample, name, is_image=is_image(name))
            return
        for kind, value in _listed(sample, name):
            yield value if kind == TEXT else self._part(sample, _present(sample, value), is_image=True)

    def _part(self, sample: Sample, name: str, *, is_image: bool) -> Part:
        data = bytes(sample[name])
        if is_image:
            return pixels(data, self.resolution)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise DecodeFailed(f'the field "{name}" is not UTF-8 text: {error}.') from None

    def __call__(self, batch: list[Any]) -> dict[str, Any]:
        """Return the columns of a batch."""
        if self.interleave:
            return self._sequences(batch)
        if self._paired:
            text, cut = self._encoded_texts([text for text, _ in batch])
            return self._with_cut(
                {TEXT: text, IMAGE: self._encoded_images([image for _, image in batch])}, cut
            )
        if self.text:
            tokens, cut = self._encoded_texts(batch)
        else:
            tokens, cut = cut_to(self._encoded_images(batch), self.block_size)
        return self._with_cut({TOKENS: tokens}, cut)

    def _with_cut(self, columns: dict[str, Any], cut: Array) -> dict[str, Any]:
        return columns | ({TRUNCATED: cut} if self.block_size is not None else {})

    def _sequences(self, batch: list[list[Part]]) -> dict[str, Any]:
        """Return the columns of sequences; all texts of a batch are encoded together, and all images."""
        parts: list[Any] = list(chain.from_iterable(batch))
        is_image = np.array([not isinstance(part, str) for part in parts], bool)
        texts, images = np.flatnonzero(~is_image).tolist(), np.flatnonzero(is_image).tolist()
        encoded: list[Array] = [_NONE] * len(parts)
        if texts:
            tokens, _ = self._encoded_texts([parts[number] for number in texts])
            for row, number in enumerate(texts):
                encoded[number] = tokens[row]
        if images:
            codes = self._encoded_images([parts[number] for number in images])
            for row, number in enumerate(images):
                encoded[number] = codes[row]
        lengths = np.array([len(each) for each in encoded], np.int64)
        values = np.concatenate([_NONE, *encoded])
        firsts = np.cumsum([0, *map(len, batch)])
        offsets = np.concatenate([[0], np.cumsum(lengths)])[firsts]
        tokens, cut = cut_to(Ragged(values, offsets), self.block_size)
        modality, _ = cut_to(Ragged(np.repeat(is_image * IMAGE_MODALITY, lengths), offsets), self.block_size)
        return self._with_cut({TOKENS: tokens, MODALITY: modality}, cut)

    def _encoded_texts(self, texts: list[str]) -> tuple[Ragged, Array]:
        """Return the tokens of each text, and how many were cut off."""
        if self.tokenizer is None:
            raise UsageError("the sequences have texts, which need `tokenizer`.", field="tokenizer")
        tokens, cut = self._texts.encode(texts)
        _check(tokens.values, self._texts.vocab_size, "vocab_size")
        return tokens, cut

    def _encoded_images(self, images: list[Array]) -> Ragged:
        """Return the tokens of each image."""
        if self.image_tokenizer is None:
            raise UsageError(
                "the sequences have images, which need `image_tokenizer`.", field="image_tokenizer"
            )
        codes = self._images.encode(images)
        _check(codes, self._images.vocab_size, "image_vocab_size")
        return Ragged(codes.reshape(-1), np.arange(len(codes) + 1) * codes.shape[1])

    def count(self, columns: Mapping[str, Any]) -> dict[str, int]:
        """Return the numbers that a report has: tokens, and samples that were cut."""
        names = [name for name in (TOKENS, TEXT, IMAGE) if name in columns]
        counts = {"tokens": sum(int(columns[name].offsets[-1]) for name in names)}
        if TRUNCATED in columns:
            counts["samples_truncated"] = int(np.count_nonzero(columns[TRUNCATED]))
        return counts


def smallest(vocab_size: int) -> str:
    """Return the smallest unsigned type for the tokens of a vocabulary."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def _check(tokens: Array, vocab_size: int, argument: str) -> None:
    """Raise unless all tokens are in the vocabulary, whose size the argument can tell."""
    if not tokens.size:
        return
    low, high = tokens.min(), tokens.max()
    if low < 0 or high >= vocab_size:
        what = f"a token from 0 to {vocab_size - 1} was expected, got {low} to {high}."
        raise TransformFailed(what, hint=f"`{argument}`, if the vocabulary is larger." if low >= 0 else None)


def _present(sample: Sample, names: str) -> str:
    for name in names.split(";"):
        if name in sample:
            return name
    raise MissingField(f'the sample has no field "{names}".', hint="tarmac show lists the fields.")


def is_image(name: str) -> bool:
    """Return whether a field is an image by its name."""
    return name.rpartition(".")[2] in IMAGE_EXTENSIONS


def _listed(sample: Sample, name: str) -> list[tuple[str, str]]:
    """Return the kind of each item of a JSON field, and the text or the name of the field of the image."""
    try:
        listed = json.loads(bytes(sample[name]))
    except ValueError as error:
        raise DecodeFailed(f'the field "{name}" is not JSON: {error}.') from None
    pairs = [pair for item in listed for pair in _pairs(item)] if isinstance(listed, list) else None
    if pairs is None or len(pairs) != len(listed):
        what = f'expected a list of texts, {{"text": TEXT}} and {{"image": FIELD}} in the field "{name}".'
        raise DecodeFailed(what)
    return pairs


def _pairs(item: Any) -> list[tuple[str, str]]:
    if isinstance(item, str):
        return [(TEXT, item)]
    values = item if isinstance(item, dict) else {}
    return [(kind, values[kind]) for kind in (TEXT, IMAGE) if isinstance(values.get(kind), str)]
