"""Follow the hints for ranks that disagree: two ranks run one after the other, with a store that both know."""

from __future__ import annotations

from collections import Counter

import pytest

import tarmac
import tarmac.webdataset as wds
from harness.datasets import write_shards
from harness.hints import follows, hinted
from harness.workers import as_worker
from tarmac.runtime import agreement
from tarmac.runtime.worker_info import WorkerInfo


class Store(dict):
    """What ranks share: the first value of each name."""

    def compare_set(self, name, _expected, value):
        return self.setdefault(name, value)


@pytest.fixture
def on_two_ranks(tmp_path, monkeypatch):
    """Return a function that reads the dataset of each rank."""
    urls = write_shards(tmp_path, [4, 4, 4, 4])

    def read(make) -> list[int]:
        store, counts = Store(), []
        monkeypatch.setattr(agreement, "_store", lambda: store)
        for rank in range(2):
            monkeypatch.setattr(agreement, "_created", Counter())  # as in another process
            with as_worker(WorkerInfo(rank, 2, 0, 1)):
                counts.append(len(list(make(urls, rank))))
        assert store
        return counts

    return read


def web(urls, **options):
    return tarmac.WebDataset(urls, shardshuffle=True, nodesplitter=wds.split_by_node, **options)


def loader(urls, batch_size=2, **options):
    return tarmac.Loader(tarmac.Dataset(urls), batch_size, threads=0, **options)


def at_epoch(dataset, epoch):
    dataset.set_epoch(epoch)
    return dataset


def resumed(dataset, step):
    dataset.load_state_dict(dataset.state_dict() | {"position": 4 * step, "step": step})
    return dataset


def by_seed(urls, seed, seed_after_the_split=0):
    stages = wds.shuffle(3, seed=seed), wds.split_by_node, wds.shuffle(3, seed=seed_after_the_split)
    return tarmac.DataPipeline(wds.SimpleShardList(urls), *stages)


def by_epoch(urls, epoch):
    return tarmac.DataPipeline(wds.SimpleShardList(urls), wds.detshuffle(epoch=epoch), wds.split_by_node)


CASES = {
    "give all ranks the same list in the same order; a pattern may match different files on each machine.": [
        (lambda urls, rank: web(urls[rank:]), lambda urls, _: web(urls)),
        (lambda urls, rank: web(urls[:: 1 - 2 * rank]), lambda urls, _: web(urls)),
    ],
    "call set_epoch, or set the `epoch` of a stage, with the same number on all ranks.": [
        (lambda urls, rank: at_epoch(web(urls), rank), lambda urls, _: at_epoch(web(urls), 1)),
        (lambda urls, rank: at_epoch(loader(urls), rank), lambda urls, _: at_epoch(loader(urls), 1)),
        (by_epoch, lambda urls, _: by_epoch(urls, 1)),
    ],
    "load the same state on all ranks.": [
        (lambda urls, rank: resumed(loader(urls), rank), lambda urls, _: resumed(loader(urls), 1)),
    ],
    "give all ranks the same seed; stages after the split may have any.": [
        (lambda urls, rank: loader(urls, seed=rank), lambda urls, _: loader(urls, seed=7)),
        (by_seed, lambda urls, rank: by_seed(urls, 7, rank)),
    ],
    "give all ranks the same dataset with the same selection.": [
        (
            lambda urls, rank: tarmac.Loader(tarmac.Dataset(urls)[rank:], 2, threads=0),
            lambda urls, _: tarmac.Loader(tarmac.Dataset(urls)[1:], 2, threads=0),
        ),
    ],
    "give all ranks the same batch_size and tail.": [
        (lambda urls, rank: loader(urls, 2 + rank), lambda urls, _: loader(urls, 3)),
        (
            lambda urls, rank: loader(urls, 3, tail=["drop", "short"][rank]),
            lambda urls, _: loader(urls, 3, tail="short"),
        ),
    ],
    "give all ranks the same streams, window and shuffle.": [
        (lambda urls, rank: loader(urls, streams=1 + rank), lambda urls, _: loader(urls, streams=2)),
        (lambda urls, rank: loader(urls, window=4 + rank), lambda urls, _: loader(urls, window=5)),
        (lambda urls, rank: loader(urls, shuffle=not rank), lambda urls, _: loader(urls, shuffle=False)),
    ],
}


@follows(
    "give all ranks the same list in the same order; a pattern may match different files on each machine.",
    "call set_epoch, or set the `epoch` of a stage, with the same number on all ranks.",
    "load the same state on all ranks.",
    "give all ranks the same seed; stages after the split may have any.",
    "give all ranks the same dataset with the same selection.",
    "give all ranks the same batch_size and tail.",
    "give all ranks the same streams, window and shuffle.",
)
@pytest.mark.parametrize(
    ("hint", "number"), [(hint, number) for hint, cases in CASES.items() for number in range(len(cases))]
)
def test_ranks_that_disagree(on_two_ranks, hint, number):
    wrong, right = CASES[hint][number]
    with hinted(hint, tarmac.errors.RanksDisagree):
        on_two_ranks(wrong)
    assert all(on_two_ranks(right))
