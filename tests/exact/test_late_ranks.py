"""Loaders that are created before the rank is known, as at the top of a module."""

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

CLASSES = [tarmac.Loader, tarmac.BatchSampler]
EVERYTHING = Counter(f"s{number:05d}" for number in range(203))

PROGRAM = """
    import json, sys
    import torch.distributed as dist
    import tarmac

    rank, rendezvous, *shards = sys.argv[1:]
    dataset = tarmac.Dataset(shards)

    def create():
        return {
            "threads": tarmac.Loader(dataset, 4, tail="short", threads=1),
            "processes": tarmac.Loader(dataset, 4, tail="short", threads=0, processes=1),
            "spawned": tarmac.Loader(dataset, 4, tail="short", threads=0, processes=1, start_method="spawn"),
            "sampler": tarmac.BatchSampler(dataset, 4, tail="short"),
        }

    def keys(batch):
        return batch["__key__"] if isinstance(batch, dict) else [dataset.key(index) for index in batch]

    if __name__ == "__main__":
        early = create()
        for loader in early.values():
            assert len(loader) == 51
            next(iter(loader))
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=2)
        result = []
        for name, loader in [*early.items(), *create().items()]:
            assert (loader.rank, loader.world_size, len(loader)) == (int(rank), 2, 26)
            for epoch in range(2):
                result.append([name, [key for batch in loader for key in keys(batch)]])
            if name != "sampler":
                loader.close()
        dist.barrier()
        dist.destroy_process_group()
        print(json.dumps(result))
"""


def without_rank():
    return {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}


def test_every_sample_once_with_a_late_process_group(shards, tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    environment = without_rank() | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), tmp_path / "rendezvous", *shards],
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for rank in range(2)
    ]
    try:
        results = [json.loads(rank.communicate(timeout=300)[0].splitlines()[-1]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.stdout.close()
    assert len(results[0]) == 2 * 2 * 4
    for (name, mine), (_, theirs) in zip(*results, strict=True):
        assert Counter(mine) + Counter(theirs) == EVERYTHING, name
        assert abs(len(mine) - len(theirs)) <= 1, name


@pytest.fixture
def become(monkeypatch):
    """Return a function that changes the rank of this process."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def set_rank(rank, world_size):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))

    return set_rank


@pytest.mark.parametrize("cls", CLASSES)
def test_an_iteration_keeps_its_rank(dataset, become, cls):
    loader = cls(dataset, 10)
    batches = iter(loader)
    next(batches)
    become(1, 2)
    assert (loader.rank, loader.world_size, len(loader)) == (0, 1, 20)
    next(batches)
    assert (loader.position, loader.state_dict()["step"]) == (20, 2)
    batches.close()
    assert (loader.rank, loader.world_size, len(loader)) == (1, 2, 10)
    assert len(list(loader)) == 10
    explicit = cls(dataset, 10, rank=0, world_size=1)
    assert (explicit.rank, explicit.world_size, len(explicit)) == (0, 1, 20)


@pytest.mark.parametrize("cls", CLASSES)
def test_ranks_are_checked_when_they_are_known(dataset, become, cls):
    loader, large = cls(dataset, 10), cls(dataset, 150)
    become(3, 3)
    for use in (len, list):
        with pytest.raises(ValueError, match="rank"):
            use(loader)
    become(0, 2)
    for use in (len, list):
        with pytest.raises(LoaderError, match=r"\b203 .*\b150 .*\b2 "):
            use(large)
    assert len(loader) == len(list(loader)) == 10


@pytest.mark.parametrize("cls", CLASSES)
def test_a_pickled_loader_keeps_its_rank(shards, become, tmp_path, cls):
    loader = cls(tarmac.Dataset(shards), 10)
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
