"""Plots: the files are pictures, and what is drawn in them is right."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

import tarmac
from harness.shards import plain
from tarmac.errors import IndexingError, TarmacError
from tarmac.indexing.build import IndexOptions, index_shard
from tarmac.indexing.meta import parse_meta
from tarmac.indexing.sidecar import sidecar_url, write_sidecar
from tarmac.tools.audit.audit import OrderOptions, audit
from tarmac.tools.audit.plot import class_shares, classes_of, plot_order


@pytest.fixture(scope="module", autouse=True)
def _fonts():
    """Let matplotlib open the fonts that it keeps open, so that no test is blamed for them."""
    figure = Figure()
    figure.text(0, 0, "text")
    figure.savefig(io.BytesIO())


def make(folder, classes=lambda number: number // 10, meta="cls"):
    """Three shards of 20 samples, with their classes in the index."""
    for shard in range(3):
        path = folder / f"{shard}.tar"
        numbers = range(shard * 20, shard * 20 + 20)
        path.write_bytes(plain([(f"k{number:02d}.cls", b"%d" % classes(number)) for number in numbers]))
        options = IndexOptions(meta=parse_meta(meta))
        write_sidecar(sidecar_url(str(path)), index_shard(str(path), options))
    return tarmac.Dataset(str(folder / "*.tar"))


@pytest.mark.parametrize(
    ("name", "magic"), [("o.png", b"\x89PNG"), ("o.PDF", b"%PDF"), ("o.svg", b"<?xml version")]
)
def test_files(tmp_path, name, magic):
    found = audit(make(tmp_path), OrderOptions(4, 2))
    plot_order(found, tmp_path / name, buffer=5, label="cls")
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_what_the_titles_say(tmp_path):
    found = audit(make(tmp_path), OrderOptions(16))
    plot_order(found, tmp_path / "o.svg", buffer=5)
    drawn = (tmp_path / "o.svg").read_text()
    for title in (
        f"stream, buffer of 5: quality {found.stream_quality(5):.2f}",
        f"exact order: quality {found.quality():.2f}",
        "ideal: quality ",
        "share of each tenth of the dataset",
    ):
        assert f"<!-- {title}" in drawn


def test_one_batch_and_one_sample(tmp_path):
    plot_order(audit(make(tmp_path)[:1], OrderOptions(16)), tmp_path / "o.png")
    assert (tmp_path / "o.png").exists()


def test_classes_without_a_label_are_tenths(tmp_path):
    assert classes_of(make(tmp_path)).tolist() == [number // 6 for number in range(60)]


def test_classes_are_those_of_the_column(tmp_path):
    dataset = make(tmp_path, lambda number: (number % 3) * 100)
    assert classes_of(dataset, "cls").tolist() == [number % 3 for number in range(60)]
    assert classes_of(dataset[5::7], "cls").tolist() == [number % 3 for number in range(5, 60, 7)]


def test_many_classes_are_taken_together(tmp_path):
    assert classes_of(make(tmp_path, lambda number: 59 - number), "cls").tolist() == [
        (59 - number) // 6 for number in range(60)
    ]


def test_a_label_that_the_index_does_not_have(tmp_path):
    found = audit(make(tmp_path), OrderOptions(4))
    with pytest.raises(IndexingError, match="no column") as caught:
        plot_order(found, tmp_path / "o.png", label="colour")
    assert "0.tar" in str(caught.value)
    assert not (tmp_path / "o.png").exists()


def test_shares_of_batches():
    classes = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])
    assert class_shares(classes, 4).tolist() == [[0.75, 0], [0.25, 0.5], [0, 0.5]]
    assert class_shares(classes, 100).tolist() == [[1 / 3], [1 / 3], [1 / 3]]
    shares = class_shares(np.arange(100_000) % 5, 8)
    assert shares.shape == (5, 120)
    assert shares.sum(axis=0) == pytest.approx(1)


def test_what_cannot_be_drawn(tmp_path):
    dataset = make(tmp_path)
    found = audit(dataset, OrderOptions(4))
    with pytest.raises(ValueError, match=r"ends in \.png"):
        plot_order(found, tmp_path / "o.txt")
    with pytest.raises(ValueError, match="no samples"):
        plot_order(audit(dataset[:0], OrderOptions(4)), tmp_path / "o.png")
    with pytest.raises(TarmacError):
        plot_order(found, tmp_path / "absent" / "o.png")


def test_the_extra_is_named(tmp_path, monkeypatch):
    found = audit(make(tmp_path), OrderOptions(4))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"tarmac\[plot\]"):
        plot_order(found, tmp_path / "o.png")
