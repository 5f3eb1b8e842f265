"""Loaders that are made before anything says which rank this is, as at the top of a module."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
from collections import Counter

import pytest

import tarmac
from tarmac.errors import LoaderError

MAKERS = [tarmac.Loader, tarmac.BatchSampler]
EVERYTHING = Counter(f"s{number:05d}" for number in range(203))

PROGRAM = """
    import json, sys
    import torch.distributed as dist
    import tarmac

    rank, meeting, *shards = sys.argv[1:]
    dataset = tarmac.Dataset(shards)

    def make():
        return {
            "threads": tarmac.Loader(dataset, 4, tail="short", threads=1),
            "processes": tarmac.Loader(dataset, 4, tail="short", threads=0, processes=1),
            "spawned": tarmac.Loader(dataset, 4, tail="short", threads=0, processes=1, start_method="spawn"),
            "sampler": tarmac.BatchSampler(dataset, 4, tail="short"),
        }

    def keys_of(batch):
        return batch["__key__"] if isinstance(batch, dict) else [dataset.key_of(index) for index in batch]

    if __name__ == "__main__":
        before = make()
        for loader in before.values():
            assert len(loader) == 51
            next(iter(loader))
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)
        found = []
        for name, loader in [*before.items(), *make().items()]:
            assert (loader.rank, loader.world_size, len(loader)) == (int(rank), 2, 26)
            for epoch in range(2):
                found.append([name, [key for batch in loader for key in keys_of(batch)]])
            if name != "sampler":
                loader.close()
        dist.barrier()
        dist.destroy_process_group()
        print(json.dumps(found))
"""


def without_rank():
    return {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}


def test_every_sample_once_with_a_process_group_that_came_later(shards, tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    environment = without_rank() | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), tmp_path / "meeting", *shards],
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for rank in range(2)
    ]
    try:
        found = [json.loads(rank.communicate(timeout=300)[0].splitlines()[-1]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.stdout.close()
    assert len(found[0]) == 2 * 2 * 4
    for (name, mine), (_, theirs) in zip(*found, strict=True):
        assert Counter(mine) + Counter(theirs) == EVERYTHING, name
        assert abs(len(mine) - len(theirs)) <= 1, name


@pytest.fixture
def become(monkeypatch):
    """Let this process be another rank from now on."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def set_rank(rank, world_size):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))

    return set_rank


@pytest.mark.parametrize("maker", MAKERS)
def test_an_iteration_under_way_keeps_its_ranks(dataset, become, maker):
    loader = maker(dataset, 10)
    batches = iter(loader)
    next(batches)
    become(1, 2)
    assert (loader.rank, loader.world_size, len(loader)) == (0, 1, 20)
    next(batches)
    assert (loader.position, loader.state_dict()["step"]) == (20, 2)
    batches.close()
    assert (loader.rank, loader.world_size, len(loader)) == (1, 2, 10)
    assert len(list(loader)) == 10
    given = maker(dataset, 10, rank=0, world_size=1)
    assert (given.rank, given.world_size, len(given)) == (0, 1, 20)


@pytest.mark.parametrize("maker", MAKERS)
def test_what_the_ranks_must_fulfil_is_checked_when_they_are_known(dataset, become, maker):
    loader, large = maker(dataset, 10), maker(dataset, 150)
    become(0, 3)
    for use in (len, list):
        with pytest.raises(ValueError, match="64 streams cannot be shared evenly by 3 ranks"):
            use(loader)
    become(0, 2)
    for use in (len, list):
        with pytest.raises(LoaderError, match="203 samples do not fill a batch of 150 on each of 2 ranks"):
            use(large)
    assert len(loader) == len(list(loader)) == 10


@pytest.mark.parametrize("maker", MAKERS)
def test_another_process_has_the_rank_of_the_one_that_sent_the_loader(shards, become, tmp_path, maker):
    loader = maker(tarmac.Dataset(shards), 10)
    become(1, 2)
    (tmp_path / "loader").write_bytes(pickle.dumps(loader))
    program = (
        "import pickle, sys; one = pickle.load(open(sys.argv[1], 'rb')); print(one.rank, one.world_size)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "loader"],
        env=without_rank() | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1", "2"]
