"""Tokenize with a mapper of the user: an object of the `Mapper` contract, or a function of a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tarmac.errors import UsageError
from tarmac.samples.grouping import Sample
from tarmac.tokens.info import TOKENS, TokenInfo
from tarmac.tokens.mapper import smallest
from tarmac.tools.mappers.contract import Column, Mapper, check_outputs, defines
from tarmac.tools.mappers.loading import load_object, set_up
from tarmac.tools.mappers.records import Ragged


def _checked(info: Any) -> dict[str, Any]:
    """Return the metadata of a mapper; raise unless it is a mapping that JSON can hold."""
    try:
        json.dumps(info)
        return dict(info)
    except (TypeError, ValueError) as error:
        raise UsageError(f"expected a dictionary for JSON as its `info`: {error}.", field="mapper") from None


@dataclass
class GivenMapper(Mapper):
    """A mapper of the user with the metadata of tokens. It pickles as its arguments."""

    source: Any
    """`module:Class`, a class, an object, or a function of a list of samples."""
    vocab_size: int | None = None
    image_token_shift: int = 0
    pad_token: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @cached_property
    def _inner(self) -> Any:
        return load_object(self.source, "mapper")

    @cached_property
    def outputs(self) -> dict[str, Column]:  # type: ignore[override]
        """The columns of the mapper; those of a function are tokens of any number."""
        columns = getattr(self._inner, "outputs", None)
        if columns:
            return check_outputs(columns)
        if self.vocab_size is None:
            what = "the mapper does not tell its `outputs`."
            raise UsageError(what, field="mapper", hint="`vocab_size`, if it returns tokens.")
        return {TOKENS: Column(smallest(self.vocab_size), (None,))}

    @cached_property
    def info(self) -> dict[str, Any]:  # type: ignore[override]
        given = {"vocab_size": self.vocab_size, "pad_token": self.pad_token}
        own = _checked(getattr(self._inner, "info", {})) | {n: v for n, v in given.items() if v is not None}
        shift = {"image_token_shift": self.image_token_shift} if self.image_token_shift else {}
        return TokenInfo(sources=self.sources).to_json() | own | shift

    @property
    def uses_device(self) -> bool:
        """Whether the mapper computes on a device."""
        return defines(self._inner, "setup")

    def prepare(self, sample: Sample) -> Any:
        prepare = getattr(self._inner, "prepare", None)
        return sample if prepare is None else prepare(sample)

    def setup(self, device: str) -> None:
        set_up(self._inner, device, "mapper")

    def __call__(self, batch: list[Any]) -> Mapping[str, Any]:
        result = self._inner(batch)
        columns = result if isinstance(result, Mapping) else {TOKENS: result}
        for name, values in columns.items():
            if not hasattr(values, "__len__"):
                what = f'the mapper returned a {type(values).__name__} as "{name}", expected a list.'
                raise UsageError(what, field="mapper")
        return columns

    @property
    def size(self) -> Any:
        """The function of the mapper that tells the length of an item, if it has one."""
        return getattr(self._inner, "size", None)

    def close(self) -> None:
        if hasattr(self._inner, "close"):
            self._inner.close()

    def count(self, columns: Mapping[str, Any]) -> dict[str, int]:
        """Return the number of tokens, for a report."""
        tokens = columns.get(TOKENS)
        return {"tokens": int(tokens.offsets[-1])} if isinstance(tokens, Ragged) else {}
