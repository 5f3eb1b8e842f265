"""The contract of mappers: what `tokenize` asks of a mapper of the user, and what it does with the answers."""

from __future__ import annotations

import pytest

import tarmac
from tarmac.errors import TransformFailed, UsageError
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
        (lambda batch: [[70_000]] * len(batch), TransformFailed, "expected uint16"),
        (lambda batch: [[0.5]] * len(batch), TransformFailed, "expected uint16"),
        (lambda batch: [1] * len(batch), TransformFailed, "not a list"),
    ],
)
def test_mappers_that_return_something_else(tmp_path, function, error, message):
    with pytest.raises(error, match=message):
        tarmac.tokenize(make(tmp_path, 1), tmp_path / "out", mapper=function, vocab_size=10, jobs=1)
    assert not list(tmp_path.glob("out/*.tar"))


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
