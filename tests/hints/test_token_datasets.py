"""Hints of token datasets, packing and joins."""

from __future__ import annotations

import numpy as np
import pytest

import tarmac
from harness.hints import follows, hinted
from hints.commands import done
from tarmac.errors import MismatchedBatch
from tarmac.tools.mappers import Column
from tokens import models
from tokens.datasets import write_tokens
from tokens.models import caption
from tools.shards import make

pytestmark = pytest.mark.usefixtures("home")
ROWS = [[[1, 2, 3], [4, 5], [6]]]


@pytest.fixture
def tokens(tmp_path):
    return tarmac.Tokens(write_tokens(tmp_path / "t", ROWS))


@follows("tarmac.Tokens(MANIFEST) reads tokens.", "tarmac.Dataset reads it.", "tarmac.Tokens({}).")
def test_manifests_of_tokens_and_of_samples(tmp_path, tokens):
    manifest = str(tmp_path / "t" / "tokens.json")
    with hinted("tarmac.Tokens(MANIFEST) reads tokens."):
        tarmac.Dataset(manifest)[0]
    assert tarmac.Tokens(manifest)[2]["tokens"].tolist() == [6]
    with hinted("tarmac.Tokens({})."):
        tarmac.Tokens("t/tokens-000000.tar")
    assert len(tarmac.Tokens("t")) == 3
    tarmac.index(make(tmp_path, 2), "m.json")
    with hinted("tarmac.Dataset reads it."):
        tarmac.Tokens("m.json")
    assert len(tarmac.Dataset("m.json")) == 2


@follows("tokens.pack(2048).map(f)", "tarmac.Tokens(DIR); in a Mix, tokens.pack(2048) for each dataset.")
def test_what_can_be_packed(tmp_path, tokens):
    def f(row):
        return row["tokens"]

    with hinted("tokens.pack(2048).map(f)"):
        tokens.map(f).pack(2048)
    assert tokens.pack(2048).map(f)[0].tolist()[:6] == [1, 2, 3, 4, 5, 6]
    hint = "tarmac.Tokens(DIR); in a Mix, tokens.pack(2048) for each dataset."
    with hinted(hint):
        tarmac.Loader(tarmac.Dataset(make(tmp_path, 2)), 1, pack=2048)
    assert len(tarmac.Loader(tarmac.Tokens("t"), 1, pack=2048)) == 1
    with hinted(hint):
        tarmac.Loader(tarmac.Mix([tokens, tokens]), 1, pack=2048)
    assert len(tarmac.Loader(tarmac.Mix([tokens.pack(2048), tokens.pack(2048)]), 1)) == 2


@follows("tokens.where(CONDITION).pack(SIZE).")
def test_conditions_on_sequences(tokens):
    with hinted("tokens.where(CONDITION).pack(SIZE)."):
        tokens.pack(8).where("length > 1")
    assert tokens.where("length > 1").pack(8)[0]["tokens"].tolist() == [1, 2, 3, 4, 5, 0, 0, 0]


@follows(
    "pad or cut to one length in a map(), or tokens with tarmac.Tokens(DIR, length=n), use "
    "Loader(collate=list), or replace a few odd samples with Loader(max_bad_samples=n)."
)
def test_joined_rows_of_different_lengths(tokens):
    hint = "pad or cut to one length in a map(), or tokens with tarmac.Tokens(DIR, length=n), use "
    hint += "Loader(collate=list), or replace a few odd samples with Loader(max_bad_samples=n)."
    with tarmac.TarWriter("others.tar") as writer:
        for number in range(3):
            writer.write({"__key__": f"{number:06d}", "cls": number})
    joined = tokens.join("others.tar")
    with tarmac.Loader(joined, 3) as loader, hinted(hint, MismatchedBatch):
        list(loader)
    fixed = tarmac.Tokens("t", length=3).join("others.tar")
    cut = joined.map(lambda row: {"tokens": row["tokens"][:1], "cls": row["cls"]})
    for data, shape in ((fixed, (3, 3)), (cut, (3, 1))):
        (batch,) = tarmac.Loader(data, 3)
        assert (batch["tokens"].shape, len(batch["cls"])) == (shape, 3)
    (batch,) = tarmac.Loader(joined, 3, collate=list)
    assert len(batch) == 3
    (batch,) = tarmac.Loader(joined, 3, max_bad_samples=2)
    assert len(batch["cls"]) == 3


class Pairs(tarmac.Mapper):
    """Gives texts and images columns of their own."""

    outputs = {"text": Column("uint16", (None,)), "image": Column("uint16", (None,))}

    def __call__(self, batch):
        return {name: [[1, 2]] * len(batch) for name in self.outputs}


class Numbers(tarmac.Mapper):
    """Gives single numbers alone."""

    outputs = {"number": Column("uint16")}

    def __call__(self, batch):
        return {"number": [1] * len(batch)}


@follows(
    'tarmac.tools.mappers.Column("uint16", (None,)), for example.',
    '`format`="npy" writes an array for each column.',
)
def test_columns_of_mappers(tmp_path):
    class Wrong(Numbers):
        outputs = {"number": "uint16"}

    class Right(Numbers):
        outputs = {"number": tarmac.tools.mappers.Column("uint16", (None,))}

        def __call__(self, batch):
            return {"number": [[1]] * len(batch)}

    shards = make(tmp_path, 3)
    with hinted('tarmac.tools.mappers.Column("uint16", (None,)), for example.'):
        tarmac.tokenize(shards, "right", mapper=Wrong, jobs=1)
    assert tarmac.tokenize(shards, "right", mapper=Right, jobs=1).written == 3
    tarmac.tokenize(shards, "numbers", mapper=Numbers, jobs=1)
    with hinted('`format`="npy" writes an array for each column.'):
        tarmac.combine("numbers", jobs=1)
    tarmac.combine("numbers", format="npy", jobs=1)
    assert np.load("numbers/combined/number.npy").tolist() == [1, 1, 1]


@follows(
    "tarmac tokenize --interleave makes one sequence.",
    "tarmac combine DIR, where DIR is the output of tarmac tokenize.",
)
def test_columns_of_texts_and_images(capsys):
    with tarmac.TarWriter("in.tar") as writer:
        for number in range(3):
            writer.write({"__key__": str(number), "0.txt": caption(number), "1.txt": caption(number + 1)})
    tarmac.tokenize("in.tar", "pairs", mapper=Pairs, vocab_size=9, jobs=1)
    with hinted("tarmac combine DIR, where DIR is the output of tarmac tokenize."):
        tarmac.Tokens("pairs")
    done(capsys, "combine", "pairs")
    with hinted("tarmac tokenize --interleave makes one sequence."):
        tarmac.Tokens("pairs/combined").pack(2048)
    tokenizer = f"{models.__file__}:Letters"
    done(capsys, "tokenize", "in.tar", "-o", "one", "--interleave", "0.txt,1.txt", "--tokenizer", tokenizer)
    done(capsys, "combine", "one")
    assert len(tarmac.Tokens("one/combined").pack(2048)) == 1


@follows('missing="drop" leaves them out.', "both need the same keys; see ds.keys().")
def test_samples_without_counterpart(tmp_path, tokens):
    with tarmac.TarWriter("some.tar") as writer:
        for number in (0, 2):
            writer.write({"__key__": f"{number:06d}", "cls": number})
    with hinted('missing="drop" leaves them out.'):
        tokens.join("some.tar")
    assert list(tokens.join("some.tar", missing="drop").keys()) == ["000000", "000002"]
    (other,) = make(tmp_path, 3)
    with hinted("both need the same keys; see ds.keys()."):
        tokens.join(other)
    tarmac.copy(other, "new.tar", rekey="{i:06d}")
    assert list(tokens.join("new.tar").keys()) == list(tokens.keys())
