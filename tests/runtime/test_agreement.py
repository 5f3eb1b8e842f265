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
store = dist.TCPStore("127.0.0.1", int(os.environ["PORT"]), is_master=False)
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


def run(store, tmp_path, body, variables=("MASTER_ADDR", "MASTER_PORT", "PORT"), **extra):
    """Run a program on two ranks and return the output of each."""
    make_shards(tmp_path)
    urls = World([5, 4, 3, 2, 5]).urls(tmp_path)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "PORT": str(store.port)}
    environment = {**os.environ, **{name: address[name] for name in variables}, **extra}
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
    for case, (outputs, _, _) in CASES.items():
        lines += [
            f"dataset = {outputs}",
            f"print('CASE', {case!r}, end=': ')",
            "turn(lambda: list(dataset))",
            "print()",
        ]
    first, second = run(store, tmp_path, "\n".join(lines))
    assert "DISAGREE" not in first
    printed = second.split("CASE ")[1:]
    results = {part.partition(": ")[0]: part for part in printed}
    for case, (_, what, shown) in CASES.items():
        assert "rank 1 and rank 0 disagree about the " + what in results[case]
        assert shown in results[case]


KINDS = {
    "stream": "web()",
    "WebLoader": "tarmac.WebLoader(web(), batch_size=None)",
    "WebLoader with workers": "tarmac.WebLoader(web(), batch_size=None, num_workers=2)",
    "Loader": "tarmac.Loader(tarmac.Dataset(urls), 1)",
    "BatchSampler": "tarmac.BatchSampler(tarmac.Dataset(urls), 1)",
}


def test_a_rank_that_stays_at_its_epoch_is_named(store, tmp_path):
    """Rank 0 may count the samples alone before that, elsewhere in the program."""
    lines = []
    for kind, created in KINDS.items():
        lines += [
            f"dataset = {created}",
            "if rank == 0: list(dataset)",
            f"print('CASE', {kind!r}, end=': ')",
            "for epoch in range(3):",
            "    dataset.set_epoch(epoch * (rank == 0))",
            "    turn(lambda: list(dataset))",
            "    print('epoch', epoch)",
        ]
    first, second = run(store, tmp_path, "\n".join(lines))
    assert "DISAGREE" not in first
    for part in second.split("CASE ")[1:]:
        assert "DISAGREE" not in part.partition("epoch 0")[0], part
        assert "rank 1 and rank 0 disagree about the epoch: 0 and 1" in part


def test_ranks_that_set_the_epoch_may_count_samples_alone(store, tmp_path):
    lines = []
    for created in KINDS.values():
        lines += [
            f"dataset = {created}",
            "if rank == 0: list(dataset)",
            "for epoch in range(3):",
            "    dataset.set_epoch(epoch)",
            "    turn(lambda: list(dataset))",
        ]
    assert "DISAGREE" not in "".join(run(store, tmp_path, "\n".join(lines)))


def test_epochs_of_few_items_are_compared(store, tmp_path):
    body = """
    dataset = web().listed(40)
    dataset.set_epoch(3 + rank)
    turn(lambda: list(dataset))
    fixed = web().with_epoch(2)
    fixed.set_epoch(3 + rank)
    turn(lambda: list(fixed))
    """
    _, second = run(store, tmp_path, body)
    assert second.count("rank 1 and rank 0 disagree about the epoch: 4 and 3") == 2


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_know_the_store_without_environment_variables(store, tmp_path, start):
    body = f"""
    import torch
    dataset = tarmac.WebDataset(urls[rank:], shardshuffle=False, nodesplitter=wds.split_by_node)
    loader = torch.utils.data.DataLoader(dataset, None, num_workers=1, multiprocessing_context={start!r})
    turn(lambda: list(loader))
    """
    printed = run(store, tmp_path, body, variables=("PORT",))
    assert "disagree about the shards" in printed[1]


def test_the_check_can_be_switched_off(store, tmp_path):
    printed = run(store, tmp_path, "turn(lambda: list(web(urls[rank:])))", TARMAC_CHECK_RANKS="0")
    assert "DISAGREE" not in "".join(printed)


ASSIGNED = {
    "list": "tarmac.DataPipeline(wds.SimpleShardList(urls), wds.split_by_node,"
    " wds.tarfile_to_samples(), wds.map(key_of))",
    "detshuffle": "tarmac.DataPipeline(wds.SimpleShardList(urls), wds.detshuffle(9), wds.split_by_node,"
    " wds.tarfile_to_samples(), wds.map(key_of))",
}
ASSIGN = {"list": "dataset.stage(0).seed = {}", "detshuffle": "dataset.stage(1).epoch = {}"}


@pytest.mark.parametrize("workers", [None, 1])
def test_ranks_may_assign_seeds_and_epochs_in_each_epoch(store, tmp_path, workers):
    """As programs for webdataset do; ranks that assign different ones are named."""
    lines = ["import torch"]
    for kind, created in ASSIGNED.items():
        for other in (0, 1):
            lines += [
                f"dataset = {created}",
                f"loader = torch.utils.data.DataLoader(dataset, None, num_workers={workers})" * bool(workers)
                or "loader = dataset",
                "if rank == 0: next(iter(loader))",
                f"print('CASE', {kind!r}, end=' ')" if other else "orders = []",
                "for epoch in range(3):",
                f"    {ASSIGN[kind].format(f'epoch + {other} * rank')}",
                "    turn(lambda: list(loader))"
                if other
                else "    turn(lambda: orders.append(list(loader)))",
                "print()" if other else "print('KEYS', *(','.join(order) for order in orders))",
            ]
    first, second = run(store, tmp_path, "\n".join(lines))
    assert "DISAGREE" not in first
    mine, theirs = ([line for line in out.splitlines() if line.startswith("KEYS")] for out in (first, second))
    for one, other in zip(mine, theirs, strict=True):
        for left, right in zip(one.split()[1:], other.split()[1:], strict=True):
            assert sorted(left.split(",") + right.split(",")) == World([5, 4, 3, 2, 5]).keys
    for part in second.split("CASE ")[1:]:
        assert "rank 1 and rank 0 disagree about the " in part
