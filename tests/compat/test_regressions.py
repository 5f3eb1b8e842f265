"""Problems reported by users of the webdataset library, one test each, named after the issue if there is one.

Tested elsewhere, close to the code:
- tests/stream: equal batches on all ranks (#188, #194, #225, #250), every sample once over all workers
  (#364, #487, #65, #68), another order in each epoch (#172, #190, #299, PR 502), epochs and lengths
  (#260, #278, #303, #419, #47, #66), damaged shards (#142, #173, #286), lambdas in spawned workers
  (#251, #63), resuming (#177, #234, #271), sample caches with workers (#445), selecting files (#257);
- tests/stream, tests/runtime: seeds, draws and mixtures (#453, #388, #429, #482), lists of URLs (#409),
  directories (#415),
  splits (#72), shuffles (#62);
- tests/storage: caches, their names, races and budgets (#84, #117, #145, #212, #402, PR 503), retries and
  commands (#411, #108), stores (#21, #46, #254, #433);
- tests/samples: names with dots (#237, #288), selecting fields (#200), writers (#115, #207, #211, #216,
  #228, #262, #376);
- tests/codecs: video and audio (#277, #189), pickles (#490);
- tests/storage/test_urls.py: globs (#156, #170).
"""

from __future__ import annotations

import os
import pickle
import time
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import tarmac.webdataset as wds
from harness.shards import plain
from tarmac.compat.webdataset.cache import StreamingOpen
from tarmac.compat.webdataset.tariterators import group_by_keys, tar_file_expander
from tarmac.errors import CommandFailed, Truncated, UnsafeCodec


@pytest.fixture
def shards(tmp_path):
    for number in range(8):
        files = [(f"{number}{i}.{field}", b"%d" % i) for i in range(4) for field in ("cls", "txt")]
        (tmp_path / f"x-{number}.tar").write_bytes(plain(files))
    return str(tmp_path / "x-{0..7}.tar")


def keys(dataset):
    return [sample["__key__"] for sample in dataset]


def first(shards):
    return shards.replace("{0..7}", "0")


@pytest.mark.parametrize("end", [b"", b"exit 7"])
def test_issue_473_a_pipe_that_ends_between_members_is_an_error(shards, end):
    """The library ended the samples without an error, whatever the status of the command."""
    command = f"pipe:head -c 2048 {first(shards)}; {end.decode() or 'true'}"
    with pytest.raises((Truncated, CommandFailed)):
        keys(wds.WebDataset(command, shardshuffle=False))


def test_issue_432_no_half_sample_in_a_truncated_shard(shards):
    path = Path(first(shards))
    path.write_bytes(path.read_bytes()[: 3 * 1024])  # the second sample has no txt
    dataset = wds.WebDataset(shards, shardshuffle=False, handler=wds.ignore_and_continue)
    assert keys(dataset)[:2] == ["00", "10"]
    assert sum(drops.count for drops in dataset.drops().values()) == 1


def test_issue_71_workers_are_not_tied_to_their_shards(shards, monkeypatch):
    monkeypatch.setenv("WORKER", "0")
    monkeypatch.setenv("NUM_WORKERS", "2")
    dataset = wds.WebDataset(shards, shardshuffle=100)
    seen = []
    for epoch in range(6):
        dataset.set_epoch(epoch)  # all workers are in the same epoch
        seen.append(frozenset(key[0] for key in keys(dataset)))
    assert len(set(seen)) > 1
    assert all(len(one) == 4 for one in seen)


def test_issue_158_an_endless_stream_need_not_draw_with_replacement(shards):
    """The only endless stream of the library draws with replacement, which leaves out a third of the shards."""
    stream = iter(wds.WebDataset(shards, shardshuffle=True).shuffle(10).repeat())
    epochs = [sorted(sample["__key__"] for sample in islice(stream, 32)) for _ in range(3)]
    assert epochs == [sorted(f"{number}{i}" for number in range(8) for i in range(4))] * 3


def test_issue_345_closing_a_command_early_prints_nothing(shards, capfd):
    next(iter(wds.WebDataset(f"pipe:cat {shards}; echo noise >&2", shardshuffle=False)))
    assert capfd.readouterr() == ("", "")


def test_issue_350_neighbours_in_a_shard_are_spread_over_the_epoch(shards):
    order = keys(wds.WebDataset(shards, shardshuffle=True, seed=1).shuffle(16, seed=1))
    adjacent = sum(a[0] == b[0] for a, b in pairwise(order))
    assert adjacent < 12  # of 31; 24 without the shuffle


def test_the_seed_of_a_resampled_dataset_has_an_effect(shards):
    def draws(seed):
        return keys(wds.WebDataset(shards, resampled=True, seed=seed).with_epoch(40))

    assert draws(1) == draws(1) != draws(2)


def test_issue_365_partly_read_datasets_leave_no_files_open(shards):
    existing = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        next(iter(wds.WebDataset(f"pipe:cat {shards}", shardshuffle=False)))
        next(iter(wds.WebDataset(shards, shardshuffle=False)))
    assert len(os.listdir("/proc/self/fd")) <= existing + 1


def test_issue_417_nested_dictionaries_are_unbatched():
    samples = [{"x": i, "meta": {"a": i, "b": {"c": i}}} for i in range(4)]
    batch = torch.utils.data.default_collate(samples)
    rows = list(wds.unbatched()([batch]))
    assert [int(row["x"]) for row in rows] == [0, 1, 2, 3]
    assert [int(row["meta"]["b"]["c"]) for row in rows] == [0, 1, 2, 3]


def test_issue_490_default_decoding_does_not_load_pickles(tmp_path):
    (tmp_path / "a.tar").write_bytes(plain([("a.pyd", pickle.dumps(1))]))
    dataset = wds.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False)
    with pytest.raises(UnsafeCodec):
        list(dataset.decode())
    assert list(dataset.decode(allow_pickle=True).to_tuple("pyd")) == [(1,)]


def test_issue_361_pipelines_with_lengths_are_picklable(shards):
    dataset = wds.WebDataset(shards, shardshuffle=10).shuffle(10).batched(4).with_length(8, silent=True)
    assert len(pickle.loads(pickle.dumps(dataset))) == 8


def test_issue_282_epochs_of_a_loader_are_counted_in_its_own_items(shards):
    dataset = wds.WebDataset(shards, shardshuffle=10).decode().to_tuple("cls").batched(4)
    loader = wds.WebLoader(dataset, batch_size=None).unbatched().shuffle(10).batched(5).with_epoch(9)
    assert [len(labels) for (labels,) in loader] == [5] * 6 + [2] + [5] * 2


@pytest.mark.parametrize("name", ["a#1.tar", "a?b.tar", "a b%20.tar", "a{1}.tar", "x[0].tar"])
def test_names_with_special_characters(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(plain([("k.txt", b"1")]))
    assert keys(wds.WebDataset(str(path), shardshuffle=False)) == ["k"]
    files = tar_file_expander(StreamingOpen()([{"url": str(path)}]))
    assert keys(group_by_keys(files)) == ["k"]


def test_paths_are_accepted(shards, tmp_path):
    assert len(keys(wds.WebDataset(tmp_path / "x-0.tar", shardshuffle=False))) == 4
    assert len(keys(wds.WebDataset([tmp_path / "x-0.tar"], shardshuffle=False))) == 4


def test_shell_variables_in_commands(shards, monkeypatch):
    monkeypatch.setenv("SHARD", first(shards))
    assert len(keys(wds.WebDataset("pipe:cat ${SHARD}", shardshuffle=False))) == 4


def test_cached_samples_are_not_changed_by_later_stages(shards):
    dataset = wds.WebDataset(first(shards), shardshuffle=False).decode().mcached()
    changed = dataset.map_dict(cls=lambda x: x + 1).associate(lambda key: {"extra": key})
    assert list(changed) == list(changed)


def test_seed_of_the_environment_with_detshuffle(shards, monkeypatch):
    monkeypatch.setenv("WDS_SEED", "5")
    dataset = wds.WebDataset(shards, shardshuffle=100, detshuffle=True)
    assert sorted(keys(dataset)) == sorted(keys(wds.WebDataset(shards, shardshuffle=False)))


def test_handlers_of_every_stage_that_takes_one(shards):
    def bad(sample):
        raise ValueError("bad")

    dataset = wds.WebDataset(first(shards), shardshuffle=False)
    assert list(dataset.select(bad, handler=wds.ignore_and_continue)) == []
    assert list(dataset.rename(x="none", handler=wds.ignore_and_continue)) == []
    assert list(dataset.to_tuple("none", handler=wds.ignore_and_continue)) == []


def test_warnings_do_not_sleep(shards, monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    dataset = wds.WebDataset(shards, shardshuffle=False).map(int, handler=wds.warn_and_continue)
    with pytest.warns(UserWarning, match="TypeError"):
        assert list(dataset) == []
    assert slept == []


def test_url_to_name_and_home_directories_have_an_effect(shards, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "cache").mkdir()
    urls = f"pipe:cat {first(shards)}"
    named = wds.WebDataset(
        urls, shardshuffle=False, cache_dir="~/cache", url_to_name=lambda url: "my-name.tar"
    )
    assert len(keys(named)) == len(keys(named)) == 4
    (entry,) = (path for path in (tmp_path / "cache").iterdir() if path.is_file())
    assert entry.name.endswith("-my-name.tar")


def test_batches_of_unequal_shapes_name_the_sample():
    samples = [{"__key__": str(i), "x": np.zeros(2 + (i == 3))} for i in range(4)]
    with pytest.raises(ValueError, match='"3"'):
        list(wds.batched(4)(samples))


def test_composed_steps_with_more_workers_than_shards(shards, monkeypatch):
    """Programs that compose the steps themselves get each sample once, too."""
    monkeypatch.setenv("NUM_WORKERS", "3")
    result = []
    for worker in range(3):
        monkeypatch.setenv("WORKER", str(worker))
        mine = wds.split_by_worker(iter([{"url": first(shards)}]))
        result += keys(group_by_keys(tar_file_expander(StreamingOpen()(mine))))
    assert sorted(result) == ["00", "01", "02", "03"]
