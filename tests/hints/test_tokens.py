"""Hints of tokenizing."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import tarmac
from harness.hints import follows, hinted
from tarmac.tokens.info import TokenInfo
from tarmac.tools.mappers.records import FIELD, from_arrow
from tokens import models
from tokens.parts import some_parts, stored, write_parts
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


@follows("the file itself.", "plain shards.")
def test_shards_that_are_streams(shards):
    options = {"text": "txt", "tokenizer": f"{MODELS}:Letters", "jobs": 1}
    with hinted("the file itself."):
        tarmac.tokenize("-", "out", **options)
    Path("in.tar.gz").write_bytes(gzip.compress(Path(shards[0]).read_bytes()))
    with hinted("plain shards."):
        tarmac.tokenize("in.tar.gz", "out", limit=2, **options)
    assert tarmac.tokenize(shards, "out", limit=2, **options).written == 2


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


@follows(
    "tokenizers.Tokenizer.from_pretrained(NAME).save(FILE) writes the file of a tokenizer of Hugging Face."
)
def test_names_of_tokenizers(tmp_path, shards):
    tokenizers = pytest.importorskip("tokenizers")
    models.train_tokenizer(tmp_path / "trained.json")
    with hinted(
        "tokenizers.Tokenizer.from_pretrained(NAME).save(FILE) writes the file of a tokenizer of Hugging Face."
    ):
        tarmac.tokenize(shards, "out", text="txt", tokenizer="gpt2", jobs=1)
    assert callable(
        tokenizers.Tokenizer.from_pretrained
    )  # needs the network; what it returns is saved like this one
    tokenizers.Tokenizer.from_file("trained.json").save("saved.json")
    assert tarmac.tokenize(shards, "out", text="txt", tokenizer="saved.json", jobs=1).written == 3


@follows("`{}`, if the vocabulary is larger.", "tarmac show lists the fields.")
def test_samples_that_fail(shards):
    beyond = f"{MODELS}:Beyond"
    with hinted("`{}`, if the vocabulary is larger."):
        tarmac.tokenize(shards, "out", text="txt", tokenizer=beyond, jobs=1)
    assert tarmac.tokenize(shards, "out2", text="txt", tokenizer=beyond, vocab_size=256, jobs=1).written == 3
    with hinted("tarmac show lists the fields."):
        tarmac.tokenize(shards, "out", text="caption", tokenizer=f"{MODELS}:Letters", jobs=1)
    assert "txt" in next(tarmac.show(shards)).sizes


@follows("tarmac tokenize writes tokens.")
def test_records_that_are_not_tokens(shards):
    from tarmac.tools.mappers.contract import Column
    from tarmac.tools.mappers.records import Schema

    with hinted("tarmac tokenize writes tokens."):
        TokenInfo.of(Schema({"x": Column("uint8")}))
    tarmac.tokenize(shards, "out", text="txt", tokenizer=f"{MODELS}:Letters", jobs=1)
    record = from_arrow(next(iter(tarmac.read(f"out/{Path(shards[0]).name}")))[FIELD])
    assert TokenInfo.of(record.schema).vocab_size == 256


@follows(
    "{}/, where each part has the name of its shard.",
    "an output for the shards of each directory; tarmac.Mix reads several together.",
    "`only`: one split after the other, each with its output.",
)
def test_where_parts_go(tmp_path, shards):
    letters = {"text": "txt", "tokenizer": f"{MODELS}:Letters", "jobs": 1}
    with hinted("{}/, where each part has the name of its shard."):
        tarmac.tokenize(shards, "out/{i:06d}.tar", **letters)
    (tmp_path / "other").mkdir()
    other = make(tmp_path / "other", 3)
    with hinted("an output for the shards of each directory; tarmac.Mix reads several together."):
        tarmac.tokenize([*shards, *other], "out", **letters)
    for number, some in enumerate((shards, other)):
        tarmac.tokenize(some, f"t{number}", **letters)
        tarmac.combine(f"t{number}", jobs=1)
    mix = tarmac.Mix([tarmac.Tokens(f"t{number}/combined") for number in range(2)])
    assert len(tarmac.Loader(mix, 1)) == 6
    halves = {"split": {"a": 0.5, "b": 0.5}}
    with hinted("`only`: one split after the other, each with its output."):
        tarmac.tokenize(shards, "out", **letters, **halves)
    reports = [tarmac.tokenize(shards, name, **letters, **halves, only=name) for name in "ab"]
    assert sum(report.written for report in reports) == 3


@pytest.fixture
def tokens(tmp_path):
    """The parts of a finished job."""
    return write_parts(tmp_path, some_parts(2, 9))


@follows("the directory that tarmac tokenize wrote to.", "`move` replaces the parts.")
def test_directories_to_combine(tmp_path, tokens):
    with hinted("the directory that tarmac tokenize wrote to."):
        tarmac.combine(tmp_path, jobs=1)
    with hinted("`move` replaces the parts."):
        tarmac.combine(tokens, tokens, jobs=1)
    assert tarmac.combine(tokens, move=True, jobs=1).written == len(stored(tokens)) == 18


@follows(
    "run tarmac tokenize again: it writes what is missing.",
    "run tarmac tokenize again: it writes the part again.",
    "move it to another directory.",
)
def test_parts_that_are_not_those_of_the_job(tmp_path, tokens):
    (tokens / "in-000.tar").unlink()
    with hinted("run tarmac tokenize again: it writes what is missing."):
        tarmac.combine(tokens, jobs=1)
    write_parts(tmp_path, some_parts(2, 9))
    (tokens / "in-000.tar").write_bytes((tokens / "in-001.tar").read_bytes())
    with hinted("run tarmac tokenize again: it writes the part again."):
        tarmac.combine(tokens, jobs=1)
    write_parts(tmp_path, some_parts(2, 9))
    (tokens / "other.tar").write_bytes((tokens / "in-001.tar").read_bytes())
    with hinted("move it to another directory."):
        tarmac.combine(tokens, jobs=1)
    (tokens / "other.tar").rename(tmp_path / "other.tar")
    assert tarmac.combine(tokens, jobs=1).written == 18


@follows(
    "run tarmac tokenize again, which does the rest; or `partial` for what is finished.", "`partial` alone."
)
def test_jobs_that_are_not_finished(tmp_path):
    shards = make(tmp_path, 3, 3)

    def tokenize():
        return tarmac.tokenize(shards, "t", text="txt", tokenizer=f"{MODELS}:Letters", jobs=1)

    tokenize()
    (tmp_path / "t" / "in-1.tar").unlink()
    for entry in (tmp_path / "t" / ".tarmac").rglob("*.jsonl"):
        lines = entry.read_text().splitlines(keepends=True)
        entry.write_text("".join(line for line in lines if "in-1.tar" not in line))
    hint = "run tarmac tokenize again, which does the rest; or `partial` for what is finished."
    with hinted(hint):
        tarmac.combine("t", jobs=1)
    with hinted("`partial` alone."):
        tarmac.combine("t", partial=True, delete_parts=True, jobs=1)
    assert tarmac.combine("t", "some", partial=True, jobs=1).written == 3
    tokenize()
    assert tarmac.combine("t", jobs=1).written == 6


@follows("the options of that run.", "`block_size` {}.", "a directory of this machine as `output`.")
def test_options_of_combine(tokens):
    with hinted("a directory of this machine as `output`."):
        tarmac.combine(tokens, "s3://bucket/out", format="npy", jobs=1)
    assert tarmac.combine(tokens, "npy", format="npy", jobs=1).written == 18
    with hinted("`block_size` {}."):
        tarmac.combine(tokens, "out", format="npy", block_size=2, jobs=1)
    longest = max(len(row["tokens"]) for _, row in stored(tokens))
    options = {"format": "npy", "block_size": longest, "jobs": 1}
    assert tarmac.combine(tokens, "out", delete_parts=True, **options).written == 18
    with hinted("the options of that run."):
        tarmac.combine(tokens, "out", format="megatron", jobs=1)
    assert tarmac.combine(tokens, "out", **options).kept == 1
