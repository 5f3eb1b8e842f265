"""A loader over remote shards yields what it yields over local ones, and fetches no byte twice if it can."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import subprocess
import sys
import tempfile
import textwrap
import threading
import warnings
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness import rounds
from harness.datasets import write_shards
from harness.faultserver import SERVE, Action, FaultServer, random_script
from harness.folder import folder
from harness.memory import peak, reset_peak
from harness.waiting import until
from tarmac.errors import (
    DigestMismatch,
    IndexStale,
    NotFound,
    ObjectChanged,
    StateMismatch,
    TarmacError,
    TarmacWarning,
    UsageError,
)
from tarmac.indexing.manifest import Manifest

pytestmark = pytest.mark.filterwarnings(
    "ignore:.remote_budget. holds"
)  # budgets below a batch are tested, too
LENGTHS = [40, 1, 73, 25, 60, 0, 31, 50]
SIZE = 9_000
SAMPLE = 11_000  # with headers and padding
FAST = tarmac.StorageOptions(retries=1, backoff=0.01, connect_timeout=5)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("remote")
    urls = write_shards(folder, LENGTHS, size=SIZE)
    tarmac.index(urls, str(folder / "m.json"), digests=True)
    return folder


@pytest.fixture(scope="module")
def served(root):
    log: list[tuple[str, str, str | None]] = []
    with folder(root, log=log) as url:
        yield url, log


def batches(source, *, epochs=1, steps=None, dataset=None, **options):
    """The keys and sizes of the batches, epoch after epoch."""
    data = tarmac.Dataset(source, storage=FAST) if dataset is None else dataset
    with tarmac.Loader(data, **{"batch_size": 8, "threads": 1, **options}) as loader:
        result = []
        for _ in range(epochs):
            epoch = [(batch["__key__"], [bytes(each) for each in batch["txt"]]) for batch in loader]
            result.append(epoch[:steps])
        return result


def ranges(log):
    """The ranges of shards that were requested, by path, without the spans that recognise a shard."""
    requested = defaultdict(list)
    for method, path, span in log:
        if method == "GET" and path.endswith(".tar") and span is not None:
            start, stop = map(int, span.removeprefix("bytes=").split("-"))
            requested[path].append((start, stop + 1))
    return requested


def pieces(log):
    return {path: [each for each in spans if each[1] - each[0] > 6000] for path, spans in ranges(log).items()}


def overlaps(spans):
    ordered = sorted(spans)
    return [pair for pair in itertools.pairwise(ordered) if pair[0][1] > pair[1][0]]


@settings(max_examples=rounds(25), deadline=None)
@given(data=st.data())
def test_remote_and_local_batches_are_equal(root, served, data):
    options = {
        "batch_size": data.draw(st.sampled_from([1, 7, 32])),
        "world_size": (world := data.draw(st.integers(1, 5))),
        "rank": data.draw(st.integers(0, world - 1)),
        "tail": data.draw(st.sampled_from(["drop", "pad", "short"])),
        "shuffle": data.draw(st.booleans()),
        "seed": data.draw(st.integers(0, 3)),
        "threads": data.draw(st.integers(0, 2)),
    }
    budget = data.draw(st.sampled_from([None, 1, SAMPLE, 20 * SAMPLE, 400 * SAMPLE, "1GiB"]))
    if budget is None:
        options |= {
            "streams": data.draw(st.sampled_from([1, 3, 64])),
            "window": data.draw(st.sampled_from([1, 20])),
        }
    else:
        options["remote_budget"] = budget
    here = batches(str(root / "m.json"), epochs=2, **options)
    assert batches(f"{served[0]}/m.json", epochs=2, **options) == here


@settings(max_examples=rounds(10), deadline=None)
@given(st.integers(0, 30), st.integers(1, 3), st.sampled_from([None, 30 * SAMPLE]))
def test_remote_epochs_resume_on_other_ranks(root, served, steps, world, budget):
    whole = batches(str(root / "m.json"), batch_size=6, tail="short", remote_budget=budget)[0]
    dataset = tarmac.Dataset(f"{served[0]}/m.json")
    with tarmac.Loader(dataset, 6, tail="short", remote_budget=budget) as loader:
        iterator = iter(loader)
        seen = [key for _ in range(steps) for key in next(iterator)["__key__"]]
        state = loader.state_dict()
        iterator.close()
    for rank in range(world):
        with tarmac.Loader(
            dataset, 2, tail="short", rank=rank, world_size=world, remote_budget=budget
        ) as loader:
            loader.load_state_dict(state)
            seen += [key for batch in loader for key in batch["__key__"]]
    assert sorted(seen) == sorted(key for keys, _ in whole for key in keys)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("budget", [None, 200 * SAMPLE])
def test_no_byte_is_requested_twice_in_an_epoch(served, world, budget):
    url, log = served
    for rank in range(world):
        log.clear()
        batches(f"{url}/m.json", tail="short", rank=rank, world_size=world, remote_budget=budget)
        requested = pieces(log)
        assert requested
        assert not any(overlaps(spans) for spans in requested.values())


@settings(max_examples=rounds(15), deadline=None)
@given(data=st.data())
def test_nothing_is_requested_twice_in_any_epoch(served, data):
    """With the budget that an order needs, also in epochs that begin with what earlier ones have left."""
    url, log = served
    world = data.draw(st.integers(1, 4))
    options = {
        "batch_size": data.draw(st.sampled_from([1, 4, 16])),
        "world_size": world,
        "rank": data.draw(st.integers(0, world - 1)),
        "tail": data.draw(st.sampled_from(["drop", "short"])),
        "threads": data.draw(st.sampled_from([0, 2])),
        "seed": data.draw(st.integers(0, 1000)),
        "remote_budget": data.draw(st.sampled_from([60, 120, 200, 400])) * SAMPLE,
    }
    with tarmac.Loader(tarmac.Dataset(f"{url}/m.json"), **options) as loader:
        for epoch in range(3):
            log.clear()
            for _ in loader:
                pass
            for spans in pieces(log).values():
                # What an earlier epoch has left may be in the middle of a larger piece.
                assert not (overlaps(spans) if epoch == 0 else len(spans) - len(set(spans)))


def test_a_dataset_within_the_budget_is_fetched_once(served):
    url, log = served
    log.clear()
    batches(f"{url}/m.json", epochs=1)
    once = len(log)
    log.clear()
    batches(f"{url}/m.json", epochs=4)
    assert len(log) == once


def test_a_look_at_one_batch_costs_no_second_request(served):
    url, log = served
    dataset = tarmac.Dataset(f"{url}/m.json")
    with tarmac.Loader(dataset, 8, tail="short") as loader:
        log.clear()
        first = next(iter(loader))["__key__"]
        assert next(iter(loader))["__key__"] == first
        assert sum(len(batch["__key__"]) for batch in loader) == sum(LENGTHS)
        assert not any(overlaps(spans) for spans in pieces(log).values())


@pytest.mark.parametrize("budget", [3 * SAMPLE, 50 * SAMPLE])
def test_the_temporary_file_stays_within_the_budget(served, budget):
    url, _ = served
    with tarmac.Loader(tarmac.Dataset(f"{url}/m.json"), 8, tail="short", remote_budget=budget) as loader:
        for _ in loader:
            assert os.fstat(loader._spool.fileno()).st_size <= budget


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_send_no_requests(root, served, method):
    url, log = served
    here = batches(str(root / "m.json"), epochs=2)
    log.clear()
    there = batches(f"{url}/m.json", epochs=2, processes=2, threads=1, start_method=method)
    assert there == here
    assert not any(overlaps(spans) for spans in pieces(log).values())
    sidecars = [path for _, path, _ in log if path.endswith(".arrow")]
    assert len(sidecars) == len(set(sidecars))


def test_local_and_remote_shards_mix(root, served):
    url, _ = served

    def both(there):
        return tarmac.Dataset(str(root / "m.json")) + tarmac.Dataset(f"{there}/m.json")

    assert batches("", dataset=both(url)) == batches("", dataset=both(root))


def test_mixtures_repeat_remote_samples(root, served):
    def mix(source):
        dataset = tarmac.Dataset(f"{source}/m.json")
        return tarmac.Mix([(dataset, 2), (dataset.where("key > '00100'"), 1)], samples=500)

    for budget in (None, 40 * SAMPLE):
        here = batches("", dataset=mix(root), epochs=2, remote_budget=budget)
        assert batches("", dataset=mix(served[0]), epochs=2, remote_budget=budget) == here


def test_selected_fields_and_rows_only_are_fetched(served):
    url, log = served
    dataset = tarmac.Dataset(f"{url}/m.json", fields=["cls"]).where("key < '00020'")
    with tarmac.Loader(dataset, 4, tail="short") as loader:
        log.clear()
        assert sum(len(batch["cls"]) for batch in loader) == 20
    # The fields are far smaller than the samples, but one request for neighbours is cheaper than two.
    assert sum(stop - start for spans in pieces(log).values() for start, stop in spans) <= 21 * SAMPLE


def test_servers_that_fail_for_a_moment(root):
    here = batches(str(root / "m.json"))
    failures = iter([503] * 40)
    count = threading.Lock()

    def fault(path):
        with count:
            return next(failures, None) if path.endswith(".tar") and threading.active_count() else None

    patient = tarmac.StorageOptions(retries=50, backoff=0.001, max_backoff=0.002)
    with folder(root, fault=fault) as url:
        assert batches("", dataset=tarmac.Dataset(f"{url}/m.json", storage=patient)) == here


def test_a_shard_that_disappears_is_an_error_where_it_is_used(root):
    gone = threading.Event()
    with folder(root, fault=lambda path: 404 if gone.is_set() and path.endswith("s002.tar") else None) as url:
        dataset = tarmac.Dataset(f"{url}/m.json", storage=FAST)
        with tarmac.Loader(dataset, 8, shuffle=False, remote_budget=30 * SAMPLE) as loader:
            iterator = iter(loader)
            next(iterator)
            gone.set()
            with pytest.raises(NotFound, match=r"s002\.tar"):
                for _ in iterator:
                    pass
        gone.clear()
        assert sum(1 for _ in tarmac.Loader(dataset, 8, tail="short")) == -(-sum(LENGTHS) // 8)


def test_a_shard_that_is_replaced_is_an_error(tmp_path):
    (url,) = write_shards(tmp_path, [400], size=SIZE)
    with folder(tmp_path) as server:
        with tarmac.Loader(
            tarmac.Dataset(f"{server}/s000.tar"), 8, shuffle=False, remote_budget=30 * SAMPLE
        ) as loader:
            iterator = iter(loader)
            next(iterator)
            os.utime(url, ns=(1, 1))
            with pytest.raises(ObjectChanged):
                for _ in iterator:
                    pass


def test_a_copy_with_other_names_is_an_error(tmp_path):
    (url,) = write_shards(tmp_path, [400], size=100)
    path = Path(url)
    content = bytearray(path.read_bytes())
    at = content.index(b"00007.txt")
    header = content[at : at + 512]
    header[:5] = b"00070"
    header[148:156] = b"%06o\0 " % sum(header[:148] + b" " * 8 + header[156:])
    content[at : at + 512] = header
    path.write_bytes(content)
    with folder(tmp_path) as server, tarmac.Loader(tarmac.Dataset(f"{server}/s000.tar"), 8) as loader:
        with pytest.raises(IndexStale, match="different samples"):
            for _ in loader:
                pass


@pytest.mark.processes
def test_digests_of_fetched_samples_are_verified(tmp_path):
    urls = write_shards(tmp_path, [50], size=5000)
    tarmac.index(urls, str(tmp_path / "m.json"), digests=True)
    path = Path(urls[0])
    content = bytearray(path.read_bytes())
    content[content.index(b"00031.txt") + 512 + 4000] ^= 1
    path.write_bytes(content)
    with folder(tmp_path) as server:
        dataset = tarmac.Dataset(f"{server}/m.json", verify=True)
        for processes in (0, 2):
            with tarmac.Loader(dataset, 8, tail="short", processes=processes) as loader:
                with pytest.raises(DigestMismatch, match="00031"):
                    for _ in loader:
                        pass


def test_a_full_disk_is_a_warning(root, served, monkeypatch):
    here = batches(str(root / "m.json"))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tarmac.exact.loader.spool.os.pwrite", full)
    with pytest.warns(tarmac.errors.TarmacWarning, match="No space left") as warned:
        assert batches(f"{served[0]}/m.json") == here
    assert len(warned) == 1


def fetching_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tarmac-fetch")]


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.processes)])
def test_abandoned_loaders_leave_no_thread_and_no_descriptor(served, processes):
    url, _ = served
    dataset = tarmac.Dataset(f"{url}/m.json")

    def look(times):
        for _ in range(times):
            with tarmac.Loader(dataset, 8, processes=processes) as loader:
                next(iter(loader))
            assert until(lambda: not fetching_threads())
        return len(os.listdir("/proc/self/fd"))

    look(1)  # connections to the server are kept
    assert look(4) <= look(1) + 1


def test_closing_a_loader_that_is_in_use(served, recwarn):
    with tarmac.Loader(tarmac.Dataset(f"{served[0]}/m.json"), 8, remote_budget=30 * SAMPLE) as loader:
        batches = iter(loader)
        next(batches)
        loader.close()
        assert loader.stats()["requests"] > 0
        assert sum(1 for _ in batches) == len(loader) - 1  # no thread wrote to a closed descriptor
    assert not recwarn.list


SCRIPT = """
    import sys, tarmac
    loader = tarmac.Loader(tarmac.Dataset(sys.argv[1]), 8, processes=1)
    batches = iter(loader)
    next(batches)
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.processes
def test_a_killed_process_leaves_no_file(served, tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), f"{served[0]}/m.json"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    assert until(lambda: not os.listdir(tmp_path))


# The budget


def test_a_budget_below_a_batch_is_a_warning(root):
    dataset = tarmac.Dataset(str(root / "m.json"))
    with pytest.warns(TarmacWarning, match="hardly shuffled") as caught:
        tarmac.Loader(dataset, 8, remote_budget=2 * SAMPLE)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tarmac.Loader(dataset, 8, remote_budget=2 * SAMPLE, shuffle=False)
        tarmac.Loader(dataset, 8, remote_budget=200 * SAMPLE)


def test_a_budget_chooses_the_order(root):
    dataset = tarmac.Dataset(str(root / "m.json"))
    states = {}
    for budget in (10 * SAMPLE, "2MB", "8GiB"):
        loader = tarmac.Loader(dataset, 8, remote_budget=budget)
        state = states[budget] = loader.state_dict()
        if budget != "8GiB":
            limit = 2_000_000 if budget == "2MB" else budget
            assert state["streams"] * state["window"] * SAMPLE <= limit
    assert (states["8GiB"]["streams"], states["8GiB"]["window"]) == (64, 16_384)
    with pytest.raises(StateMismatch, match="window"):
        tarmac.Loader(dataset, 8).load_state_dict(states["2MB"])
    tarmac.Loader(dataset, 2, remote_budget=2_000_000).load_state_dict(states["2MB"])


@pytest.mark.parametrize("budget", ["much", 0, -1, "-3GB", "1.5", True, 1e9])
def test_invalid_budgets(root, budget):
    with pytest.raises(UsageError, match="remote_budget"):
        tarmac.Loader(tarmac.Dataset(str(root / "m.json")), 8, remote_budget=budget)


@pytest.mark.parametrize("name", ["streams", "window"])
def test_a_budget_excludes_streams_and_window(root, name):
    with pytest.raises(UsageError, match=name):
        tarmac.Loader(tarmac.Dataset(str(root / "m.json")), 8, remote_budget="1GB", **{name: 8})


def test_the_spool_is_in_the_directory_for_temporary_files(served, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(OSError, match="absent"):
        batches(f"{served[0]}/m.json")


def test_small_shards_are_recognised_by_the_bytes_that_are_read(root, served):
    url, log = served
    log.clear()
    batches(f"{url}/m.json", tail="short")
    shards = [path for path in {path for _, path, _ in log} if path.endswith(".tar")]
    assert len(shards) == sum(map(bool, LENGTHS))
    for path in shards:
        # The status, and one range with all samples: the digests that recognise a copy are among its bytes.
        assert [method for method, each, _ in log if each == path] == ["HEAD", "GET"]


def test_a_copy_with_other_bytes_is_refused_before_it_yields_a_sample(tmp_path):
    (url,) = write_shards(tmp_path, [30], size=SIZE)
    tarmac.index([url], str(tmp_path / "m.json"))
    content = bytearray(Path(url).read_bytes())
    content[600] ^= 1  # in the first sample
    Path(url).write_bytes(content)
    with folder(tmp_path) as server:
        dataset = tarmac.Dataset(f"{server}/m.json", storage=FAST)
        with pytest.raises(IndexStale, match="content of the shard has changed"):
            dataset[29]
        with pytest.raises(IndexStale, match="content of the shard has changed"):
            batches(f"{server}/m.json", batch_size=1)


# The network


def at(server: FaultServer, path: str) -> Manifest:
    """The manifest of a shard that a server has; its index is local."""
    manifest = tarmac.read_manifest(path)
    return Manifest([replace(shard, url=server.url, index=f"{shard.url}.arrow") for shard in manifest.shards])


@pytest.fixture(scope="module")
def one_shard(tmp_path_factory):
    """A shard, its manifest, and its batches."""
    root = tmp_path_factory.mktemp("one")
    (url,) = write_shards(root, [120], size=SIZE)
    tarmac.index([url], str(root / "m.json"), digests=True)
    return Path(url).read_bytes(), str(root / "m.json"), batches(str(root / "m.json"), tail="short")


WRONG = [
    Action(whole=True),
    Action(widen=100),
    Action(shift=512),
    Action(framing="chunked", cut=700),
    Action(framing="close", cut=5000),
    Action(headers={"Content-Encoding": "gzip"}),
    Action(headers={"ETag": '"v2"'}),
    Action(body=b"<html>"),
    Action(status=403),
    Action(status=416),
]


@pytest.mark.parametrize("budget", [None, 1, 30 * SAMPLE])
@pytest.mark.parametrize("seed", range(rounds(6)))
def test_batches_are_right_or_an_error_whatever_the_server_does(one_shard, seed, budget):
    body, manifest, expected = one_shard
    rng = random.Random(f"{seed} {budget}")
    retrying = tarmac.StorageOptions(retries=2, backoff=0.001, max_backoff=0.002, connect_timeout=5)
    with FaultServer(body) as server:
        with tarmac.Loader(
            tarmac.Dataset(at(server, manifest), storage=retrying), 8, tail="short", remote_budget=budget
        ) as loader:
            local = expected
            if budget is not None:
                local = batches(manifest, tail="short", remote_budget=budget)
            for _ in range(4):
                faults = random_script(rng, 40_000, 10) + rng.sample(WRONG, rng.randint(0, 2))
                server.script(rng.sample([*faults, *[SERVE] * 4], len(faults) + 4))
                seen = []
                if budget is None or rng.random() < 0.5:
                    loader.close()  # which drops what was fetched
                loader.set_epoch(0)
                with contextlib.suppress(TarmacError):
                    for batch in loader:
                        seen.append((batch["__key__"], [bytes(each) for each in batch["txt"]]))
                    assert len(seen) == len(local[0])
                assert seen == local[0][: len(seen)]
            assert any(request.action != SERVE for request in server.requests)
            server.script([])
            loader.set_epoch(0)
            assert [batch["__key__"] for batch in loader] == [keys for keys, _ in local[0]]
    assert not fetching_threads()


def test_a_shard_that_is_replaced_while_it_is_fetched_is_an_error(one_shard):
    body, manifest, _ = one_shard
    with FaultServer(body) as server:
        loader = tarmac.Loader(
            tarmac.Dataset(at(server, manifest), storage=FAST), 8, remote_budget=30 * SAMPLE
        )
        batches = iter(loader)
        next(batches)
        server.script([Action(change=(bytes(len(body)), '"v2"'))])
        with pytest.raises(ObjectChanged):
            for _ in batches:
                pass


def test_memory_is_bounded_by_the_budget(tmp_path):
    """The shard has 60 MB; the bytes of some batches and of 24 requests are in memory."""
    (url,) = write_shards(tmp_path, [1200], size=50_000)
    tarmac.index([url], str(tmp_path / "m.json"))
    with folder(tmp_path) as server:
        loader = tarmac.Loader(tarmac.Dataset(f"{server}/m.json"), 8, threads=1, remote_budget="2MB")
        batches = iter(loader)
        next(batches)
        baseline = reset_peak()
        for _ in batches:
            assert os.fstat(loader._spool.fileno()).st_size <= 2_000_000
        assert peak() - baseline < 32 << 20
        loader.close()
