"""Ranks that disagree about their dataset raise where torch.distributed runs, and no rank waits."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from datetime import timedelta

import pytest
import torch.distributed as dist

from harness.readers import World, make_shards

PROGRAM = """
import os, random, sys, warnings
import torch.distributed as dist
import tarmac
import tarmac.webdataset as wds
warnings.simplefilter("ignore")
rank = int(os.environ["RANK"])
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.PrefixStore("test", store))
urls = sys.argv[1:]
def key_of(sample): return sample["__key__"]
def turn(step):
    "Let rank 0 go first, so that rank 1 always compares with it."
    if rank == 1:
        dist.barrier()
    try:
        step()
    except tarmac.errors.RanksDisagree as error:
        print("DISAGREE", error)
    if rank == 0:
        dist.barrier()
    dist.barrier()
def web(urls=urls, **options):
    options = {"shardshuffle": True, "nodesplitter": wds.split_by_node, **options}
    return tarmac.WebDataset(urls, **options).map(key_of)
"""


@pytest.fixture
def store():
    return dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )


def run(store, tmp_path, body, **extra):
    """Run a program on two ranks and return the output of each."""
    make_shards(tmp_path)
    urls = World([5, 4, 3, 2, 5]).urls(tmp_path)
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), **extra}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM + textwrap.dedent(body), *urls],
            env={**environment, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = []
    for process in processes:
        out, err = process.communicate(timeout=250)
        assert process.returncode == 0, err
        printed.append(out)
    return printed


def test_ranks_that_agree_may_peek_and_shuffle_differently(store, tmp_path):
    body = """
    train, other = web(seed=42 + rank), web(urls[:2])
    if rank == 0:
        next(iter(train))
        next(iter(web(urls[:3])))
        train.set_epoch(9)
        next(iter(train))
        train.set_epoch(0)
    found = []
    for epoch in range(3):
        turn(lambda: found.append(list(train)))
        turn(lambda: list(other))
        train.set_epoch(epoch)
    print(",".join(sorted(found[0])), ",".join(sorted(found[2])))
    """
    first, second = run(store, tmp_path, body)
    assert "DISAGREE" not in first + second
    for mine, theirs in zip(first.split(), second.split(), strict=True):
        assert sorted(mine.split(",") + theirs.split(",")) == World([5, 4, 3, 2, 5]).keys


def test_ranks_may_peek_at_batches_and_restart(store, tmp_path):
    body = """
    loader = tarmac.Loader(tarmac.Dataset(urls), 1, tail="short")
    found = []
    for epoch in range(3):
        if rank == epoch % 2:
            next(iter(loader))
        if rank == 0:
            list(zip(range(3), loader))
        turn(lambda: found.append([key for batch in loader for key in batch["__key__"]]))
    print(*(",".join(sorted(keys)) for keys in found))
    """
    first, second = run(store, tmp_path, body)
    assert "DISAGREE" not in first + second
    for mine, theirs in zip(first.split(), second.split(), strict=True):
        assert sorted(mine.split(",") + theirs.split(",")) == World([5, 4, 3, 2, 5]).keys


CASES = {
    "shards": ("web(urls[rank:])", "shards", "5 shards"),
    "order": ("web(urls[::1 - 2 * rank])", "shards", "same list in the same order"),
    "epoch": ("set_epoch(web(), 3 + rank)", "epoch", "4 and 3"),
    "seed of a list": (
        "tarmac.DataPipeline(wds.SimpleShardList(urls, seed=rank), wds.split_by_node)",
        "seed",
        "1 and 0",
    ),
    "seed of a shuffle": (
        "tarmac.DataPipeline(wds.SimpleShardList(urls), wds.shuffle(3, seed=rank), wds.split_by_node)",
        "seed",
        "1 and 0",
    ),
    "generator of a shuffle": (
        "tarmac.DataPipeline(wds.SimpleShardList(urls), wds.shuffle(3, rng=random.Random(rank)),"
        " wds.split_by_node)",
        "seed",
        "Shuffle",
    ),
    "in a loader": (
        "tarmac.WebLoader(web(urls[rank:]), batch_size=None, num_workers=2)",
        "shards",
        "5 shards",
    ),
    "epoch in a loader": (
        "set_epoch(tarmac.WebLoader(web(), batch_size=None, num_workers=2), 3 + rank)",
        "epoch",
        "4 and 3",
    ),
    "epoch on one rank only": ("web() if rank == 0 else set_epoch(web(), 5)", "epoch", "5 and 0"),
    "epoch on one rank of a loader": (
        "tarmac.WebLoader(web(), batch_size=None) if rank == 0 else"
        " set_epoch(tarmac.WebLoader(web(), batch_size=None), 5)",
        "epoch",
        "5 and 0",
    ),
    "epoch in a loader of torch": (
        "torch.utils.data.DataLoader(set_epoch(web(), 3 + rank), batch_size=None, num_workers=1)",
        "epoch",
        "4 and 3",
    ),
    "epochs of a mixture": (
        "wds.FluidWrapper(wds.RandomMix([web(), web()], longest=True)) if rank == 0 else"
        " set_epoch(wds.FluidWrapper(wds.RandomMix([web(), web()], longest=True)), 5)",
        "epoch",
        "5 and 0",
    ),
    "in a loader of torch": (
        "torch.utils.data.DataLoader(web(urls[rank:]), batch_size=None, num_workers=2)",
        "shards",
        "5 shards",
    ),
    "seed of a Loader": ("tarmac.Loader(tarmac.Dataset(urls), 1, seed=42 + rank)", "seed", "43 and 42"),
    "samples of a Loader": ("tarmac.Loader(tarmac.Dataset(urls)[rank:], 1)", "samples", "same selection"),
    "batches of a Loader": ("tarmac.Loader(tarmac.Dataset(urls), 1 + rank)", "batches", "2 a rank"),
    "epoch of a Loader": ("set_epoch(tarmac.Loader(tarmac.Dataset(urls), 1), 3 + rank)", "epoch", "4 and 3"),
    "epoch of one batch": ("set_epoch(tarmac.Loader(tarmac.Dataset(urls), 8), rank)", "epoch", "1 and 0"),
    "epoch of a BatchSampler": (
        "set_epoch(tarmac.BatchSampler(tarmac.Dataset(urls), 1), 3 * rank)",
        "epoch",
        "3 and 0",
    ),
    "one more pass": ("read_on_rank_1(tarmac.Loader(tarmac.Dataset(urls), 1))", "epoch", "1 and 0"),
    "state on one rank": (
        "resume_on_rank_1(tarmac.Loader(tarmac.Dataset(urls), 1))",
        "position",
        "same state",
    ),
    "equal batches": ("web(urls[rank:]).with_equal_batches(1)", "shards", "5 shards"),
}


def test_ranks_that_disagree_are_named(store, tmp_path):
    lines = [
        "import torch",
        "def set_epoch(dataset, epoch):",
        "    dataset.set_epoch(epoch)",
        "    return dataset",
        "def read_on_rank_1(loader):",
        "    if rank == 1:",
        "        list(loader)",
        "    return loader",
        "def resume_on_rank_1(loader):",
        "    if rank == 1:",
        "        loader.load_state_dict(loader.state_dict() | {'position': 4, 'step': 2})",
        "    return loader",
    ]
    for case, (made, _, _) in CASES.items():
        lines += [
            f"dataset = {made}",
            f"print('CASE', {case!r}, end=': ')",
            "turn(lambda: list(dataset))",
            "print()",
        ]
    first, second = run(store, tmp_path, "\n".join(lines))
    assert "DISAGREE" not in first
    printed = second.split("CASE ")[1:]
    found = {part.partition(": ")[0]: part for part in printed}
    for case, (_, what, shown) in CASES.items():
        assert "rank 1 and rank 0 disagree about the " + what in found[case]
        assert shown in found[case]


def test_the_check_can_be_switched_off(store, tmp_path):
    printed = run(store, tmp_path, "turn(lambda: list(web(urls[rank:])))", TARMAC_CHECK_RANKS="0")
    assert "DISAGREE" not in "".join(printed)
