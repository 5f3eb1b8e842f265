"""Tokens as a dataset: the rows that were written, in exact epochs, packed or not."""

from __future__ import annotations

import json
import pickle
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness import rounds
from harness.folder import folder
from harness.resume import assert_resumes
from tarmac.errors import (
    BadCondition,
    BadManifest,
    IndexingError,
    IndexStale,
    MissingField,
    StateMismatch,
    UsageError,
)
from tokens.datasets import write_tokens
from tokens.parts import write_parts
from tools.shards import make


def rows_of(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [[rng.integers(0, 50_000, length).tolist() for length in shard] for shard in lengths]


ROWS = rows_of([[5, 0, 17, 3, 40, 8, 8, 1], [9, 9, 30, 2], [64, 1, 1, 1, 1, 20, 6]])
FLAT = [row for shard in ROWS for row in shard]


@pytest.fixture
def tokens(tmp_path):
    return tarmac.Tokens(write_tokens(tmp_path / "t", ROWS))


@pytest.fixture
def sequences(tmp_path):
    """Sequences that `combine` has written."""
    parts, number = [], 0
    for shard in ROWS:
        parts.append([(f"{number + row:06d}", tokens) for row, tokens in enumerate(shard)])
        number += len(shard)
    tarmac.combine(
        write_parts(tmp_path / "parts", parts), tmp_path / "sequences", pack=32, max_rows=3, jobs=1
    )
    return tarmac.Tokens(tmp_path / "sequences")


def documents(batch):
    """The documents of packed sequences."""
    for tokens, ids in zip(batch["tokens"], batch["segment_ids"], strict=True):
        for number in range(1, ids.max() + 1):
            yield tokens[ids == number].tolist()


def test_rows_by_number_and_key(tokens):
    assert len(tokens) == len(FLAT)
    assert [row["tokens"].tolist() for row in tokens] == FLAT
    assert tokens["000002"]["tokens"].tolist() == FLAT[2]
    assert tokens[2]["tokens"].dtype == np.int64
    assert list(tokens.keys()) == [f"{number:06d}" for number in range(len(FLAT))]
    assert (tokens.info.vocab_size, tokens.schema.columns["tokens"].dtype) == (50_000, "uint16")


def test_conditions_on_the_length(tokens):
    assert [row["tokens"].tolist() for row in tokens.where("length >= 9")] == [r for r in FLAT if len(r) >= 9]


def test_conditions_on_columns_that_rows_do_not_have(tokens):
    for data, available in ((tokens, "key, tokens.length"), (tokens.pack(32), "key,")):
        with pytest.raises(BadCondition, match=f'no column "width"; available: {available}') as caught:
            data.where("width > 3")
        assert "tarmac index" not in (caught.value.hint or "")  # would index records, not rows


def test_batches_are_padded_to_the_longest_row(tokens):
    for batch in tarmac.Loader(tokens, 4, tail="short"):
        assert batch["tokens"].shape[1] == batch["mask"].sum(1).max()
        for key, row, mask in zip(batch["__key__"], batch["tokens"], batch["mask"], strict=True):
            assert row[mask].tolist() == FLAT[int(key)]
            assert not row[~mask].any()


@pytest.mark.parametrize(("given", "size"), [({}, 10), ({"length": 4}, 4), ({"length": 90}, 90)])
def test_blocks(tmp_path, given, size):
    source = write_tokens(tmp_path / "t", ROWS, block_size=10, pad_token=7)
    tokens = tarmac.Tokens(source, **given)
    (batch,) = tarmac.Loader(tokens, len(FLAT), shuffle=False)
    assert batch["tokens"].shape == batch["mask"].shape == (len(FLAT), size)
    for row, mask, stored in zip(batch["tokens"], batch["mask"], FLAT, strict=True):
        assert row[mask].tolist() == stored[:size]
        assert (row[~mask] == 7).all()
    assert tarmac.Tokens(source, length=None)[0]["tokens"].shape == (5,)


def test_one_by_one_as_in_a_batch(tmp_path):
    tokens = tarmac.Tokens(write_tokens(tmp_path / "t", ROWS, block_size=64))
    for data in (tokens, tokens.pack(64), tokens.pack(64, across_documents=True)):
        fast, slow = (tarmac.Loader(each, 4, seed=3) for each in (data, data.map(lambda row: row)))
        for one, other in zip(fast, slow, strict=True):
            assert one.keys() == other.keys()
            assert all(np.array_equal(one[name], other[name]) for name in one)


def test_image_tokens_are_shifted(tmp_path):
    info = {"image_token_shift": 40_000, "image_vocab_size": 50_000, "vocab_size": 40_000}
    tokens = tarmac.Tokens(write_tokens(tmp_path / "t", ROWS, modality=True, **info))
    for row, stored in zip(tokens, FLAT, strict=True):
        assert row["tokens"].tolist() == [token + 40_000 * (token % 2) for token in stored]
        assert row["modality"].tolist() == [token % 2 for token in stored]
    packed = [row for batch in tarmac.Loader(tokens, 2, pack=64, tail="short") for row in documents(batch)]
    assert sorted(packed) == sorted(row["tokens"].tolist() for row in tokens if len(row["tokens"]))
    only = tarmac.Tokens(write_tokens(tmp_path / "i", ROWS, **(info | {"vocab_size": 0})), length=20)
    assert only[0]["tokens"].tolist() == [token + 40_000 for token in FLAT[0]] + [0] * 15
    with pytest.raises(UsageError, match="89999"):
        tarmac.Tokens(f"{tmp_path}/t", dtype="uint16")


@settings(max_examples=rounds(60), deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=20), min_size=1, max_size=3),
    size=st.integers(1, 40),
    across=st.booleans(),
    batch=st.integers(1, 5),
    ranks=st.integers(1, 3),
)
def test_sequences_hold_every_document_once(lengths, size, across, batch, ranks):
    rows = rows_of(lengths)
    with tempfile.TemporaryDirectory() as directory:
        tokens = tarmac.Tokens(write_tokens(Path(directory) / "t", rows))
        packed = tokens.pack(size, across_documents=across)
        if not len(packed):
            assert not any(map(any, lengths))
            return
        present = []
        for rank in range(ranks):
            loader = tarmac.Loader(packed, batch, tail="short", rank=rank, world_size=ranks)
            for step in loader:
                assert step["tokens"].shape[1] == size
                present += documents(step)
                for ids, positions in zip(step["segment_ids"], step["positions"], strict=True):
                    for number in range(1, ids.max() + 1):
                        assert positions[ids == number].tolist() == list(range((ids == number).sum()))
        flat = [row for shard in rows for row in shard if row]
        assert sorted(token for row in present for token in row) == sorted(t for row in flat for t in row)
        if not across and max(map(len, flat)) <= size:
            assert sorted(present) == sorted(flat)


def test_resume_at_every_step(tokens, sequences):
    for data in (tokens, tokens.pack(32), tokens.pack(16, across_documents=True), sequences):

        def loader(data=data):
            return Comparable(tarmac.Loader(data, 2, seed=5, tail="short"))

        assert assert_resumes(loader) >= 5


class Comparable:
    """A loader whose batches are lists."""

    def __init__(self, loader):
        self.loader = loader
        self.state_dict, self.load_state_dict = loader.state_dict, loader.load_state_dict

    def __iter__(self):
        for batch in self.loader:
            yield {name: np.asarray(values).tolist() for name, values in batch.items()}


@pytest.mark.parametrize("kind", ["rows", "packed on the fly", "packed before"])
def test_resume_on_other_numbers_of_ranks(tokens, sequences, kind):
    """Stopped after any step on one number of ranks, the epoch continues on another without loss or repetition."""
    data, pack = sequences if kind == "packed before" else tokens, 32 if kind == "packed on the fly" else None
    key = (lambda batch: batch["__key__"]) if kind == "rows" else (lambda batch: batch["tokens"].tolist())

    def epoch(ranks, state=None, steps=None):
        """The rows of each rank, and the state after some steps."""
        rows, states = [], []
        for rank in range(ranks):
            loader = tarmac.Loader(data, 1, pack=pack, seed=1, tail="short", rank=rank, world_size=ranks)
            if state is not None:
                loader.load_state_dict(state)
            for step, batch in enumerate(loader):
                if step == steps:
                    break
                rows += key(batch)
                states.append(loader.state_dict())
        return rows, states[steps - 1 if steps else -1]

    whole = sorted(epoch(1)[0])
    for before in (1, 2, 3):
        for after in (1, 2, 4):
            for steps in range(1, len(whole) // before):
                first, state = epoch(before, steps=steps)
                assert sorted(first + epoch(after, state)[0]) == whole


def test_a_state_of_other_sequences_is_refused(tokens):
    state = tarmac.Loader(tokens, 1, pack=32).state_dict()
    for other in (tokens, tokens.pack(33), tokens.pack(32, across_documents=True)):
        with pytest.raises(StateMismatch):
            tarmac.Loader(other, 1).load_state_dict(state)
    tarmac.Loader(tokens.pack(32), 1).load_state_dict(state)


def test_mixtures(tmp_path, tokens):
    other = tarmac.Tokens(write_tokens(tmp_path / "other", rows_of([[3, 4, 5] * 5], seed=1)))
    for a, b in ((tokens, other), (tokens.pack(32), other.pack(32))):
        mix = tarmac.Mix([(a, 0.5), (b, 0.5)], samples=20)
        assert sum(len(batch["tokens"]) for batch in tarmac.Loader(mix, 4)) == 20
    with pytest.raises(UsageError, match="Mix"):
        tarmac.Loader(tarmac.Mix([tokens, other]), 4, pack=32)


def test_selections_are_packed(tokens):
    chosen = tokens.where("length >= 5")[::2]
    expected = sorted(row for row in [r for r in FLAT if len(r) >= 5][::2])
    present = [row for batch in tarmac.Loader(chosen, 1, pack=64) for row in documents(batch)]
    assert sorted(present) == expected


@pytest.mark.processes
def test_worker_processes(tokens):
    expected = [batch["tokens"].tolist() for batch in tarmac.Loader(tokens, 2, pack=32, seed=2)]
    for method in ("fork", "spawn"):
        with tarmac.Loader(tokens, 2, pack=32, seed=2, processes=2, start_method=method) as loader:
            assert [batch["tokens"].tolist() for batch in loader] == expected
    copy = pickle.loads(pickle.dumps(tokens.pack(32)))
    assert [row["tokens"].tolist() for row in copy] == [row["tokens"].tolist() for row in tokens.pack(32)]


@pytest.mark.processes
@pytest.mark.parametrize("cached", [False, True])
def test_remote_tokens(tmp_path, tokens, cached):
    with folder(tmp_path) as url:
        cache = tarmac.Cache(tmp_path / "cache") if cached else None
        remote = tarmac.Tokens(f"{url}/t", cache=cache)
        for pack in (None, 32):
            expected = [batch["tokens"].tolist() for batch in tarmac.Loader(tokens, 3, pack=pack)]
            with tarmac.Loader(remote, 3, pack=pack) as loader:
                assert [batch["tokens"].tolist() for batch in loader] == expected
        remote.close()


def test_copies_and_rewritten_shards(tmp_path, tokens):
    shutil.copytree(tmp_path / "t", tmp_path / "copy", copy_function=shutil.copyfile)
    assert [row["tokens"].tolist() for row in tarmac.Tokens(tmp_path / "copy")] == FLAT
    shard = tmp_path / "copy" / "tokens-000001.tar"
    content = bytearray(shard.read_bytes())
    content[600] ^= 1
    shard.write_bytes(content)
    with pytest.raises(IndexStale):
        tarmac.Tokens(tmp_path / "copy")["000010"]


def test_torch(tokens):
    torch = pytest.importorskip("torch")
    batch = next(iter(tarmac.Loader(tokens, 4, pack=32, to="torch")))
    assert batch["tokens"].dtype == torch.int64
    assert batch["tokens"].shape == batch["segment_ids"].shape == (4, 32)


def test_join_with_images(tmp_path):
    (images,) = make(tmp_path, 12)
    data = tarmac.Dataset(images)
    keys = list(data.keys())
    stored = rows_of([[4] * 10])
    source = write_tokens(tmp_path / "t", stored)
    rekeyed = tarmac.Dataset(images).map(lambda sample: sample)
    tokens = tarmac.Tokens(source)
    with pytest.raises(UsageError, match="10 of 10 samples"):
        tokens.join(rekeyed)
    names = {f"{number:06d}": keys[number] for number in range(10)}
    tarmac.copy(images, f"{tmp_path}/new.tar", rekey="{i:06d}")
    both = tokens.join(f"{tmp_path}/new.tar")
    assert len(both) == 10
    for row in both:
        assert row["tokens"].tolist() == stored[0][int(row["__key__"])]
        assert row["txt"] == data[names[row["__key__"]]]["txt"]
    for batch in tarmac.Loader(both, 5):
        assert batch["tokens"].shape == (5, 4)
        assert len(batch["txt"]) == 5
    back = tarmac.Dataset(f"{tmp_path}/new.tar")
    with pytest.raises(UsageError, match="2 of 12 samples"):
        back.join(tokens)
    assert len(back.join(tokens, missing="drop")) == 10


def test_samples_that_cannot_be_joined(tmp_path):
    (one,) = make(tmp_path, 3)
    data = tarmac.Dataset(one)
    with pytest.raises(tarmac.errors.DuplicateField, match="cls"):
        data.join(one)[0]
    with pytest.raises(MissingField, match="tuple"):
        data.join(data.to_tuple("txt"))[0]
    with pytest.raises(UsageError):
        data.join(one, missing="ignore")


def test_packing_needs_one_sequence(tmp_path, tokens):
    with pytest.raises(UsageError, match="other steps"):
        tokens.map(lambda row: row).pack(8)
    with pytest.raises(UsageError, match="packed already"):
        tokens.pack(8).pack(8)
    (samples,) = make(tmp_path, 3)
    with pytest.raises(UsageError, match="expected tokens"):
        tarmac.Loader(tarmac.Dataset(samples), 1, pack=8)
    for size in (0, 8.0, "8"):
        with pytest.raises(UsageError):
            tokens.pack(size)
    assert len(tokens.pack(np.int64(8))) == len(tokens.pack(8))


def test_other_sources(tmp_path, tokens):
    (samples,) = make(tmp_path, 3)
    tarmac.index(samples, f"{tmp_path}/samples.json")
    with pytest.raises(BadManifest, match="not of records"):
        tarmac.Tokens(f"{tmp_path}/samples.json")
    with pytest.raises(IndexingError, match="rows of records"):
        tarmac.Dataset(f"{tmp_path}/t/tokens.json")[0]
    for length in (0, "8", 8.5):
        with pytest.raises(UsageError):
            tarmac.Tokens(tmp_path / "t", length=length)
    with pytest.raises(UsageError, match="an empty name"):
        tarmac.Tokens("")
    for dtype in ("float32", "int8", "nothing"):
        with pytest.raises(UsageError, match="49999"):
            tarmac.Tokens(tmp_path / "t", dtype=dtype)
    with pytest.raises(UsageError, match="'8'"):
        tarmac.Loader(tokens, 1, pack="8")
    assert repr(tokens).startswith("<Tokens: 19 samples in 3 shards; fields tokens;")
    assert "sequences of 64 tokens" in repr(tokens.pack(64))
    with pytest.raises(FileNotFoundError):
        tarmac.Tokens(tmp_path / "missing")


def test_check_compares_the_index_of_rows(tmp_path, tokens):
    manifest = tmp_path / "t" / "tokens.json"
    assert tarmac.check(str(manifest)).ok
    other = write_tokens(
        tmp_path / "other", rows_of([[5, 0, 17, 3, 40, 8, 7, 2], [9, 9, 30, 2], [64] + [1] * 6])
    )
    shutil.copyfile(f"{other}/tokens-000000.tar", tmp_path / "t/tokens-000000.tar")
    report = tarmac.check(str(manifest))
    assert not report.ok
    content = json.loads(manifest.read_text())
    content["shardlist"][0]["nsamples"] += 1
    manifest.write_text(json.dumps(content))
    assert not tarmac.check(str(manifest)).ok
