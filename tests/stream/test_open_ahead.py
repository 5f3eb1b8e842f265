"""Remote shards are opened while the shard before them is read, and nothing else changes."""

import gzip
import os
import threading

import pytest

import tarmac
import tarmac.webdataset as wds
from harness import shards
from harness.faultserver import FaultServer
from harness.waiting import FakeClock, until
from tarmac.errors import NotFound, TarmacError
from tarmac.storage import Cache, Source, Store, ahead, register_scheme, schemes
from tarmac.stream.shards.lists import SimpleShardList

SAMPLES, SIZE, PIECE = 8, 40_000, 1 << 16


def body(number, samples=SAMPLES):
    return shards.plain([(f"{number:03d}-{sample}.bin", bytes(SIZE)) for sample in range(samples)])


class FarSource(Source):
    def __init__(self, store, name, data):
        self.store, self.name, self.data, self.length, self.position = store, name, data, len(data), 0

    def read(self, size, /):
        self.store.reading.append(self.name)
        data = self.data[self.position : self.position + min(size, PIECE)]
        self.position += len(data)
        return data

    def close(self):
        self.store.closed.add(id(self))


class FarStore(Store):
    """Objects in memory, and a log of what was opened, by which thread."""

    opens_ahead = True

    def __init__(self, bodies):
        self.bodies, self.reading, self.closed, self.sources = bodies, [], set(), []
        self.opened = []
        self.refuse_early = False

    def open_read(self, url, storage, /):
        early = threading.current_thread().name.startswith("tarmac-ahead")
        name = url.rpartition("/")[2]
        if name not in self.bodies or (early and self.refuse_early):
            raise NotFound("there is no such object.", url=url)
        source = FarSource(self, name, self.bodies[name])
        self.sources.append(source)
        self.opened.append((name, early))
        return source

    @property
    def open_now(self):
        return [source.name for source in self.sources if id(source) not in self.closed]


@pytest.fixture
def far():
    store = FarStore({f"{number}.tar": body(number) for number in range(40)})
    register_scheme("far", store)
    yield store
    del schemes._registered["far"]
    assert until(lambda: not store.open_now)
    assert until(lambda: not any(each.name.startswith("tarmac-ahead") for each in threading.enumerate()))


def urls(count=40):
    return [f"far://host/{number}.tar" for number in range(count)]


DOORS = {
    "read": lambda urls: iter(tarmac.read(urls)),
    "WebDataset": lambda urls: iter(wds.WebDataset(urls, shardshuffle=False)),
    "stages": lambda urls: iter(
        wds.DataPipeline(wds.SimpleShardList(urls), wds.split_by_worker, wds.tarfile_to_samples())
    ),
    "list": lambda urls: wds.tarfile_samples(urls),
}


def outcome(samples):
    """The keys of samples up to an error, and the error."""
    keys = []
    try:
        keys.extend(sample["__key__"] for sample in samples)
    except TarmacError as error:
        return keys, type(error), str(error)
    return keys, None, None


@pytest.mark.parametrize("door", DOORS)
def test_the_next_shard_is_open_before_the_current_one_ends(far, door):
    samples = DOORS[door](urls(3))
    keys = [next(samples)["__key__"] for _ in range(SAMPLES + SAMPLES // 2)]

    assert until(lambda: ("2.tar", True) in far.opened)
    keys += [sample["__key__"] for sample in samples]

    assert keys == [f"{number:03d}-{sample}" for number in range(3) for sample in range(SAMPLES)]
    assert sorted(name for name, _ in far.opened) == ["0.tar", "1.tar", "2.tar"]


@pytest.mark.parametrize("door", DOORS)
def test_a_look_at_the_first_sample_opens_one_shard(far, door):
    samples = DOORS[door](urls())
    next(samples)
    del samples

    assert far.opened == [("0.tar", False)]


@pytest.mark.parametrize(
    "make",
    [
        lambda urls: wds.WebDataset(urls, shardshuffle=True, seed=3),
        lambda urls: wds.WebDataset(urls, shardshuffle=5).shuffle(20),
        lambda urls: wds.WebDataset(urls, resampled=True, seed=1).with_epoch(100),
        lambda urls: wds.WebDataset(urls * 2, shardshuffle=False).batched(3),
        lambda urls: wds.WebDataset(urls, shardshuffle=False).with_equal_batches(4),
        lambda urls: wds.WebDataset(urls, shardshuffle=False).slice(50),
    ],
)
def test_samples_and_order_are_the_same(far, monkeypatch, make):
    def epochs():
        dataset = make(urls(12))
        return [[item["__key__"] for item in dataset] for _ in range(3)]

    early = epochs()
    assert any(early for _, early in far.opened)
    monkeypatch.setattr(FarStore, "opens_ahead", False)
    far.opened.clear()

    assert epochs() == early
    assert not any(early for _, early in far.opened)


@pytest.mark.parametrize("handler", [wds.reraise_exception, wds.ignore_and_continue, wds.ignore_and_stop])
@pytest.mark.parametrize("damage", ["missing", "cut", "not a tar"])
def test_errors_are_raised_where_their_shard_is_read(far, monkeypatch, handler, damage):
    if damage == "missing":
        del far.bodies["5.tar"]
    else:
        far.bodies["5.tar"] = far.bodies["5.tar"][:150_000] if damage == "cut" else b"<html>" * 1000

    def run():
        dataset = wds.WebDataset(urls(9), shardshuffle=False, handler=handler)
        result = outcome(iter(dataset))
        return result, {name: drops.count for name, drops in dataset.drops().items()}

    early = run()
    assert ("4.tar", True) in far.opened
    monkeypatch.setattr(FarStore, "opens_ahead", False)

    assert run() == early


def test_an_error_of_the_shard_list_comes_after_the_shards_before_it(far):
    class Failing(SimpleShardList):
        foreseeable = True

        def __iter__(self):
            yield from super().__iter__()
            raise NotFound("the list is incomplete.")

    keys, error, _ = outcome(wds.DataPipeline(Failing(urls(4)), wds.tarfile_to_samples()))

    assert len(keys) == 4 * SAMPLES
    assert error is NotFound
    assert any(early for _, early in far.opened)


@pytest.mark.parametrize("taken", [1, 30, 100])
def test_an_abandoned_iterator_closes_what_is_open(far, taken):
    samples = DOORS["WebDataset"](urls())
    for _ in range(taken):
        next(samples)
    del samples  # the fixture looks for open sources and threads


def test_few_shards_are_open_at_a_time(far):
    held = []
    for _ in tarmac.read(urls()):
        held.append(len(far.open_now))

    assert max(held) > 2
    assert max(held) <= ahead.MAX_AHEAD + 1


def test_a_server_that_refuses_more_connections(far):
    far.refuse_early = True

    assert len(outcome(tarmac.read(urls()))[0]) == 40 * SAMPLES
    assert not any(early for _, early in far.opened)


def test_a_connection_that_waited_for_long_is_opened_again(far, monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(ahead, "time", clock)
    far.bodies = {
        name: body(int(name.partition(".")[0]), 40) for name in far.bodies
    }  # more than the first bytes
    samples = DOORS["read"](urls(2))
    keys = [next(samples)["__key__"] for _ in range(30)]
    assert until(lambda: ("1.tar", True) in far.opened)
    clock.sleep(3600)
    keys += [sample["__key__"] for sample in samples]

    assert len(keys) == len(set(keys)) == 80
    assert [name for name, _ in far.opened] == ["0.tar", "1.tar", "1.tar"]


def generator_of(taken):
    def source():
        for url in urls(4):
            taken.append(url)
            yield {"url": url}

    return source


class OwnList(SimpleShardList):
    """A list that acts when a shard is taken, as a subclass may."""

    def __init__(self, taken):
        super().__init__(urls(4))
        self.taken = taken

    def __iter__(self):
        for shard in super().__iter__():
            self.taken.append(shard["url"])
            yield shard


@pytest.mark.parametrize("make", [generator_of, OwnList])
def test_a_list_of_the_programs_own_is_taken_one_shard_at_a_time(far, make):
    taken = []
    for number, _ in enumerate(wds.DataPipeline(make(taken), wds.tarfile_to_samples())):
        assert len(taken) == number // SAMPLES + 1

    assert not any(early for _, early in far.opened)


def test_a_scheme_of_the_programs_own_is_not_opened_early_by_default(far, monkeypatch):
    monkeypatch.setattr(FarStore, "opens_ahead", Store.opens_ahead)

    assert len(list(tarmac.read(urls()))) == 40 * SAMPLES
    assert far.opened == [(f"{number}.tar", False) for number in range(40)]


def test_resuming_continues_with_the_next_sample(far):
    whole = [sample["__key__"] for sample in wds.WebDataset(urls(6), shardshuffle=True, seed=2)]
    dataset = wds.WebDataset(urls(6), shardshuffle=True, seed=2)
    samples = iter(dataset)
    keys = [next(samples)["__key__"] for _ in range(21)]
    state = dataset.state_dict()
    del samples
    resumed = wds.WebDataset(urls(6), shardshuffle=True, seed=2)
    resumed.load_state_dict(state)

    assert keys + [sample["__key__"] for sample in resumed] == whole


def test_the_next_shards_go_to_the_cache(far, tmp_path):
    cache = Cache(tmp_path)
    samples = iter(wds.WebDataset(urls(4), shardshuffle=False, cache=cache))
    for _ in range(SAMPLES + 1):
        next(samples)

    assert until(lambda: len(cache.entries()) >= 3)
    assert len(list(samples)) == 3 * SAMPLES - 1
    assert sorted(name for name, _ in far.opened) == [f"{number}.tar" for number in range(4)]
    assert sorted(name for name, early in far.opened if early) == ["2.tar", "3.tar"]


@pytest.mark.parametrize("room", [1.5, 2.5, 3.5])
def test_the_cache_keeps_its_limit(far, tmp_path, room):
    limit = int(len(far.bodies["0.tar"]) * room)
    cache = Cache(tmp_path, max_bytes=limit)
    count = 0
    for _ in wds.WebDataset(urls(12), shardshuffle=False, cache=cache):
        count += 1
        assert sum(entry.size for entry in cache.entries()) <= limit

    assert count == 12 * SAMPLES
    assert any(early for _, early in far.opened) == (room > 2)
    assert [name for name, _ in far.opened] == [f"{number}.tar" for number in range(12)]


def test_leaving_stops_downloads_to_the_cache(far, tmp_path):
    endless = threading.Event()
    for number in range(2, 40):
        far.bodies[f"{number}.tar"] = Endless(endless)
    samples = iter(wds.WebDataset(urls(), shardshuffle=False, cache=Cache(tmp_path)))
    for _ in range(SAMPLES + 1):
        next(samples)
    assert endless.wait(60)
    del samples  # the fixture waits for the threads

    assert len(Cache(tmp_path).entries()) == 2


class Endless:
    """The bytes of an object that never ends."""

    def __init__(self, read):
        self._read = read

    def __len__(self):
        return 1 << 60

    def __getitem__(self, span):
        self._read.set()
        return bytes(span.stop - span.start)


def test_one_pass_of_a_verb(far, tmp_path):
    far.bodies = {f"{n}.tar.gz": gzip.compress(body(n)) for n in range(6)}

    report = tarmac.copy(
        [f"far://host/{n}.tar.gz" for n in range(6)],
        f"{tmp_path}/{{i:03d}}.tar",
        max_samples=10,
        progress=False,
    )

    assert report.written == 6 * SAMPLES
    assert any(early for _, early in far.opened)
    assert len(far.opened) == 6


@pytest.mark.processes
def test_a_forked_process_opens_shards_itself(far):
    samples = DOORS["read"](urls(6))
    for _ in range(3 * SAMPLES):
        next(samples)
    assert any(early for _, early in far.opened)
    child = os.fork()
    if not child:
        os._exit(sum(1 for _ in samples))
    count = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert count == sum(1 for _ in samples) == 3 * SAMPLES


@pytest.mark.processes
@pytest.mark.parametrize("etag", ['"v1"', None])
def test_a_web_server(etag):
    with FaultServer(body(0, 100), etag=etag) as server:
        base = server.url.removesuffix("object.tar")
        samples = iter(tarmac.read([f"{base}{number}.tar" for number in range(4)]))
        for _ in range(80):
            next(samples)
        assert until(lambda: len(server.requests) >= 2)

        assert sum(1 for _ in samples) == 320
        assert sorted(request.path for request in server.requests) == [f"/{n}.tar" for n in range(4)]
