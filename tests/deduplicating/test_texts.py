"""Deduplicate texts: equal after normalisation, and near by the overlap of their pieces."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tarmac
from deduplicating.vectors import write
from tarmac.deduplicating import minhash, shingles
from tarmac.deduplicating.pairs import read_pairs
from tarmac.deduplicating.why import why
from tarmac.errors import JobMismatch, LimitExceeded, UsageError

WORDS = [
    a + b for a in ("ba", "ko", "li", "mu", "ne", "ra", "so", "ti") for b in ("n", "rel", "st", "va", "x")
]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shard(name, samples, start=0):
    with tarmac.TarWriter(name) as writer:
        for number, sample in enumerate(samples, start):
            fields = sample if isinstance(sample, dict) else {"txt": sample}
            writer.write({"__key__": f"{number:06d}"} | fields)
    return name


def kept(path):
    return Path(path).read_text().split()


def pieces(text, size=5):
    plain = " ".join(text.casefold().split())
    return {plain[at : at + size] for at in range(max(len(plain) - size + 1, 1))}


def jaccard(one, other):
    return len(one & other) / len(one | other)


def captions(count, seed=0):
    """Captions, and in every second place one with some words changed."""
    rng = random.Random(seed)
    texts = []
    for number in range(count):
        words = rng.choices(WORDS, k=rng.randint(8, 25))
        if number % 2:
            words = texts[-1].split()
            for _ in range(rng.randint(0, 3)):
                words[rng.randrange(len(words))] = rng.choice(WORDS)
        texts.append(" ".join(words))
    return texts


@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_pairs_of_exact_jaccard_are_found(home, threshold):
    texts = captions(600)
    shard("x.tar", texts)
    tarmac.dedup("x.tar", "keep.txt", text="txt", threshold=threshold)
    pairs = read_pairs("keep.txt.dedup/pairs.parquet")
    sets = list(map(pieces, texts))
    expected = {
        (one, other): jaccard(sets[one], sets[other])
        for one in range(len(texts))
        for other in range(one + 1, len(texts))
        if jaccard(sets[one], sets[other]) >= threshold
    }
    results = dict(
        zip(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True), pairs.score, strict=True)
    )
    assert len(expected) > 150
    assert results.keys() <= expected.keys()
    assert len(results) >= 0.99 * len(expected)
    assert all(abs(score - expected[pair]) < 1e-6 for pair, score in results.items())


def test_equal_texts(home):
    texts = ["A red  car.", "a RED car.", "ａ red car.", "a blue bird sings", "", "  ", "a red car!"]
    shard("x.tar", [*texts, {"cls": "1"}])
    report = tarmac.dedup("x.tar", "keep.txt", text="txt", threshold=1.0)
    assert (report.exact, report.near, report.unusable) == (2, 0, 3)
    assert kept("keep.txt") == ["000000", *(f"{number:06d}" for number in range(3, 8))]


def test_which_text_stays(home):
    long = "the quick brown fox jumps over the lazy dog near the river"
    samples = [
        {"txt": long[:-1], "json": '{"q": 3}'}, {"txt": f"{long}s", "json": '{"q": 1}'}, {"txt": long, "json": "{}"},
    ]  # fmt: skip
    shard("x.tar", samples)
    for options, stays in (({}, 0), ({"keep": "largest"}, 1), ({"score": "json.q"}, 0)):
        tarmac.dedup("x.tar", "keep.txt", text="txt", **options)
        assert kept("keep.txt") == [f"{stays:06d}"]
    with pytest.raises(UsageError, match=r"no sample has 'json\.z'"):
        tarmac.dedup("x.tar", "keep.txt", text="txt", score="json.z")
    shard("words.tar", [{"txt": "a", "json": '{"q": "b"}'}])
    with pytest.raises(UsageError, match="expected a number"):
        tarmac.dedup("words.tar", "words.txt", text="txt", score="json.q")


def test_leakage_of_texts(home):
    texts = captions(40)
    shard("train.tar", texts)
    shard("test.tar", [texts[4], f"{texts[9]} x"])
    report = tarmac.dedup("train.tar", "keep.txt", text="txt", against="test.tar")
    assert {"000004", "000009"}.isdisjoint(kept("keep.txt"))
    assert report.leaked >= 2
    assert any(member.against for member in why("keep.txt", "000009").members)
    again = tarmac.dedup("train.tar", "keep.txt", text="txt", against="test.tar", threshold=0.95)
    assert again.reused
    fresh = tarmac.dedup("train.tar", "fresh.txt", text="txt", against="test.tar", threshold=0.95)
    assert kept("keep.txt") == kept("fresh.txt")
    assert again.leaked == fresh.leaked >= 1


def test_another_threshold_reads_no_shard(home, monkeypatch):
    shard("x.tar", captions(60))
    tarmac.dedup("x.tar", "keep.txt", text="txt", threshold=0.7)
    monkeypatch.setattr("tarmac.tools.options.Access.reader", None)
    assert tarmac.dedup("x.tar", "keep.txt", text="txt", threshold=0.9, keep="largest").reused


def test_captions_of_embeddings(home):
    texts = captions(50)
    write(home / "embeddings", np.eye(50), caption=texts)
    shard("x.tar", texts)
    for shingle in ("chars:5", "words:2"):
        one = tarmac.dedup("embeddings", f"{shingle}.one", text="caption", shingle=shingle)
        other = tarmac.dedup("x.tar", f"{shingle}.other", text="txt", shingle=shingle)
        assert kept(f"{shingle}.one") == kept(f"{shingle}.other")
        assert one.near == other.near > 0
    tarmac.dedup("embeddings", "chars:5.one", text="caption", keep="largest")
    with pytest.raises(UsageError, match="no column 'words'"):
        tarmac.dedup("embeddings", "x.txt", text="words")


def test_errors(home):
    shard("x.tar", captions(4))
    for shingle in ("words", "chars:0", "lines:3", "chars:100"):
        with pytest.raises(UsageError, match="expected chars:N or words:N"):
            tarmac.dedup("x.tar", "keep.txt", text="txt", shingle=shingle)
    shard("y.tar", captions(4))
    with pytest.raises(UsageError, match="4 repeated keys, such as '000000'"):
        tarmac.dedup(["x.tar", "y.tar"], "keep.txt", text="txt")
    shard("none.tar", [])
    with pytest.raises(UsageError, match="no samples"):
        tarmac.dedup("none.tar", "keep.txt", text="txt")
    with pytest.raises(UsageError, match="no sample has the field 'text'; the first has txt"):
        tarmac.dedup("x.tar", "keep.txt", text="text")
    tarmac.dedup("x.tar", "keep.txt", text="txt")
    with pytest.raises(JobMismatch, match="shingle 'chars:5' -> 'words:2'"):
        tarmac.dedup("x.tar", "keep.txt", text="txt", shingle="words:2")
    similar = [
        f"one of many pictures of the same thing in the same town, number {number}" for number in range(60)
    ]
    shard("many.tar", similar)
    with pytest.raises(LimitExceeded):
        tarmac.dedup("many.tar", "many.txt", text="txt", max_pairs=10)


@given(
    st.lists(st.text(st.sampled_from("ab é€\U0001f600"), max_size=9), max_size=6),
    st.sampled_from(["chars", "words"]),
)
def test_pieces(texts, unit):
    """Texts have the same pieces where Python's own sets say so."""
    texts = [" ".join(text.split()) for text in texts]
    size = 2
    cut = shingles.Cutter.parse(f"{unit}:{size}")(texts)
    sets = []
    for text in texts:
        tokens = list(text) if unit == "chars" else text.split()
        count = max(len(tokens) - size + 1, 1) if tokens else 0
        sets.append({tuple(tokens[at : at + size]) for at in range(count)})
    bounds = list(zip(cut.offsets[:-1], cut.offsets[1:], strict=True))
    ours = [set(cut.values[begin:end].tolist()) for begin, end in bounds]
    assert list(map(len, ours)) == list(map(len, sets))
    for one in range(len(texts)):
        for other in range(one):
            assert len(ours[one] & ours[other]) == len(sets[one] & sets[other])


def test_bands_find_pairs_at_the_threshold():
    for threshold in np.linspace(0.05, 1, 20):
        bands = minhash.Bands.of(float(threshold))
        assert bands.bands * bands.rows <= minhash.PERMUTATIONS
        assert bands.probability(float(threshold)) >= minhash.LEAST or bands.rows == 1
    assert minhash.Bands.of(0.8).probability(0.4) < 0.1


def test_the_command(home, capsys):
    from tarmac.cli import main

    shard("x.tar", ["a cat on a mat", "A cat on a mat", "another text"])
    with pytest.raises(SystemExit) as end:
        main(["dedup", "x.tar", "--text", "txt", "-o", "keep.txt", "--json"])
    assert end.value.code == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["read"], report["written"], report["exact"], report["threshold"]) == (3, 2, 1, 0.8)
