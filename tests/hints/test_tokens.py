"""Hints of tokenizing."""

from __future__ import annotations

from pathlib import Path

import pytest

import tarmac
from harness.hints import follows, hinted
from tarmac.tokens.info import TokenInfo
from tarmac.tools.mappers.records import FIELD, from_arrow
from tokens import models
from tools.shards import make

pytestmark = pytest.mark.usefixtures("home")
MODELS = str(Path(models.__file__))


@pytest.fixture
def shards(tmp_path):
    """A shard of three samples."""
    return make(tmp_path, 3)


@follows("`vocab_size`, if it returns tokens.")
def test_functions_that_return_tokens(shards):
    def letters(samples):
        return [list(sample["txt"]) for sample in samples]

    with hinted("`vocab_size`, if it returns tokens."):
        tarmac.tokenize(shards, "out", mapper=letters, jobs=1)
    assert tarmac.tokenize(shards, "out", mapper=letters, vocab_size=256, jobs=1).written == 3


@follows("`vocab_size` with that number.", "`image_vocab_size` with that number.")
def test_vocabularies_of_unknown_size(shards):
    silent = f"{MODELS}:Silent"
    with hinted("`vocab_size` with that number."):
        tarmac.tokenize(shards, "out", text="txt", tokenizer=silent, jobs=1)
    assert tarmac.tokenize(shards, "out", text="txt", tokenizer=silent, vocab_size=256, jobs=1).written == 3
    with hinted("`image_vocab_size` with that number."):
        tarmac.tokenize(shards, "out2", image="txt", image_tokenizer=silent, jobs=1)
    assert tarmac.tokenize(
        shards, "out2", image="txt", image_tokenizer=silent, image_vocab_size=9, dry_run=True
    )


@follows("tarmac tokenize writes tokens.")
def test_records_that_are_not_tokens(shards):
    from tarmac.tools.mappers.contract import Column
    from tarmac.tools.mappers.records import Schema

    with hinted("tarmac tokenize writes tokens."):
        TokenInfo.of(Schema({"x": Column("uint8")}))
    tarmac.tokenize(shards, "out", text="txt", tokenizer=f"{MODELS}:Letters", jobs=1)
    record = from_arrow(next(iter(tarmac.read(f"out/{Path(shards[0]).name}")))[FIELD])
    assert TokenInfo.of(record.schema).vocab_size == 256
