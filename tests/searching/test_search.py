"""Searches: conditions of any selectivity, keys, files, and the samples that hits are."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tarmac
from cli.running import run
from harness.vectors import clusters, write_embeddings
from searching.data import brute_force, choice_of, recall
from tarmac.errors import BadCondition, IndexStale, MissingField, NotFound, UsageError

pytestmark = pytest.mark.long

COUNT, DIMENSION = 30_000, 16


@pytest.fixture(scope="module")
def vectors():
    return clusters(COUNT + 1000, DIMENSION, groups=300)


@pytest.fixture(scope="module")
def knn(tmp_path_factory, vectors):
    home = tmp_path_factory.mktemp("search")
    rng = np.random.default_rng(5)
    columns = {
        "width": np.arange(COUNT),
        "caption": [f"caption {number}" for number in range(COUNT)],
        "group": rng.permutation(COUNT) % 1000,
    }
    path = write_embeddings(home / "embeddings", vectors[:COUNT], columns=columns, part_rows=7000)
    memory = choice_of("rabitq1", COUNT, DIMENSION).memory
    tarmac.Knn.build(path, home / "index", max_memory=memory)
    opened = tarmac.Knn(home / "index")
    opened.vectors.take(np.arange(COUNT))  # maps all files, which stay open
    opened.vectors.metadata(np.arange(COUNT))
    return opened


@pytest.mark.parametrize(
    ("condition", "share"),
    [
        ("group = 7", 0.001),  # all of them are compared
        ("group < 100", 0.1),
        ("group < 700", 0.7),  # a bitmap for the index
        ("width >= 5000", 0.8333),
    ],
)
def test_conditions_give_full_lists(knn, vectors, condition, share):
    mask = knn.vectors.where(condition)
    allowed = np.flatnonzero(mask)
    assert len(allowed) / COUNT == pytest.approx(share, rel=0.01)

    scores, numbers = knn.search(vectors[COUNT:], 20, where=condition)

    assert numbers.shape == scores.shape == (1000, 20)
    assert mask[numbers].all()
    truth = allowed[brute_force(vectors[COUNT:], vectors[allowed], 20)]
    assert recall(numbers, truth) >= 0.95


def test_few_vectors_in_a_bitmap(knn, vectors, monkeypatch):
    """Full lists also where there are too many selected vectors to compare all: in more and more lists."""
    monkeypatch.setattr("tarmac.searching.searcher.SCANNED", 0)
    allowed = np.flatnonzero(knn.vectors.where("group = 7"))

    _, numbers = knn.search(vectors[COUNT:], 20, where="group = 7")

    assert np.isin(numbers, allowed).all()
    assert recall(numbers, allowed[brute_force(vectors[COUNT:], vectors[allowed], 20)]) >= 0.95


def test_a_mask_whose_vectors_are_far_from_the_queries(knn, vectors):
    """The lists that are nearest to a query have none of them."""
    axis = vectors[:COUNT, 0]
    mask = axis < np.quantile(axis, 0.7)
    queries = vectors[COUNT:][np.argsort(-vectors[COUNT:, 0])[:100]]

    _, numbers = knn.search(queries, 50, where=mask)

    allowed = np.flatnonzero(mask)
    assert mask[numbers].all()
    assert recall(numbers, allowed[brute_force(queries, vectors[allowed], 50)]) >= 0.9


def test_fewer_vectors_than_asked_for(knn, vectors):
    scores, numbers = knn.search(vectors[:3], 50, where="group = 7")
    assert (numbers >= 0).sum(axis=1).tolist() == [30] * 3
    assert (scores[:, 30:] == -np.inf).all()
    assert len(knn.query(vectors=vectors[:3], k=50, where="group = 7")) == 90
    _, none = knn.search(vectors[:3], 5, where="group = 5000")
    assert (none == -1).all()


def test_more_neighbours_than_it_was_measured_for(knn, vectors):
    _, numbers = knn.search(vectors[COUNT : COUNT + 200], 200)
    assert recall(numbers, brute_force(vectors[COUNT : COUNT + 200], vectors[:COUNT], 200)) >= 0.9


def test_more_effort_finds_more(knn, vectors):
    queries, truth = vectors[COUNT:], brute_force(vectors[COUNT:], vectors[:COUNT], 10)
    _, least = knn.search(queries, 10, probes=1, candidates=10)
    _, most = knn.search(queries, 10, probes=knn.facts.choice.lists, candidates=2000)
    assert recall(least, truth) < recall(most, truth)
    assert recall(most, truth) > 0.99


def test_one_query_is_a_row_of_many(knn, vectors):
    scores, numbers = knn.search(vectors[5], 3)
    assert scores.shape == numbers.shape == (1, 3)
    assert numbers[0, 0] == 5


def test_the_sample_of_a_key_is_not_its_own_neighbour(knn, vectors):
    hits = knn.query(key="000123", k=10)
    assert len(hits) == 10
    assert "000123" not in {hit.key for hit in hits}
    assert hits[0].score >= hits[-1].score
    assert hits[0].caption == f"caption {hits[0].number}"
    truth = brute_force(vectors[123:124], vectors[:COUNT], 11)[0].tolist()
    assert len({hit.number for hit in hits} & {*truth}) >= 8
    with pytest.raises(UsageError, match=r"key 'absent'; one of them has '000000'"):
        knn.query(key="absent")


def test_hits_of_a_file_of_vectors(knn, vectors, tmp_path):
    np.save(tmp_path / "q.npy", vectors[:3])
    hits = knn.query(vectors=tmp_path / "q.npy", k=2)
    assert [hit.query for hit in hits] == [0, 0, 1, 1, 2, 2]
    assert [hit.key for hit in hits[::2]] == ["000000", "000001", "000002"]
    with pytest.raises(NotFound):
        knn.query(vectors=tmp_path / "absent.npy")
    (tmp_path / "bad.npy").write_bytes(b"no array")
    with pytest.raises(UsageError, match="not an array"):
        knn.query(vectors=tmp_path / "bad.npy")


def test_arguments_are_checked(knn, vectors):
    wrong = [{"k": 0}, {"k": "10"}, {"k": None}, {"probes": 0}, {"probes": 1.5}, {"candidates": 0}]
    for arguments in (*wrong, {"where": np.ones(3, bool)}):
        with pytest.raises(UsageError) as error:
            knn.search(vectors[:1], **arguments)
        assert error.value.field in arguments
    for queries in (vectors[:1, :8], np.full((1, DIMENSION), np.nan), "query.npy", [[1.0], [1.0, 2.0]], None):
        with pytest.raises(UsageError) as error:
            knn.search(queries)
        assert error.value.field == "vectors"
    with pytest.raises(BadCondition):
        knn.search(vectors[:1], where="widht > 3")
    with pytest.raises(UsageError, match="expected one of text, image, key and vectors, got none"):
        knn.query()
    with pytest.raises(UsageError, match="got text, key"):
        knn.query(text="a", key="b")
    for name in ("text", "key"):
        with pytest.raises(UsageError) as error:
            knn.query(**{name: 5})
        assert error.value.field == name


def test_an_index_pickles_and_says_what_it_is(knn, vectors):
    again = pickle.loads(pickle.dumps(knn))
    assert (again.search(vectors[:5], 3).numbers == knn.search(vectors[:5], 3).numbers).all()
    assert "30,000 vectors of 16 numbers" in repr(knn)
    assert "recall@10" in knn._repr_html_()


# Samples


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """Three shards of small pictures whose colours are their vectors, indexed, and the embeddings of them."""
    home = tmp_path_factory.mktemp("samples")
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (300, 3))
    shards, keys = [], []
    for number in range(3):
        shards.append(str(home / f"in-{number}.tar"))
        with tarmac.TarWriter(shards[-1]) as writer:
            for row in range(100):
                at = number * 100 + row
                keys.append(f"{at:06d}")
                image = Image.new("RGB", (8, 8), tuple(map(int, colours[at])))
                writer.write({"__key__": keys[-1], "png": image, "txt": f"colour {at}"})
    manifest = str(home / "train.json")
    tarmac.index(shards, manifest, progress=False)
    columns = {
        "shard": [shards[at // 100] for at in range(300)],
        "caption": [f"colour {at}" for at in range(300)],
    }
    path = write_embeddings(home / "embeddings", (colours - 128) / 128, columns=columns, part_rows=100)
    tarmac.Knn.build(path, home / "index", metric="l2")
    return home, manifest, colours


def test_ten_thousand_hits_are_the_right_samples_also_after_a_shuffle(samples, tmp_path):
    home, manifest, colours = samples
    report = tarmac.copy(
        manifest, str(tmp_path / "new-{i:03d}.tar"), shuffle=True, seed=3, max_samples=70, progress=False,
        manifest=str(tmp_path / "new.json"),
    )  # fmt: skip
    assert report.written == 300
    queries = np.random.default_rng(1).uniform(-1, 1, (500, 3))
    knn = tarmac.Knn(home / "index")

    for source in (manifest, str(tmp_path / "new.json")):
        dataset = tarmac.Dataset(source)
        hits = knn.query(vectors=queries, k=20, samples=dataset)
        assert len(hits) == 10_000
        contents = {shard: Path(shard).read_bytes() for shard in {hit.shard for hit in hits}}
        for hit in hits:
            assert dataset.key(hit.index) == hit.key
            data = contents[hit.shard][hit.offset :][: hit.sizes["png"]]
            assert data.startswith(b"\x89PNG")
            assert data == dataset[hit.index]["png"]
        pixels = {hit.key: dataset.decode("rgb8")[hit.index]["png"][0, 0].tolist() for hit in hits}
        assert pixels == {hit.key: colours[hit.number].tolist() for hit in hits}
        assert all(hit.caption == f"colour {hit.number}" for hit in hits)


def test_hits_have_the_shard_that_was_embedded(samples):
    home, *_ = samples
    (hit,) = tarmac.Knn(home / "index").query(vectors=np.zeros(3), k=1)
    assert hit.shard == str(home / f"in-{hit.number // 100}.tar")
    assert hit.offset is hit.sizes is hit.index is None


@pytest.mark.parametrize("resolved", [True, False])
def test_a_sheet_of_hits(samples, tmp_path, resolved):
    home, manifest, colours = samples
    hits = tarmac.Knn(home / "index").query(key="000007", k=9, samples=manifest if resolved else None)

    assert hits.write_sheet(tmp_path / "hits.png") == 9

    with Image.open(tmp_path / "hits.png") as sheet:
        pixels = {pixel for _, pixel in sheet.convert("RGB").getcolors(1 << 20)}
    assert {tuple(colours[hit.number].tolist()) for hit in hits} <= pixels
    assert "colour" in hits._repr_html_()


def test_samples_that_are_not_there(samples, tmp_path):
    home, manifest, _ = samples
    knn = tarmac.Knn(home / "index")
    tarmac.copy(manifest, str(tmp_path / "some-{i}.tar"), slice=slice(0, 10), progress=False)
    with pytest.raises(UsageError, match="hits are not among the samples"):
        knn.query(vectors=np.ones((1, 3)), k=300, samples=str(tmp_path / "some-0.tar"))
    hits = knn.query(vectors=np.ones((1, 3)), k=5)
    with pytest.raises(NotFound):
        knn.query(vectors=np.ones((1, 3)), k=5, samples=str(tmp_path / "absent.tar"))
    (home / "in-0.tar").rename(home / "moved.tar")
    try:
        with pytest.raises(NotFound):
            knn.query(vectors=(np.array([[200, 20, 20]]) - 128) / 128, k=300).write_sheet(tmp_path / "x.png")
    finally:
        (home / "moved.tar").rename(home / "in-0.tar")
    assert len(hits) == 5


def test_offsets_in_the_shards_that_were_embedded(samples, tmp_path, capsys):
    """The command prints them without --samples, while these shards are there."""
    home, _, colours = samples
    command = ("knn", "query", home / "index", "--key", "000007", "-k", "3", "--json")
    hits = [json.loads(line) for line in run(capsys, *command)[1].splitlines()]
    for hit in hits:
        data = Path(hit["shard"]).read_bytes()[hit["offset"] :][: hit["sizes"]["png"]]
        with Image.open(io.BytesIO(data)) as image:
            assert image.getpixel((0, 0)) == tuple(colours[hit["number"]].tolist())
    status, _, stderr = run(capsys, *command, "--sheet", tmp_path / "hits.png")
    assert (status, stderr) == (0, f"3 images -> {tmp_path}/hits.png\n")
    index = f"{home}/in-{hits[0]['number'] // 100}.tar.arrow"
    Path(index).rename(tmp_path / "away")
    try:
        (again, *_) = (json.loads(line) for line in run(capsys, *command)[1].splitlines())
    finally:
        (tmp_path / "away").rename(index)
    assert (again["key"], again["shard"], again["offset"]) == (hits[0]["key"], hits[0]["shard"], None)


@pytest.fixture
def repeated(tmp_path):
    """Two shards whose samples have the same keys, the colours of all, and an index of them."""
    colours = np.random.default_rng(1).integers(0, 256, (20, 3))
    for number in range(2):
        with tarmac.TarWriter(tmp_path / f"in-{number}.tar") as writer:
            for row in range(10):
                image = Image.new("RGB", (8, 8), tuple(map(int, colours[number * 10 + row])))
                writer.write({"__key__": str(row), "png": image})
    columns = {"shard": [str(tmp_path / f"in-{at // 10}.tar") for at in range(20)]}
    columns["key"] = [str(at % 10) for at in range(20)]
    path = write_embeddings(tmp_path / "embeddings", (colours - 128) / 128, columns=columns, part_rows=10)
    tarmac.Knn.build(path, tmp_path / "index", metric="l2")
    return tmp_path, colours


def test_hits_of_keys_that_repeat(repeated):
    """The shard that was embedded says which sample is meant; where it does not, there is an error."""
    home, colours = repeated
    knn, queries = tarmac.Knn(home / "index"), (colours - 128) / 128
    dataset = tarmac.Dataset(f"{home}/in-*.tar")
    for hit in knn.query(vectors=queries, k=1, samples=dataset):
        pixel = dataset.decode("rgb8")[hit.index]["png"][0, 0].tolist()
        assert (hit.number, pixel) == (hit.query, colours[hit.query].tolist())
    hits = knn.query(vectors=queries[13], k=1)
    hits.write_sheet(home / "hit.png")
    with Image.open(home / "hit.png") as sheet:
        assert tuple(colours[13].tolist()) in {pixel for _, pixel in sheet.convert("RGB").getcolors(1 << 20)}
    with pytest.raises(UsageError, match="2 indexed samples have the key '3'"):
        knn.query(key="3")
    for number in range(2):
        (home / f"in-{number}.tar").rename(home / f"moved-{number}.tar")
    with pytest.raises(UsageError, match="2 samples have the key '3' of a hit"):
        knn.query(vectors=queries[13], k=1, samples=f"{home}/moved-*.tar")


def test_a_sheet_without_hits(samples, tmp_path):
    home, manifest, _ = samples
    hits = tarmac.Knn(home / "index").query(key="000007", where="caption = ''", samples=manifest)
    with pytest.raises(UsageError, match="there are no hits"):
        hits.write_sheet(tmp_path / "x.png")


def test_a_sheet_of_unknown_shards(knn, tmp_path):
    with pytest.raises(MissingField, match="unknown which shards"):
        knn.query(key="000001").write_sheet(tmp_path / "x.png")


# Where the embeddings are


def test_embeddings_that_were_moved(tmp_path, monkeypatch):
    vectors = clusters(100, 8)
    path = write_embeddings(tmp_path / "a" / "embeddings", vectors)
    tarmac.Knn.build(path, tmp_path / "a" / "index")
    (tmp_path / "a").rename(tmp_path / "b")  # together
    assert len(tarmac.Knn(tmp_path / "b" / "index")) == 100
    (tmp_path / "b" / "embeddings").rename(tmp_path / "elsewhere")
    with pytest.raises(NotFound, match="not there"):
        tarmac.Knn(tmp_path / "b" / "index")
    knn = tarmac.Knn(tmp_path / "b" / "index", embeddings=tmp_path / "elsewhere")
    assert knn.query(key="000003", k=1)
    write_embeddings(tmp_path / "other", clusters(100, 8, seed=1))
    with pytest.raises(IndexStale):
        tarmac.Knn(tmp_path / "b" / "index", embeddings=tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps([tarmac.Knn("b/index", embeddings="elsewhere"), tarmac.Embeddings("elsewhere")])
    monkeypatch.chdir("/")  # as a worker is before it enters the directory of a job
    assert [len(each) for each in pickle.loads(sent)] == [100, 100]
    with pytest.raises(UsageError, match="1 directories, got 2"):
        tarmac.Knn(tmp_path / "b" / "index", embeddings=[path, path])
