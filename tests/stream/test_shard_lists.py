"""Shard lists: in order, shuffled, or drawn with replacement."""

from __future__ import annotations

import json
import pickle
import random
from itertools import islice
from pathlib import Path

import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.workers import all_workers, as_worker
from tarmac.errors import NoSamples, NotFound, UrlError
from tarmac.runtime.worker_info import WorkerInfo
from tarmac.stream.shards.lists import (
    ResampledShardList,
    ResampledShards,
    SimpleShardList,
    expand_source,
    expand_urls,
    non_empty,
    resampled,
    shardspec,
)
from tarmac.stream.shards.specs import MultiShardSample

TEN = "http://x/{0..9}.tar"


def urls(source, count=None):
    return [shard["url"] for shard in islice(source, count)]


# -- SimpleShardList ------------------------------------------------------------------------------


def test_shards_in_the_order_of_the_list():
    shards = SimpleShardList("http://x/{00..02}.tar::http://y/a.tar")
    assert len(shards) == 4
    assert list(shards) == [{"url": url} for url in shards.urls]
    assert (
        urls(shards)
        == urls(shards)
        == ["http://x/00.tar", "http://x/01.tar", "http://x/02.tar", "http://y/a.tar"]
    )


def test_every_way_to_name_shards(tmp_path, monkeypatch):
    for name in ("a.tar", "b.tar"):
        (tmp_path / name).touch()
    monkeypatch.setenv("WDS_DATA", str(tmp_path))
    both = [str(tmp_path / "a.tar"), str(tmp_path / "b.tar")]
    assert SimpleShardList(tmp_path / "a.tar").urls == both[:1]
    assert SimpleShardList(f"{tmp_path}/*.tar").urls == both
    assert SimpleShardList("${DATA}/{a,b}.tar").urls == both
    assert SimpleShardList(Path(url) for url in both).urls == both


@pytest.mark.parametrize("seed", [0, 1, 42, "text", 1.5])
def test_the_order_of_the_first_epoch(seed):
    names = SimpleShardList(TEN).urls
    random.Random(seed).shuffle(names)
    assert urls(SimpleShardList(TEN, seed=seed)) == names


def test_the_first_epoch_matches_the_webdataset_library():
    assert list(SimpleShardList(TEN, seed=7)) == list(webdataset.SimpleShardList(TEN, seed=7))


@settings(deadline=None, derandomize=True)
@given(st.integers())
def test_pr_502_each_epoch_has_another_order(seed):
    """PR 502, issues 172 and 190 of webdataset: the same order in each epoch."""
    shards = SimpleShardList("http://x/{0..99}.tar", seed=seed)
    orders = [urls(shards) for _ in range(4)]
    assert len(set(map(tuple, orders))) == 4
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(shards.urls))}
    again = SimpleShardList("http://x/{0..99}.tar", seed=seed)
    again.set_epoch(2)
    assert urls(again) == orders[2]
    assert urls(again) == orders[3]


def test_all_workers_agree_on_the_order():
    orders = set()
    for info in all_workers(3, 2):
        with as_worker(info):
            shards = SimpleShardList(TEN, seed=3)
            shards.set_epoch(1)
            orders.add(tuple(urls(shards)))
    assert len(orders) == 1


def test_a_seed_drawn_once():
    shards = SimpleShardList(TEN, seed=True)
    copy = pickle.loads(pickle.dumps(shards))
    assert urls(shards) == urls(copy) != urls(SimpleShardList("http://x/{0..9}.tar"))
    assert shards.seed == copy.seed
    assert len({SimpleShardList(TEN, seed=True).seed for _ in range(5)}) == 5


@pytest.mark.parametrize("empty", [[], (), iter([])])
def test_no_shards(empty):
    """In the webdataset library it was an IndexError."""
    with pytest.raises(NotFound):
        SimpleShardList(empty)
    with pytest.raises(UrlError):
        SimpleShardList(5)


# -- ResampledShards ------------------------------------------------------------------------------


def test_draws_with_replacement():
    shards = ResampledShards(TEN, nshards=500, deterministic=True)
    drawn = urls(shards)
    assert len(drawn) == 500
    assert set(drawn) == set(shards.urls)
    assert urls(ResampledShards(TEN, deterministic=True), 500) == drawn
    assert ResampledShardList is ResampledShards


def test_upstream_resampling_collisions():
    """In the webdataset library, make_seed(0,31,0) == make_seed(1,0,0) gave two workers the same stream."""
    streams = set()
    for info in all_workers(3, 3):
        for epoch in (0, 1, 30, 31):
            for seed in range(3):
                with as_worker(info):
                    shards = ResampledShards("http://x/{0..99}.tar", seed=seed, deterministic=True)
                    shards.set_epoch(epoch)
                    streams.add(tuple(urls(shards, 20)))
    assert len(streams) == 9 * 4 * 3


def test_issue_453_the_seed_is_used():
    """Issue 453 of webdataset: WebDataset(resampled, seed=) ignored the seed."""
    one, other = (ResampledShards(TEN, seed=seed, deterministic=True) for seed in (1, 2))
    assert urls(one, 20) != urls(other, 20)


def test_a_worker_seed_replaces_rank_and_worker():
    with as_worker(WorkerInfo(1, 2)):
        other = urls(ResampledShards(TEN, worker_seed=lambda: 5, deterministic=True), 20)
    assert urls(ResampledShards(TEN, worker_seed=lambda: 5, deterministic=True), 20) == other
    assert urls(ResampledShards(TEN, worker_seed=lambda: 6, deterministic=True), 20) != other


def test_epochs_differ_and_are_numbered():
    shards = ResampledShards(TEN, nshards=20, deterministic=True)
    assert shards.epoch == -1
    first, second = urls(shards), urls(shards)
    assert first != second
    assert shards.epoch == 1
    shards.set_epoch(0)
    assert urls(shards) == first


def test_random_draws_can_be_repeated():
    shards = ResampledShards(TEN, nshards=20)
    other = ResampledShards(TEN, nshards=20)
    first = urls(shards)
    state = json.loads(json.dumps(shards.state_dict()))
    second = urls(shards)
    assert urls(other) != first
    assert set(state) == {"seed", "epoch"}
    other.load_state_dict(state)
    assert urls(other) == first
    assert urls(other) == second
    copy = pickle.loads(pickle.dumps(shards))
    copy.set_epoch(0)
    assert urls(copy) == first


def test_a_state_before_the_first_epoch():
    shards, other = ResampledShards(TEN, nshards=5), ResampledShards(TEN, nshards=5)
    other.load_state_dict(shards.state_dict())
    assert urls(other) == urls(shards)


def test_bounds_and_emptiness(caplog):
    assert ResampledShards(TEN, max_urls=3).urls == SimpleShardList(TEN).urls[:3]
    assert "max_urls=3" in caplog.text
    caplog.clear()
    assert len(ResampledShards(TEN, max_urls=10).urls) == 10
    assert not caplog.text
    with pytest.raises(NotFound, match="empty_check"):
        ResampledShards([])
    assert list(ResampledShards([], empty_check=False)) == []


def test_seeds_are_shown(monkeypatch, caplog):
    list(ResampledShards(TEN, nshards=1))
    assert not caplog.text
    monkeypatch.setenv("WDS_SHOW_SEED", "1")
    shards = ResampledShards(TEN, nshards=1, seed=5, deterministic=True)
    assert [len(list(shards)) for _ in range(2)] == [1, 1]
    assert "epoch 0 has seed 5" in caplog.text
    assert f"epoch 1 has seed {webdataset.utils.make_seed(0, 1, 5)}" in caplog.text


# -- stages and helpers ---------------------------------------------------------------------------


def test_resampled_stage():
    stage = resampled(100, seed=1)
    first = list(stage(iter(range(10))))
    assert len(first) == 100
    assert set(first) == set(range(10))
    assert list(stage(iter(range(10)))) != first
    assert list(resampled(100, seed=1)(range(10))) == first
    assert list(resampled(100)(range(10))) != list(resampled(100)(range(10)))
    assert list(pickle.loads(pickle.dumps(resampled(3)))([1])) == [1, 1, 1]
    assert list(islice(resampled()([1]), 2)) == [1, 1]
    with pytest.raises(NoSamples, match="resampled"):
        list(resampled(3)([]))


def test_non_empty():
    assert list(non_empty(iter([1, 2]))) == [1, 2]
    with pytest.raises(NoSamples, match="non_empty"):
        list(non_empty([]))


def test_issue_409_expand_urls_takes_lists():
    assert (
        expand_urls("http://x/{a,b}.tar")
        == expand_urls(["http://x/{a,b}.tar"])
        == ["http://x/a.tar", "http://x/b.tar"]
    )


def test_expand_source():
    assert expand_source(TEN, 2) == ["http://x/0.tar", "http://x/1.tar"]
    assert expand_source(f"http://x/{n}.tar" for n in range(3)) == [
        "http://x/0.tar",
        "http://x/1.tar",
        "http://x/2.tar",
    ]
    assert expand_source([]) == []
    with pytest.raises(UrlError, match="int"):
        expand_source(3)


def test_shardspec(tmp_path):
    spec = tmp_path / "Spec.YAML"
    spec.write_text("datasets: [{shards: 'http://x/{0..1}.tar'}]")
    assert isinstance(shardspec(str(spec)), MultiShardSample)
    assert isinstance(shardspec(spec), MultiShardSample)
    assert isinstance(shardspec({"datasets": [{"shards": TEN}]}), MultiShardSample)
    assert isinstance(shardspec(TEN), SimpleShardList)
    assert isinstance(shardspec([TEN]), SimpleShardList)
