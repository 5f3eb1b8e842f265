"""WebDataset: arguments, splits, epochs, damage, resume."""

from __future__ import annotations

import functools
import io
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import tarmac
from harness.resume import assert_resumes
from harness.shards import header_offsets, plain
from tarmac.errors import NoSamples, UsageError
from tarmac.steps.handlers import ignore_and_continue, ignore_and_stop, warn_and_continue
from tarmac.stream.shards.split import split_by_node, split_by_worker
from tarmac.stream.webdataset import FluidWrapper, WebDataset


def reversed_items(source):
    return reversed(list(source))


def keys(dataset):
    return [sample["__key__"] for sample in dataset]


def picture(i):
    stream = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), i, "uint8")).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def shards(tmp_path):
    for number in range(4):
        files = []
        for i in range(5):
            files += [(f"{number}{i}.cls", b"%d" % i), (f"{number}{i}.png", picture(10 * number + i))]
        (tmp_path / f"x-{number}.tar").write_bytes(plain(files))
    return str(tmp_path / "x-{0..3}.tar")


ALL = [f"{number}{i}" for number in range(4) for i in range(5)]


def test_fields_of_a_sample(shards, tmp_path):
    sample = next(iter(WebDataset(shards)))
    path = str(tmp_path / "x-0.tar")
    assert sample == {
        "__key__": "00",
        "__url__": path,
        "__local_path__": path,
        "cls": b"0",
        "png": picture(0),
    }
    assert keys(WebDataset(shards)) == ALL


def test_from_shards_to_batches(shards):
    dataset = (
        WebDataset(shards, shardshuffle=10).shuffle(5).decode("rgb8").to_tuple("jpg;png", "cls").batched(8)
    )
    batches = list(dataset)
    assert [len(labels) for _, labels in batches] == [8, 8, 4]
    assert batches[0][0].shape == (8, 4, 5, 3)
    assert len(list(pickle.loads(pickle.dumps(dataset)))) == 3


def test_shard_shuffle_differs_by_epoch_and_not_by_run(shards):
    runs = [WebDataset(shards, shardshuffle=100, seed=1) for _ in range(2)]
    epochs, repeated = ([keys(dataset) for _ in range(4)] for dataset in runs)
    assert repeated == epochs
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert all(sorted(epoch) == ALL for epoch in epochs)
    assert keys(WebDataset(shards, shardshuffle=100, detshuffle=True, seed=1)) != ALL
    assert keys(WebDataset(shards, shardshuffle=True, detshuffle=True, seed=1)) != ALL


def test_seed_from_the_environment(shards, monkeypatch):
    monkeypatch.setenv("WDS_SEED", "7")
    assert WebDataset(shards).seed == 7
    assert keys(WebDataset(shards, shardshuffle=9)) == keys(WebDataset(shards, shardshuffle=9, seed=7))


def test_resampled(shards):
    dataset = WebDataset(shards, resampled=True, seed=3).with_epoch(50)
    first = keys(dataset)
    assert len(first) == 50
    assert keys(WebDataset(shards, mode="resampled", seed=3).with_epoch(50)) == first
    assert keys(WebDataset(shards, resampled=True, seed=4).with_epoch(50)) != first


def test_repeat_argument(shards):
    iterator = iter(WebDataset(shards, repeat=True))
    assert [next(iterator)["__key__"] for _ in range(25)] == ALL + ALL[:5]


def test_several_ranks_need_a_nodesplitter(shards, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="nodesplitter"):
        list(WebDataset(shards))


def test_splitting_inside_shards_can_be_switched_off(shards, monkeypatch):
    monkeypatch.setenv("WORKER", "5")
    monkeypatch.setenv("NUM_WORKERS", "6")
    assert keys(WebDataset(shards))
    strict = WebDataset(shards, workersplitter=functools.partial(split_by_worker, inside=False))
    with pytest.raises(NoSamples):
        list(strict)


def test_equal_batches(shards, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    counts = {"pad": [], "drop": []}
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        for tail, batches in counts.items():
            dataset = WebDataset(shards, nodesplitter=split_by_node).to_tuple("cls").batched(2)
            batches.append(len(list(dataset.with_equal_batches(2, tail=tail))))
    assert counts == {"pad": [4, 4, 4], "drop": [3, 3, 3]}
    with pytest.raises(UsageError, match="`tail`"):
        WebDataset(shards).with_equal_batches(tail="short")
    with pytest.raises(UsageError, match="ResampledShards"):
        WebDataset(shards, resampled=True).with_equal_batches(2)
    with pytest.raises(UsageError, match="batchsize"):
        list(WebDataset(shards, nodesplitter=split_by_node).with_equal_batches(100, tail="drop"))


def test_select_and_rename_files(shards):
    dataset = WebDataset(shards, select_files=lambda name: name.endswith("cls"))
    assert set(next(iter(dataset))) == {"__key__", "__url__", "__local_path__", "cls"}
    renamed = WebDataset(
        shards,
        rename_files=lambda name: name.replace("png", "jpg"),
        select_files=lambda name: name.endswith("jpg"),
    )
    assert set(next(iter(renamed))) == {"__key__", "__url__", "__local_path__", "jpg"}


def test_verbose_logs_shards(shards, caplog):
    with caplog.at_level("INFO", "tarmac"):
        list(WebDataset(shards, verbose=True))
    assert len(caplog.messages) == 4


def test_cache(shards, tmp_path, monkeypatch):
    url = f"pipe:cat {tmp_path}/x-0.tar"
    names = []

    def name(url):
        names.append(url)
        return "tail"

    assert len(keys(WebDataset(url, cache_dir=tmp_path / "cache", url_to_name=name))) == 5
    assert [entry for entry in os.listdir(tmp_path / "cache") if entry.endswith("-tail")]
    monkeypatch.setenv("WDS_CACHE", str(tmp_path / "other"))
    monkeypatch.setenv("WDS_CACHE_SIZE", "1000000")
    assert len(keys(WebDataset(url))) == 5
    assert os.listdir(tmp_path / "other")
    assert len(keys(WebDataset(url, cache_size=0, cache_dir=tmp_path / "unused"))) == 5
    assert not (tmp_path / "unused").exists()


def test_sources(shards, tmp_path):
    assert len(keys(WebDataset([tmp_path / "x-0.tar", str(tmp_path / "x-1.tar")]))) == 10
    assert len(keys(WebDataset(tmp_path / "x-0.tar"))) == 5
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"prefix: {tmp_path}/\ndatasets:\n  - shards: x-{{0..3}}.tar\n    choose: 2\n")
    assert len(keys(WebDataset(str(spec)))) == 10
    assert len(keys(WebDataset({"prefix": f"{tmp_path}/", "datasets": [{"shards": "x-{0..1}.tar"}]}))) == 10
    with pytest.raises(tarmac.errors.NotFound):
        WebDataset([])
    with pytest.raises(UsageError, match="`mode`"):
        WebDataset(shards, mode="nonsense")
    with WebDataset(shards) as dataset:
        next(iter(dataset))


def damage(tmp_path, number):
    path = tmp_path / f"x-{number}.tar"
    data = bytearray(path.read_bytes())
    data[header_offsets(bytes(data))[5]] ^= 1
    path.write_bytes(data)


def test_damaged_shards_and_handlers(shards, tmp_path):
    damage(tmp_path, 1)
    with pytest.raises(tarmac.errors.ArchiveError):
        list(WebDataset(shards))
    dataset = WebDataset(shards, handler=ignore_and_continue)
    read = keys(dataset)
    assert read[:5] == ALL[:5]
    assert read[-10:] == ALL[-10:]
    assert sum(drops.count for drops in dataset.drops().values()) == 1
    with pytest.warns(UserWarning, match="BadChecksum"):
        list(WebDataset(shards, handler=warn_and_continue))
    assert len(keys(WebDataset(shards, handler=ignore_and_stop))) < 10


def test_non_contiguous_samples_are_dropped(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain([(name, b"") for name in ("a.x", "b.x", "a.y", "c.x", "c.x", "d.x")]))
    with pytest.raises(tarmac.errors.SplitSample):
        list(WebDataset(path))
    dataset = WebDataset(path, handler=ignore_and_continue)
    assert keys(dataset) == ["b", "d"]
    assert sum(drops.count for drops in dataset.drops().values()) == 2


def test_empty_datasets(tmp_path):
    (tmp_path / "e.tar").write_bytes(bytes(1024))
    with pytest.raises(tarmac.errors.NoSamples, match="empty_check=False") as caught:
        list(WebDataset(tmp_path / "e.tar"))
    assert isinstance(caught.value, ValueError)  # as it is in the webdataset library
    assert list(WebDataset(tmp_path / "e.tar", empty_check=False)) == []


def upper_key(sample):
    return {**sample, "__key__": sample["__key__"] + "!"}


@pytest.mark.parametrize("shape", ["plain", "shuffled", "batched", "resampled", "decoded then shuffled"])
def test_resume_at_every_step(shards, shape):
    def make():
        dataset = WebDataset(shards, shardshuffle=10, seed=2)
        if shape == "resampled":
            return (
                WebDataset(shards, resampled=True, seed=2).map(upper_key).to_tuple("__key__").with_epoch(23)
            )
        if shape == "shuffled":
            dataset = dataset.shuffle(6)
        if shape == "batched":
            dataset = dataset.shuffle(6).decode("l8").to_tuple("__key__", "cls").batched(3, lambda rows: rows)
        if shape == "decoded then shuffled":
            dataset = dataset.decode("l8").shuffle(6)
        return dataset if shape == "batched" else dataset.to_tuple("__key__")

    assert assert_resumes(make) > 5


def test_a_state_contains_a_random_seed(shards):
    dataset = WebDataset(shards, resampled=True).to_tuple("__key__").with_epoch(20)
    items = iter(dataset)
    head = [next(items) for _ in range(7)]
    state = dataset.state_dict()
    tail = list(items)
    resumed = WebDataset(shards, resampled=True).to_tuple("__key__").with_epoch(20)
    resumed.load_state_dict(state)
    assert list(resumed) == tail
    assert len(head + tail) == 20


def test_without_torch(shards):
    """A pipeline from shards to batches does not need torch."""
    script = f"""
import sys
sys.modules["torch"] = None
import tarmac.webdataset as wds
dataset = wds.WebDataset({shards!r}, shardshuffle=10).shuffle(5).decode("rgb8")
dataset = dataset.to_tuple("png", "cls").batched(4)
images, labels = next(iter(dataset))
dataset.load_state_dict(dataset.state_dict())
print(images.shape, sum(len(labels) for _, labels in dataset))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(4, 4, 5, 3) 16", done.stderr


def test_fluid_wrapper():
    assert list(FluidWrapper(range(3)).pipe(reversed_items, reversed_items)) == [0, 1, 2]
    assert list(FluidWrapper(range(5)).map(lambda x: x + 1).listed(2, partial=False)) == [[1, 2], [3, 4]]


def test_every_fluent_method(shards, tmp_path):
    dataset = WebDataset(shards)
    log = tmp_path / "keys.log"
    assert len(list(dataset.log_keys(str(log)))) == len(log.read_text().splitlines()) == 20
    assert len(list(dataset.slice(3))) == 3
    assert len(list(dataset.select(lambda s: s["cls"] == b"1"))) == 4
    assert len(list(dataset.rename(label="cls").map_dict(label=int))) == 20
    assert list(dataset.rename_keys(label="cls").slice(1)) == [{"label": b"0"}]
    assert list(dataset.extract_keys("*.cls").slice(1)) == [(b"0",)]
    assert 0 < len(list(dataset.rsample(0.5))) < 20
    assert len(list(dataset.associate({"00": {"x": 1}}).select(lambda s: "x" in s))) == 1
    assert len(list(dataset.to_tuple("cls").map_tuple(int).batched(4).unbatched().listed(5).unlisted())) == 20
    assert dataset.shuffle(0) is dataset
    cached = dataset.mcached()
    assert len(list(cached)) == len(list(cached)) == 20
    assert len(list(dataset.xdecode(("*.png", False), cls=lambda stream: int(stream.read())))) == 20
    lines = io.StringIO()
    list(dataset.info(stream=lines, n=2).slice(4))
    assert lines.getvalue().count("---") == 2


@pytest.mark.parametrize("threads", [0, 2])
def test_errors_of_functions_name_sample_and_shard(tmp_path, threads):
    path = tmp_path / "a.tar"
    path.write_bytes(plain([(f"k{number}\x1b.cls", b"%d" % number) for number in range(3)]))

    def fail(sample):
        return 1 / (1 - int(sample["cls"]))

    with pytest.raises(ZeroDivisionError) as caught:
        list(tarmac.WebDataset(str(path), shardshuffle=False).map(fail, threads=threads))
    assert caught.value.__notes__ == [f'at sample "k1\\x1b" of {path}']
    with pytest.raises(ZeroDivisionError) as caught:
        list(tarmac.WebDataset(str(path), shardshuffle=False).select(fail))
    assert caught.value.__notes__ == [f'at sample "k1\\x1b" of {path}']
