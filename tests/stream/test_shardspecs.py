"""Several datasets as one list of shards."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest

from harness.places import at, places
from tarmac.errors import NotFound, UnsafeUrl, UrlError
from tarmac.stream.shardspecs import MultiShardSample

SPEC = {
    "prefix": "http://",
    "buckets": "x",
    "datasets": [
        {"name": "all", "shards": "all-{0..4}.tar"},
        {"name": "some", "buckets": ["y"], "shards": ["some-{0..9}.tar", "more.tar"], "choose": 4},
        {"name": "many", "buckets": ["y", "z"], "shards": "many-{0..1}.tar", "resample": 20},
    ],
}


def urls(source):
    return [shard["url"] for shard in source]


def test_of_each_dataset_what_it_says():
    shards = MultiShardSample(SPEC)
    for _ in range(5):
        found = Counter(urls(shards))
        names = Counter(url.rsplit("/")[-1].partition("-")[0] for url in found.elements())
        assert {f"http://x/all-{n}.tar" for n in range(5)} <= set(found)
        assert names["all"] == 5
        assert names["some"] + names["more.tar"] == 4
        assert names["many"] == 20
        assert all(found[url] == 1 for url in found if "many" not in url)
    assert set(shards.sources[2].urls) == {f"http://{b}/many-{n}.tar" for b in "yz" for n in range(2)}


def test_the_same_for_one_seed_and_pass_everywhere():
    found = set()
    for place in places(2, 2):
        with at(place):
            shards = MultiShardSample(SPEC, seed=3)
            shards.set_epoch(2)
            found.add(tuple(urls(shards)))
    assert len(found) == 1
    shards = MultiShardSample(SPEC, seed=3)
    orders = [
        tuple(urls(shards)),
        tuple(shards.get_shards_for_epoch()),
        tuple(urls(pickle.loads(pickle.dumps(shards)))),
    ]
    assert orders[2:] == list(found)
    assert len({*orders, tuple(urls(MultiShardSample(SPEC, seed=4)))}) == 4


def test_a_file(tmp_path, monkeypatch):
    for name in ("a-0.tar", "a-1.tar"):
        (tmp_path / name).touch()
    spec = tmp_path / "spec.yml"
    spec.write_text("datasets: [{shards: 'a-{0..1}.tar'}, {shards: 'a-*.tar', resample: 3}]")
    there = {str(tmp_path / "a-0.tar"), str(tmp_path / "a-1.tar")}
    assert set(urls(MultiShardSample(spec))) == there
    monkeypatch.chdir(tmp_path)
    assert len(urls(MultiShardSample("spec.yml"))) == 5


def test_names_relative_to_where_we_are(tmp_path, monkeypatch):
    """As in the webdataset library, when there is nothing beside the file."""
    (tmp_path / "specs").mkdir()
    (tmp_path / "a.tar").touch()
    spec = tmp_path / "specs" / "spec.yaml"
    spec.write_text("{prefix: '', datasets: [{shards: a.tar}]}")
    monkeypatch.chdir(tmp_path)
    assert urls(MultiShardSample(spec)) == ["a.tar"]


def test_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("WDS_BUCKET", "good")
    monkeypatch.setenv("SECRET", "hunter2")
    monkeypatch.setenv("HOME", "/home/me")
    code = {"datasets": [{"shards": ["~/${BUCKET}.tar", "/$SECRET.tar"]}]}
    assert sorted(urls(MultiShardSample(code))) == ["/home/me/good.tar", "/hunter2.tar"]
    spec = tmp_path / "spec.yaml"
    spec.write_text("datasets: [{shards: ['http://x/$SECRET-${BUCKET}.tar']}]")
    assert urls(MultiShardSample(spec)) == ["http://x/$SECRET-good.tar"]


def test_files_are_data_not_code(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("datasets: [{shards: 'pipe:touch {a,b}'}]")
    with pytest.raises(UnsafeUrl, match=r"spec.yaml.*commands"):
        MultiShardSample(spec)
    spec.write_text("{prefix: 'pipe:', datasets: [{shards: 'touch x'}]}")
    with pytest.raises(UnsafeUrl):
        MultiShardSample(spec)
    assert urls(MultiShardSample({"datasets": [{"shards": "pipe:cat a.tar"}]})) == ["pipe:cat a.tar"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "a list under `datasets`"),
        ([], "must be a mapping, got list"),
        ({"datasets": []}, "a list under `datasets`"),
        ({"datasets": [{"shards": "a.tar"}], "bucket": "x"}, "unknown key 'bucket'; known are buckets"),
        ({"datasets": [{"shards": "a.tar", "chose": 1}]}, "unknown key 'chose'"),
        ({"datasets": ["a.tar"]}, "dataset 0 of a shard specification must be a mapping"),
        ({"datasets": [{}]}, "`shards` of a shard specification must be a string or a list"),
        ({"datasets": [{"shards": [1]}]}, "must be a string or a list of strings"),
        ({"datasets": [{"shards": "a.tar", "buckets": 3}]}, "`buckets`"),
        ({"datasets": [{"shards": "a.tar"}], "prefix": 3}, "`prefix`"),
        ({"datasets": [{"shards": "a.tar", "choose": 2}]}, "has 1 shards, so 2 cannot be chosen"),
        ({"datasets": [{"shards": "a.tar", "choose": 1, "resample": 1}]}, "both `resample` and `choose`"),
        ({"datasets": [{"shards": "a.tar", "choose": "x"}]}, "must be a whole number, got 'x'"),
        ({"datasets": [{"shards": []}]}, "'@' has no shards"),
    ],
)
def test_what_is_wrong_is_said(spec, words, tmp_path):
    import yaml

    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    with pytest.raises(UrlError, match=words) as caught:
        MultiShardSample(path)
    assert caught.value.url == str(path)
    if isinstance(spec, dict):
        with pytest.raises(UrlError, match=words):
            MultiShardSample(spec)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(NotFound):
        MultiShardSample(tmp_path / "none.yaml")
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UrlError, match="UTF-8"):
        MultiShardSample(path)
    path.write_text("{a: [")
    with pytest.raises(UrlError, match=r"spec.yaml: .*YAML"):
        MultiShardSample(path)
