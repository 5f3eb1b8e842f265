"""The rank and worker of a process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.workers import as_worker
from tarmac import environment
from tarmac.compat.webdataset.utils import pytorch_worker_info, pytorch_worker_seed
from tarmac.runtime.worker_info import (
    WorkerInfo,
    assume_worker,
    become_worker,
    current_worker_info,
    loader_token,
    remember_rank,
)


def test_a_single_process():
    assert current_worker_info() == WorkerInfo(0, 1, 0, 1)
    assert pytorch_worker_info() == (0, 1, 0, 1)
    assert loader_token() is None


def test_the_environment():
    with as_worker(WorkerInfo(2, 4, 1, 3)):
        assert current_worker_info() == WorkerInfo(2, 4, 1, 3)
        assert current_worker_info().index == 7
        assert current_worker_info().count == 12
        assert pytorch_worker_seed() == 2001


def test_incomplete_settings_are_ignored(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("NUM_WORKERS", "3")
    assert current_worker_info() == WorkerInfo()


def test_indexes_are_unique():
    world_size, workers = 3, 1500
    assert (
        len({WorkerInfo(r, world_size, w, workers).index for r in range(world_size) for w in range(workers)})
        == 4500
    )


@pytest.mark.parametrize(
    "numbers", [(1, 1, 0, 1), (-1, 1, 0, 1), (0, 1, 2, 2), (0, 1, 0, 0), (0, 0, 0, 1), (0, 1, -1, 1)]
)
def test_invalid_numbers(numbers):
    with pytest.raises(ValueError, match=r"^(rank|worker) .*\b0 "):
        WorkerInfo(*numbers)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS", "WDS_SEED"])
def test_invalid_environment_variables_are_named(monkeypatch, name):
    for other in ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS"):
        monkeypatch.setenv(other, "1")
    monkeypatch.setenv(name, "one")
    with pytest.raises(ValueError, match=f"{name}.*'one'"):
        environment.default_seed(), environment.rank_and_world(), environment.worker_and_workers()


def test_seed_from_the_environment(monkeypatch):
    assert environment.default_seed() == 0
    assert not environment.show_seed()
    monkeypatch.setenv("WDS_SEED", "42")
    monkeypatch.setenv("WDS_SHOW_SEED", "1")
    assert environment.default_seed() == 42
    assert environment.show_seed()


class Distributed:
    """torch.distributed after init_process_group: rank 3 of 8, and 1 of 2 in the group "data"."""

    def __init__(self, ready: bool = True) -> None:
        self.ready = ready

    def is_available(self):
        return True

    def is_initialized(self):
        return self.ready

    def get_rank(self, group=None):
        return {None: 3, "data": 1, "other": -1}[group]

    def get_world_size(self, group=None):
        return {None: 8, "data": 2, "other": -1}[group]


@pytest.fixture
def distributed(monkeypatch):
    class Torch:
        distributed = Distributed()

    monkeypatch.setitem(sys.modules, "torch", Torch)
    return Torch.distributed


def test_the_environment_has_precedence_over_torch(distributed):
    assert current_worker_info() == WorkerInfo(3, 8)
    with as_worker(WorkerInfo(1, 2)):
        assert current_worker_info() == WorkerInfo(1, 2)
    distributed.ready = False
    assert current_worker_info() == WorkerInfo(0, 1)


def test_a_process_group_has_precedence_over_the_environment(distributed):
    assert current_worker_info("data") == WorkerInfo(1, 2)
    with as_worker(WorkerInfo(5, 8)):
        assert current_worker_info("data") == WorkerInfo(1, 2)
        assert pytorch_worker_info("data") == (1, 2, 0, 1)
    with pytest.raises(ValueError, match="group"):
        current_worker_info("other")


def test_a_spawned_worker_has_the_rank_of_its_parent(distributed):
    distributed.ready = False
    remember_rank(2, 4)
    try:
        assert current_worker_info() == WorkerInfo(2, 4)
        with as_worker(WorkerInfo(1, 2)):
            assert current_worker_info() == WorkerInfo(1, 2)
        distributed.ready = True
        assert current_worker_info() == WorkerInfo(3, 8)
        distributed.ready = False
    finally:
        remember_rank(0, 1)
    assert current_worker_info() == WorkerInfo(0, 1)


def test_a_worker_can_act_as_another():
    with as_worker(WorkerInfo(0, 2, 1, 4)):
        assume_worker(3)
        try:
            assert current_worker_info() == WorkerInfo(0, 2, 3, 4)
        finally:
            assume_worker(None)
        assert current_worker_info() == WorkerInfo(0, 2, 1, 4)


def test_torch_is_not_imported():
    code = (
        "import sys; from tarmac.stream.shards.lists import SimpleShardList; "
        "from tarmac.stream.shuffle import Shuffle; from tarmac.stream.shards.split import split_all; "
        "list(split_all(Shuffle()(SimpleShardList(['a.tar'])))); "
        "print([n for n in ('torch', 'numpy', 'yaml') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_worker_of_tarmac_ignores_the_environment(monkeypatch):
    monkeypatch.setattr("tarmac.runtime.worker_info._become", [])
    with as_worker(WorkerInfo(1, 2, 3, 4)):
        become_worker(1, 2, token=99)
        assert current_worker_info() == WorkerInfo(1, 2, 1, 2)
        assert loader_token() == 99
    with pytest.raises(ValueError, match=r"^worker .*\b2$"):
        become_worker(2, 2, token=99)
