"""The contract of mappers: what `tokenize` asks of a mapper of the user, and what it does with the answers."""

from __future__ import annotations

import gc
import os
import threading

import pytest

import tarmac
from tarmac.errors import JobMismatch, TransformFailed, UsageError
from tarmac.tools.mappers import Column
from tarmac.tools.mappers.batches import WINDOW
from tokens.models import caption
from tokens.test_tokenize import make, rows


class Squares(tarmac.Mapper):
    """A mapper of the user, with two columns of fixed shape."""

    version = "2"
    outputs = {"tokens": Column("uint16", (None,)), "square": Column("float32", (2,))}
    info = {"vocab_size": 1000}

    def prepare(self, sample):
        return int(sample["cls"])

    def setup(self, device):
        self.device = device

    def size(self, item):
        return -item  # batches in the opposite order

    def __call__(self, batch):
        assert self.device == "cpu"
        return {"tokens": [[n, n + 1] for n in batch], "square": [[n, n * n] for n in batch]}


def numbers(samples):
    return [[int(sample["cls"])] * 2 for sample in samples]


def test_mappers_of_the_user(tmp_path):
    shards = make(tmp_path, 2)
    tarmac.tokenize(shards, tmp_path / "a", mapper=Squares, batch_size=7, jobs=1)
    assert rows(tmp_path / "a") == {
        f"{n:06d}": {"tokens": [n, n + 1], "square": [float(n), float(n * n)]} for n in range(100)
    }
    tarmac.tokenize(shards, tmp_path / "b", mapper=numbers, vocab_size=100, jobs=1)
    assert rows(tmp_path / "b") == {f"{n:06d}": {"tokens": [n, n]} for n in range(100)}
    with pytest.raises(UsageError, match="outputs"):
        tarmac.tokenize(shards, tmp_path / "c", mapper=numbers, jobs=1)
    with pytest.raises(UsageError, match="exclude"):
        tarmac.tokenize(shards, tmp_path / "c", mapper=numbers, text="txt", jobs=1)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda batch: [[1]], UsageError, "1 values of"),
        (lambda batch: {"other": [[1]] * len(batch)}, UsageError, "no column tokens"),
        (
            lambda batch: dict.fromkeys(("tokens", "more"), [[1]] * len(batch)),
            UsageError,
            "more, which is not in",
        ),
        (lambda batch: [[70_000]] * len(batch), TransformFailed, "expected uint16"),
        (lambda batch: [[0.5]] * len(batch), TransformFailed, "expected uint16"),
        (lambda batch: [1] * len(batch), TransformFailed, "not a list"),
        (lambda batch: None, UsageError, 'a NoneType as "tokens"'),
        (lambda batch: ([1] for _ in batch), UsageError, 'a generator as "tokens"'),
    ],
)
def test_mappers_that_return_something_else(tmp_path, function, error, message):
    with pytest.raises(error, match=message):
        tarmac.tokenize(make(tmp_path, 1), tmp_path / "out", mapper=function, vocab_size=10, jobs=1)
    assert not list(tmp_path.glob("out/*.tar"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"tokens": "uint16"}, "expected a Column"), (["tokens"], "columns by name"),
        ({"key": Column("uint16")}, "other than 'key'"), ({"../a": Column("uint16")}, "expected names of letters"),
        ({"": Column("uint16")}, "expected names of letters"),
    ],
)  # fmt: skip
def test_outputs_that_are_not_columns(tmp_path, columns, message):
    class Wrong(tarmac.Mapper):
        outputs = columns

    with pytest.raises(UsageError, match=message) as caught:
        tarmac.tokenize(make(tmp_path, 1), tmp_path / "out", mapper=Wrong, jobs=1)
    assert caught.value.field == "outputs"
    assert not (tmp_path / "out").exists()


class Unsized(Squares):
    """Cannot tell the size of some items."""

    def size(self, item):
        if item in (3, 8):
            raise ValueError("no size")
        return item


def test_items_without_a_size_fail(tmp_path):
    shards = make(tmp_path, 1, 10)
    with pytest.raises(TransformFailed, match=r'"000003": the function raised ValueError: no size'):
        tarmac.tokenize(shards, tmp_path / "out", mapper=Unsized, batch_size=4, jobs=1)
    report = tarmac.tokenize(
        shards, tmp_path / "out", mapper=Unsized, batch_size=4, jobs=1, on_error="skip", overwrite=True
    )
    assert (report.written, report.failed) == (8, 2)
    assert list(rows(tmp_path / "out")) == [f"{n:06d}" for n in range(10) if n not in (3, 8)]


class Raising(Squares):
    def __init__(self):
        raise FileNotFoundError("weights.bin")


def test_a_mapper_that_cannot_be_made(tmp_path):
    for given in (Raising, f"{__file__}:Raising"):
        with pytest.raises(UsageError, match=r"Raising\(\) raised FileNotFoundError: weights.bin") as caught:
            tarmac.tokenize(make(tmp_path, 1), tmp_path / "out", mapper=given, jobs=1)
        assert caught.value.field == "mapper"


@pytest.mark.parametrize("value", [None, {"vocab_size": object()}, 3])
def test_metadata_that_is_not_json(tmp_path, value):
    class Wrong(Squares):
        info = value

    with pytest.raises(UsageError, match="its `info`"):
        tarmac.tokenize(make(tmp_path, 1), tmp_path / "out", mapper=Wrong, jobs=1)


class Halves(tarmac.Mapper):
    """Vectors of half precision."""

    outputs = {"vector": Column("float16", (2,))}

    def prepare(self, sample):
        return int(sample["cls"])

    def __call__(self, batch):
        values = [[7e4 if n == 2 else n, float("inf") if n == 3 else float("nan")] for n in batch]
        return {"vector": values}


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_the_type_of_a_column_do_not_become_infinite(tmp_path):
    shards = make(tmp_path, 1, 5)
    with pytest.raises(TransformFailed, match=r'"000002": .*has a value of 70000, expected float16'):
        tarmac.tokenize(shards, tmp_path / "out", mapper=Halves, jobs=1)
    report = tarmac.tokenize(shards, tmp_path / "out", mapper=Halves, jobs=1, on_error="skip", overwrite=True)
    assert (report.written, report.failed) == (4, 1)
    assert rows(tmp_path / "out")["000003"]["vector"] == [3.0, float("inf")]


class Sorted(tarmac.Mapper):
    """Says of each row how long the longest of its batch is."""

    outputs = {"longest": Column("uint32")}

    def prepare(self, sample):
        return len(sample["txt"])

    def size(self, item):
        return item

    def __call__(self, batch):
        return {"longest": [max(batch)] * len(batch)}


@pytest.mark.parametrize("given", [Sorted, Sorted(), f"{__file__}:Sorted"])
def test_batches_have_items_of_similar_size(tmp_path, given):
    tarmac.tokenize(make(tmp_path, 1, 50), tmp_path / "out", mapper=given, batch_size=3, jobs=1)
    lengths, expected = [len(caption(number)) for number in range(50)], {}
    for start in range(0, 50, 3 * WINDOW):
        window = sorted(range(start, min(start + 3 * WINDOW, 50)), key=lambda row: (lengths[row], row))
        for first in range(0, len(window), 3):
            batch = window[first : first + 3]
            expected |= dict.fromkeys(batch, max(lengths[row] for row in batch))
    present = rows(tmp_path / "out")
    assert {int(key): row["longest"] for key, row in present.items()} == expected
    assert list(present) == sorted(present)  # rows stay in the order of the samples


class Threads(tarmac.Mapper):
    """A mapper that says how many threads torch uses."""

    outputs = {"threads": tarmac.tools.mappers.Column("uint16")}

    def setup(self, device):
        import torch

        self.threads = torch.get_num_threads()

    def __call__(self, batch):
        return {"threads": [self.threads] * len(batch)}


@pytest.mark.processes
def test_each_process_has_its_share_of_the_cores(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    shards = make(tmp_path, 2, 5)
    tarmac.tokenize(shards, tmp_path / "out", mapper=f"{__file__}:Threads", jobs=2)
    assert {row["threads"] for row in rows(tmp_path / "out").values()} == {1}


class Located(tarmac.Mapper):
    """Says where it runs."""

    outputs = {name: Column("uint32") for name in ("process", "device", "in_thread")}

    def prepare(self, sample):
        return threading.current_thread().name.startswith("tarmac-prepare")

    def setup(self, device):
        self.device = DEVICES.index(device)

    def __call__(self, batch):
        count = len(batch)
        return {"process": [os.getpid()] * count, "device": [self.device] * count, "in_thread": batch}


DEVICES = ["cpu", "cuda:0", "cuda:1"]


@pytest.mark.processes
@pytest.mark.parametrize(("devices", "threads"), [("cpu", False), ("cuda:0", True), ("cuda:0,cuda:1", True)])
def test_each_gpu_has_one_process_whose_other_cores_prepare_samples(tmp_path, monkeypatch, devices, threads):
    monkeypatch.setattr("tarmac.tools.mappers.job.usable_cores", lambda: 8)
    jobs = 1 if devices == "cpu" else None
    tarmac.tokenize(
        make(tmp_path, 6, 5), tmp_path / "out", mapper=f"{__file__}:Located", device=devices, jobs=jobs
    )
    present = rows(tmp_path / "out").values()
    assert {DEVICES[row["device"]] for row in present} <= set(devices.split(","))
    assert {row["in_thread"] for row in present} == {threads}
    processes = {row["process"] for row in present}
    assert len(processes) <= len(devices.split(","))
    assert (os.getpid() in processes) == ("," not in devices)


class Shifted(tarmac.Mapper):
    """A mapper that is given something."""

    outputs = {"tokens": Column("uint16", (None,))}

    def __init__(self, shift):
        self.shift = shift

    def __call__(self, batch):
        return {"tokens": [[self.shift]] * len(batch)}


class ShiftedLetters:
    """A tokenizer that is given something, and cannot be called."""

    vocab_size = 300

    def __init__(self, shift):
        self.shift = shift

    def setup(self, device):
        pass

    def encode(self, text):
        return [letter + self.shift for letter in text.encode()]


@pytest.mark.parametrize("options", [{"mapper": Shifted}, {"text": "txt", "tokenizer": ShiftedLetters}])
def test_an_object_that_was_given_something_else_is_another_job(tmp_path, options):
    (name, kind), shards = list(options.items())[-1], make(tmp_path, 1, 5)
    for again in (False, True):
        report = tarmac.tokenize(shards, tmp_path / "out", **options | {name: kind(1)}, jobs=1)
        assert (report.written, report.kept) == (5, int(again))
    with pytest.raises(JobMismatch, match=name):
        tarmac.tokenize(shards, tmp_path / "out", **options | {name: kind(2)}, jobs=1)


class Closing(Shifted):
    """Tells when it is set up and closed."""

    def setup(self, device):
        self.shift.append(f"set up on {device}")

    def close(self):
        self.shift.append("closed")

    def __call__(self, batch):
        self.shift.append(len(batch))
        return {"tokens": [[1]] * len(batch)}


def test_a_mapper_is_set_up_once_and_closed_at_the_end(tmp_path):
    calls: list[object] = []
    tarmac.tokenize(make(tmp_path, 2, 5), tmp_path / "out", mapper=Closing(calls), batch_size=3, jobs=1)
    gc.collect()
    assert calls == ["set up on cpu", 3, 2, 3, 2, "closed"]
