"""Selecting samples by conditions on index columns, and by a hash of their keys."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tarmac
from harness.datasets import write_shards
from tarmac.errors import IndexDamaged, IndexingError, TarmacWarning, UsageError
from tarmac.exact import shardset
from tarmac.exact.dataset import Dataset
from tarmac.exact.mix import Mix
from tarmac.indexing.build import IndexOptions, index_shard
from tarmac.indexing.meta import meta_plan
from tarmac.indexing.sidecar import sidecar_url, write_sidecar

META = IndexOptions(digests=True, meta=meta_plan(["json.w", "json.lang", "txt.size"]))


def write_metadata(folder, *shards, options=META):
    """Write shards of samples with these JSON values; None for a sample without JSON."""
    urls, number = [], 0
    for count, values in enumerate(shards):
        urls.append(str(folder / f"m{count}.tar"))
        with tarmac.TarWriter(urls[-1]) as writer:
            for value in values:
                data = {} if value is None else {"json": value}
                writer.write({"__key__": f"{number:03d}", "txt": "x" * number, **data})
                number += 1
        write_sidecar(sidecar_url(urls[-1]), index_shard(urls[-1], options))
    return urls


def selected(ds, condition):
    return [int(key) for key in ds.where(condition).keys()]  # noqa: SIM118


@pytest.fixture
def ds(tmp_path):
    values = [{"w": i * 100, "lang": "en" if i % 2 else "de"} for i in range(10)]
    values[3] = None
    dataset = Dataset(write_metadata(tmp_path, values[:4], [], values[4:]))
    yield dataset
    dataset.close()


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("w >= 500", [5, 6, 7, 8, 9]),
        ("json.w >= 500 and lang = 'en'", [5, 7, 9]),
        ("w is null", [3]),
        ("has(json)", [0, 1, 2, 4, 5, 6, 7, 8, 9]),
        ("not has(json) or not has(txt)", [3]),
        ("has(nothing)", []),
        ("key like '%4'", [4]),
        ("key in ('001', '009')", [1, 9]),
        ("txt.size between 2 and 4", [2, 3, 4]),
        ("1 = 1", list(range(10))),
        ("w > 10000", []),
    ],
)
def test_conditions(ds, condition, expected):
    matches = ds.where(condition)
    assert selected(ds, condition) == expected
    assert len(matches) == len(expected)
    assert [int(sample["__key__"]) for sample in matches] == expected
    assert [int(sample["__key__"]) for sample in matches.batch(range(len(matches)))] == expected
    assert int(matches.lengths.sum()) == len(expected)


def test_conditions_read_only_the_index(ds, monkeypatch):
    monkeypatch.setattr(shardset, "open_read", None)
    monkeypatch.setattr(shardset, "stat", None)
    assert selected(ds, "w >= 800 and has(json)") == [8, 9]
    with pytest.raises(TypeError):
        ds.where("w >= 800")[0]


def test_conditions_and_slices_combine(ds):
    assert selected(ds[1:8:2], "w >= 300") == [5, 7]
    assert selected(ds.where("w >= 300")[1:4], "lang = 'en'") == [5, 7]
    assert selected(ds.where("w >= 300"), "w < 600") == [4, 5]
    assert selected(ds[8:] + ds[:2], "w >= 100") == [8, 9, 1]
    assert [s["__key__"] for s in Mix([ds.where("w > 700"), ds[:1]]).batch([0, 1, 2])] == [
        "008",
        "009",
        "000",
    ]


def test_invalid_conditions(ds, tmp_path):
    with pytest.raises(IndexingError, match="height") as caught:
        ds.where("height > 3")
    assert caught.value.url.endswith("m0.tar")
    with pytest.raises(IndexingError, match="w"):
        ds.where("w = 'x'")
    with pytest.raises(IndexingError):
        ds.where("w >")
    plain = Dataset(write_shards(tmp_path, [3]))
    with pytest.raises(IndexingError, match="w"):
        (ds + plain).where("w > 3")


def test_conditions_do_not_depend_on_the_types_of_single_shards(tmp_path):
    """A column can hold integers, floats, text or only nulls in different shards."""
    urls = write_metadata(tmp_path, [{"w": 1}, {"w": 20}], [{"w": 2.5}], [{"w": None}], [{}])
    ds = Dataset(urls)
    assert selected(ds, "w > 1.5") == [1, 2]
    assert selected(ds, "w = 1 or w = 2.5") == [0, 2]
    (tmp_path / "text").mkdir()
    mixed = Dataset(urls + write_metadata(tmp_path / "text", [{"w": "n/a"}]))
    assert selected(mixed, "w = '20' or w = 'n/a'") == [1, 0]
    assert selected(mixed, "w like '2%'") == [1, 2]
    with pytest.raises(IndexingError, match="w"):
        mixed.where("w > 1")  # also in the shards where it holds numbers


def test_keys_that_are_not_text(tmp_path):
    urls = []
    for number, keys in enumerate((["a", "b\udcff"], ["c"])):
        urls.append(str(tmp_path / f"{number}.tar"))
        with tarmac.TarWriter(urls[-1], encoder=False, index=True) as writer:
            for key in keys:
                writer.write({"__key__": key, "x": b""})
    ds = Dataset(urls)
    assert list(ds.where("key like 'b%' or key = 'c'").keys()) == ["b\udcff", "c"]
    assert len(ds.split(a=1.0).a) == 3


def test_a_damaged_column_is_an_error(tmp_path):
    (url,) = write_metadata(tmp_path, [{"w": 123456789}, {"w": 2}])
    path = tmp_path / "m0.tar.arrow"
    content = path.read_bytes()
    value = (123456789).to_bytes(8, "little")
    assert content.count(value) == 1
    path.write_bytes(content.replace(value, (123456788).to_bytes(8, "little")))
    ds = Dataset(url)
    assert len(list(ds)) == 2
    with pytest.raises(IndexDamaged, match=r"json\.w") as caught:
        ds.where("w > 3")
    assert caught.value.url == url


# Splits


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("split")


@pytest.fixture(scope="module")
def many(folder):
    return write_shards(folder, [700, 1, 800, 500])


def keys(ds):
    return list(ds.keys())


@settings(max_examples=30, derandomize=True, deadline=None)
@example([1e-30, 1.0], "")
@example([1.0, 1e-30], "")
@given(st.lists(st.floats(1e-30, 1), min_size=1, max_size=4), st.text(max_size=3))
def test_splits_are_disjoint_and_complete(many, weights, salt):
    shares = {f"s{i}": weight / sum(weights) for i, weight in enumerate(weights)}
    if min(shares.values()) <= 0:
        return
    ds = Dataset(many)
    splits = ds.split(salt=salt, **shares)
    assert list(vars(splits)) == list(shares)
    parts = [keys(part) for part in splits]
    everything = [key for part in parts for key in part]
    assert len(set(everything)) == len(everything)
    assert sorted(everything) == keys(ds)
    for part, share in zip(parts, shares.values(), strict=True):
        assert abs(len(part) / 2001 - share) < 0.07  # six standard deviations
        assert part == sorted(part)


def test_a_sample_stays_in_its_split(many, tmp_path):
    train, val = Dataset(many).split(train=0.9, val=0.1)
    grown = Dataset(write_shards(tmp_path, [11] * 190)).split(
        train=0.9, val=0.1
    )  # packed differently, and larger
    assert keys(grown.val)[: len(val)] == keys(val)
    assert set(keys(train)) < set(keys(grown.train))
    some = Dataset(many)[100:900].split(train=0.9, val=0.1)
    assert keys(some.val) == [key for key in keys(val) if 100 <= int(key) < 900]
    wider = Dataset(many).split(train=0.8, val=0.2)
    assert set(keys(wider.train)) < set(keys(train))


def test_splits_have_names_and_pickle(many):
    splits = pickle.loads(pickle.dumps(Dataset(many).split(train=0.9, count=0.1)))
    assert len(splits) == 2
    assert splits.train is splits[0]
    assert splits.count is splits[1]  # although tuples have a method of this name
    assert repr(splits).startswith("Splits(train=<Dataset: ")


def test_another_salt_gives_another_split(many):
    first, second = (set(keys(Dataset(many).split(salt=salt, val=0.5, rest=0.5).val)) for salt in ("", "x"))
    assert 300 < len(first & second) < 700


@pytest.mark.parametrize(
    "shares", [{}, {"a": 0}, {"a": -0.1, "b": 1}, {"a": 0.6, "b": 0.6}, {"a": 2}, {"a": 0.8, "b": 0.1}]
)
def test_invalid_shares(many, shares):
    with pytest.raises(UsageError, match="`split`"):
        Dataset(many).split(**shares)


def test_unknown_keys_are_reported(many):
    ds = Dataset(many)
    with pytest.warns(TarmacWarning, match="'nope', 'nor this'"):
        assert keys(ds.select_keys(["00007", "nope", "nor this"])) == ["00007"]
    with pytest.raises(UsageError, match=r"`keys`: .*'nope'"):
        ds.select_keys(["nope"])
    assert keys(ds.select_keys([])) == []


def test_by_function(ds):
    seen = []

    def even(sample):
        seen.append(sample["__key__"])
        return int(sample["__key__"]) % 2 == 0

    kept = ds.filter(even, threads=3)
    assert list(kept.keys()) == ["000", "002", "004", "006", "008"]
    assert sorted(seen) == [f"{i:03d}" for i in range(10)]  # each once, and not again when it is read
    assert [sample["__key__"] for sample in kept] == [kept.key(i) for i in range(5)]
    assert (len(seen), len(kept), kept[-1]["__key__"], "003" in kept) == (10, 5, "008", False)
    assert repr(kept).startswith("<Dataset: 5 of 10 samples")
    assert kept.fingerprint == ds.filter(even).fingerprint == pickle.loads(pickle.dumps(kept)).fingerprint
    assert kept.fingerprint == ds[::2].fingerprint != ds.fingerprint
    assert ds.filter(lambda sample: True).fingerprint == ds.fingerprint
    assert len(ds.filter(lambda sample: False)) == 0 == len(ds[:0].filter(even))


def test_by_function_after_other_steps_and_selections(ds):
    both = ds[1:8].map(lambda sample: int(sample["__key__"])) + ds[::3].map(lambda sample: -1)
    kept = both.filter(lambda number: number < 0 or number % 3 == 0)
    assert list(kept) == [3, 6, -1, -1, -1, -1]
    assert list(kept.filter(lambda number: number > 3)) == [6]
    drawn = ds.map(lambda sample, rng: rng.random(), random=True)
    assert drawn.filter(lambda x: x < 0.5).fingerprint == drawn.filter(lambda x: x < 0.5).fingerprint


def test_by_function_of_many_samples(tmp_path):
    big = Dataset(write_shards(tmp_path, [150, 1, 0, 99], index=True))
    kept = big.filter(lambda sample: int(sample["__key__"]) % 7 == 1, threads=4)
    assert list(kept.keys()) == [key for key in big.keys() if int(key) % 7 == 1]  # noqa: SIM118


def test_errors_of_a_filter(ds):
    with pytest.raises(UsageError, match=r"where\(\)"):
        ds.filter("w > 3")
    with pytest.raises(ZeroDivisionError) as caught:
        ds.filter(lambda sample: 1 // (int(sample["__key__"]) - 5))
    assert caught.value.__notes__[0].startswith('at sample "005" of ')


def test_shards_that_parts_share_are_counted_once(ds):
    train, val = ds.split(train=0.5, val=0.5)
    assert repr(train + val).startswith("<Dataset: 10 samples in 2 shards")
