"""What readers of tokens need to know: vocabularies, special tokens, and what is applied when tokens are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tarmac.errors import UsageError
from tarmac.tools.mappers.contract import Column
from tarmac.tools.mappers.records import Schema

TOKENS, MODALITY, TRUNCATED, SEGMENTS = "tokens", "modality", "truncated", "segments"
"""Columns: token numbers, 0 for text or 1 for images for each of them, how many tokens a sample lost, and the lengths
of the documents of a packed sequence."""
TEXT, IMAGE = "text", "image"
"""Columns of samples whose texts and images are not interleaved."""
IMAGE_MODALITY = 1
KIND = "tokens"
MANIFEST = "tokens.json"
"""The manifest in a directory of combined tokens."""


@dataclass(frozen=True)
class TokenInfo:
    """The metadata of tokens. Nothing of it is applied to the stored numbers."""

    vocab_size: int = 0
    """Of the text tokenizer; 0 without texts."""
    image_vocab_size: int = 0
    """Of the image tokenizer; 0 without images."""
    image_token_shift: int = 0
    """Added to image tokens when they are loaded."""
    block_size: int | None = None
    """Largest number of tokens of a sample; loaded samples are filled up to it."""
    pad_token: int = 0
    """What they are filled up with."""
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    """The field that each column was made from, and the fingerprint of each tokenizer."""
    packed: int | None = None
    """The length of sequences that samples were packed into."""

    def to_json(self) -> dict[str, Any]:
        """Return the metadata as JSON."""
        return {"kind": KIND} | asdict(self)

    @classmethod
    def of(cls, schema: Schema) -> TokenInfo:
        """Return the metadata in a schema; raise UsageError if it is not that of tokens."""
        if schema.info.get("kind") != KIND:
            raise UsageError("these are not tokens.", hint="tarmac tokenize writes tokens.")
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in schema.info.items() if name in known})


def token_columns(schema: Schema) -> list[str]:
    """Return the columns that hold token numbers."""
    return [name for name in schema.columns if name not in (MODALITY, TRUNCATED, SEGMENTS)]


def packed_columns(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return the columns that rows have after packing; raise UsageError if they cannot be packed."""
    if TOKENS not in columns or not columns[TOKENS].ragged:
        what = f"expected one sequence of tokens for each sample, got the columns {', '.join(columns)}."
        raise UsageError(what, field="pack", hint="tarmac tokenize --interleave makes one sequence.")
    return {name: columns[name] for name in (TOKENS, MODALITY) if name in columns}
