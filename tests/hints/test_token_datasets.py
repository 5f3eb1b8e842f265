"""Hints of token datasets, packing and joins."""

from __future__ import annotations

import pytest

import tarmac
from harness.hints import follows, hinted
from tokens.datasets import write_tokens
from tokens.models import caption
from tools.shards import make

pytestmark = pytest.mark.usefixtures("home")
ROWS = [[[1, 2, 3], [4, 5], [6]]]


@pytest.fixture
def tokens(tmp_path):
    return tarmac.Tokens(write_tokens(tmp_path / "t", ROWS))


@follows("tarmac.Tokens(MANIFEST) reads tokens.", "tarmac.Dataset reads it.")
def test_manifests_of_tokens_and_of_samples(tmp_path, tokens):
    manifest = str(tmp_path / "t" / "tokens.json")
    with hinted("tarmac.Tokens(MANIFEST) reads tokens."):
        tarmac.Dataset(manifest)[0]
    assert tarmac.Tokens(manifest)[2]["tokens"].tolist() == [6]
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


@follows("tarmac tokenize --interleave makes one sequence.")
def test_columns_of_texts_and_images(tmp_path):
    from tokens import models

    with tarmac.TarWriter("in.tar") as writer:
        for number in range(3):
            writer.write({"__key__": str(number), "0.txt": caption(number), "1.txt": caption(number + 1)})
    options = {"tokenizer": f"{models.__file__}:Letters", "image_tokenizer": f"{models.__file__}:Nothing"}
    options |= {"jobs": 1, "image_vocab_size": 9}
    paired = {"text": "0.txt", "image": "1.txt", **options}
    with pytest.raises(tarmac.errors.UsageError):
        tarmac.tokenize("in.tar", "pairs", **paired)
    tarmac.tokenize("in.tar", "sequence", interleave="0.txt,1.txt", tokenizer=options["tokenizer"], jobs=1)
    tarmac.combine("sequence", "tokens")
    assert len(tarmac.Tokens("tokens").pack(2048)) == 1


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
