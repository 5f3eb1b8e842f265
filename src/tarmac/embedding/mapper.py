"""The mapper of `embed`: images, texts or both become vectors, with the metadata of their samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tarmac.embedding.encode import Vectors, unit_vectors
from tarmac.embedding.layout import IMAGE, TEXT
from tarmac.embedding.metadata import describe
from tarmac.embedding.models.contract import EmbeddingModel
from tarmac.embedding.models.load import load_model, set_up
from tarmac.errors import DecodeFailed, MissingField
from tarmac.samples.grouping import Sample
from tarmac.tools.mappers.contract import Column, Mapper
from tarmac.tools.mappers.records import Ragged

META = "meta"
"""The column of the metadata of each sample."""


class Prepared(NamedTuple):
    """What the model needs of a sample, and its metadata."""

    image: Any
    text: Any
    meta: bytes


@dataclass
class EmbedMapper(Mapper):
    """Embeds samples. It pickles as its arguments; each process loads the model itself."""

    model: Any
    image: str | None = None
    """The field of the image; alternatives are divided by `;`."""
    text: str | None = None
    meta: tuple[str, ...] = ()
    """Fields whose values become columns of the metadata."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @cached_property
    def _model(self) -> EmbeddingModel:
        return load_model(self.model)

    def setup(self, device: str) -> None:
        kinds = [name for name, field in (("images", self.image), ("texts", self.text)) if field]
        set_up(self._model, device, tuple(kinds))

    def close(self) -> None:
        self._model.close()

    @property
    def outputs(self) -> dict[str, Column]:  # type: ignore[override]
        """The columns; the dimension is known once the model is loaded."""
        vector = Column("float16", (self._model.dimension,))
        kinds = [kind for kind, field in ((IMAGE, self.image), (TEXT, self.text)) if field]
        return dict.fromkeys(kinds, vector) | {META: Column("uint8", (None,))}

    def prepare(self, sample: Sample) -> Prepared:
        caption = self._caption(sample)
        text = None if caption is None else self._model.prepare_texts([caption])[0]
        image = None if self.image is None else _present(sample, self.image)
        meta = self._described(sample, image, caption)
        return Prepared(
            None if image is None else self._model.prepare_image(bytes(sample[image])), text, meta
        )

    def prepare_all(self, samples: Sequence[Sample]) -> list[Prepared] | None:
        """Return what `prepare` returns for each, if there are no images: tokenizing many texts at once is faster."""
        if self.image is not None:
            return None
        captions = [self._caption(sample) or "" for sample in samples]
        texts = self._model.prepare_texts(captions)
        return [
            Prepared(None, text, self._described(sample, None, caption))
            for sample, text, caption in zip(samples, texts, captions, strict=True)
        ]

    def _caption(self, sample: Sample) -> str | None:
        if self.text is None:
            return None
        name = _present(sample, self.text)
        try:
            return bytes(sample[name]).decode()
        except UnicodeDecodeError as error:
            raise DecodeFailed(f'the field "{name}" is not UTF-8 text: {error}.') from None

    def _described(self, sample: Sample, image: str | None, caption: str | None) -> bytes:
        key = sample["__key__"]
        if not key.isascii() and any("\ud800" <= letter <= "\udfff" for letter in key):
            raise DecodeFailed("the key is not UTF-8 text, as those of metadata are.")
        return describe(sample, image, caption, self.meta)

    def __call__(self, batch: list[Prepared]) -> dict[str, Any]:
        """Return the columns of a batch: vectors of length 1, and metadata."""
        columns: dict[str, Vectors | Ragged] = {}
        model, count = self._model, len(batch)
        if self.image is not None:
            columns[IMAGE] = unit_vectors(model, model.encode_images([item.image for item in batch]), count)
        if self.text is not None:
            columns[TEXT] = unit_vectors(model, model.encode_texts([item.text for item in batch]), count)
        joined = b"".join(item.meta for item in batch)
        offsets = np.cumsum([0, *(len(item.meta) for item in batch)])
        return columns | {META: Ragged(np.frombuffer(joined, np.uint8), offsets)}


class TextMapper(EmbedMapper):
    """Embeds texts alone, in batches of similar length."""

    def size(self, item: Prepared) -> int:
        return len(item.text)


def _present(sample: Sample, names: str) -> str:
    for name in names.split(";"):
        if name in sample:
            return name
    raise MissingField(f'the sample has no field "{names}".')
