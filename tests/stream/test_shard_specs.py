"""Shard specifications: several datasets in one list of shards."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest

from harness.workers import all_workers, as_worker
from tarmac.errors import NotFound, UnsafeUrl, UrlError
from tarmac.stream.shards.specs import MultiShardSample

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


def test_choose_and_resample():
    shards = MultiShardSample(SPEC)
    for _ in range(5):
        counts = Counter(urls(shards))
        names = Counter(url.rsplit("/")[-1].partition("-")[0] for url in counts.elements())
        assert {f"http://x/all-{n}.tar" for n in range(5)} <= set(counts)
        assert names["all"] == 5
        assert names["some"] + names["more.tar"] == 4
        assert names["many"] == 20
        assert all(count == 1 for url, count in counts.items() if "many" not in url)
    assert set(shards.sources[2].urls) == {f"http://{b}/many-{n}.tar" for b in "yz" for n in range(2)}


def test_all_workers_agree_on_an_epoch():
    everywhere = set()
    for info in all_workers(2, 2):
        with as_worker(info):
            shards = MultiShardSample(SPEC, seed=3)
            shards.set_epoch(2)
            everywhere.add(tuple(urls(shards)))
    assert len(everywhere) == 1
    shards = MultiShardSample(SPEC, seed=3)
    orders = [
        tuple(urls(shards)),
        tuple(shards.get_shards_for_epoch()),
        tuple(urls(pickle.loads(pickle.dumps(shards)))),
    ]
    assert orders[2:] == list(everywhere)
    assert len({*orders, tuple(urls(MultiShardSample(SPEC, seed=4)))}) == 4


def test_a_file(tmp_path, monkeypatch):
    for name in ("a-0.tar", "a-1.tar"):
        (tmp_path / name).touch()
    spec = tmp_path / "spec.yml"
    spec.write_text("datasets: [{shards: 'a-{0..1}.tar'}, {shards: 'a-*.tar', resample: 3}]")
    expected = {str(tmp_path / "a-0.tar"), str(tmp_path / "a-1.tar")}
    assert set(urls(MultiShardSample(spec))) == expected
    monkeypatch.chdir(tmp_path)
    assert len(urls(MultiShardSample("spec.yml"))) == 5


def test_names_relative_to_the_working_directory(tmp_path, monkeypatch):
    """As in the webdataset library, if there is no such file beside the specification."""
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
    with pytest.raises(UnsafeUrl, match=r"spec.yaml.*pipe:"):
        MultiShardSample(spec)
    spec.write_text("{prefix: 'pipe:', datasets: [{shards: 'touch x'}]}")
    with pytest.raises(UnsafeUrl):
        MultiShardSample(spec)
    assert urls(MultiShardSample({"datasets": [{"shards": "pipe:cat a.tar"}]})) == ["pipe:cat a.tar"]


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ({}, "`datasets`"),
        ([], "list"),
        ({"datasets": []}, "`datasets`"),
        ({"datasets": [{"shards": "a.tar"}], "bucket": "x"}, "'bucket'"),
        ({"datasets": [{"shards": "a.tar", "chose": 1}]}, "'chose'"),
        ({"datasets": ["a.tar"]}, "dataset 0"),
        ({"datasets": [{}]}, "`shards`"),
        ({"datasets": [{"shards": [1]}]}, "`shards`"),
        ({"datasets": [{"shards": "a.tar", "buckets": 3}]}, "`buckets`"),
        ({"datasets": [{"shards": "a.tar"}], "prefix": 3}, "`prefix`"),
        ({"datasets": [{"shards": "a.tar", "choose": 2}]}, "`choose`"),
        ({"datasets": [{"shards": "a.tar", "choose": 1, "resample": 1}]}, "`choose`"),
        ({"datasets": [{"shards": "a.tar", "choose": "x"}]}, "`choose`.*'x'"),
        ({"datasets": [{"shards": []}]}, "'@'"),
    ],
)
def test_invalid_specifications(spec, key, tmp_path):
    import yaml

    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    with pytest.raises(UrlError, match=key) as caught:
        MultiShardSample(path)
    assert caught.value.url == str(path)
    if isinstance(spec, dict):
        with pytest.raises(UrlError, match=key):
            MultiShardSample(spec)


def test_unreadable_files(tmp_path):
    with pytest.raises(NotFound):
        MultiShardSample(tmp_path / "none.yaml")
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UrlError, match=r"spec\.yaml"):
        MultiShardSample(path)
    path.write_text("{a: [")
    with pytest.raises(UrlError, match=r"spec\.yaml"):
        MultiShardSample(path)
