"""Shards with non-contiguous samples, without an end marker, or concatenated, under handlers that continue."""

from __future__ import annotations

import gzip
import io
import itertools
import re
import tarfile
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
import tarmac.webdataset as wds
from harness.shards import plain
from tarmac.compat.webdataset import tariterators as opening
from tarmac.errors import PartialSamples, Truncated

NAMES = [f"{key}.{field}" for key in "abcde" for field in ("cls", "jpg", "txt")]


def contiguous_keys(names):
    """Return the keys of contiguous samples, and those of the others."""
    runs = [key for key, _ in itertools.groupby(names, lambda name: name[0])]
    whole = [key for key in runs if runs.count(key) == 1]
    return whole, set(runs) - set(whole)


def samples_of(dataset):
    return [(s["__key__"], {f: v for f, v in s.items() if f[:2] != "__"}) for s in dataset]


def dropped(dataset):
    return sum(drops.count for drops in dataset.drops().values())


def expected(key):
    return key, {field: f"{key}.{field}".encode() for field in ("cls", "jpg", "txt")}


orders = st.one_of(
    st.permutations(NAMES),
    # mostly in order: a few members moved
    st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), max_size=4).map(
        lambda moves: _moved(list(NAMES), moves)
    ),
)


def _moved(names, moves):
    for old, new in moves:
        names.insert(new, names.pop(old))
    return names


@settings(max_examples=60, deadline=None)
@given(order=orders)
def test_a_local_shard_yields_contiguous_samples_only(tmp_path_factory, order):
    """Every contiguous sample comes, and each of the others counts as one drop."""
    path = tmp_path_factory.mktemp("shards") / "x.tar"
    path.write_bytes(plain([(name, name.encode()) for name in order]))
    whole, dropped_keys = contiguous_keys(order)
    for handler in (wds.ignore_and_continue, lambda error: True):
        dataset = tarmac.WebDataset([str(path), str(path)], handler=handler, empty_check=False)
        assert samples_of(dataset) == [expected(key) for key in whole] * 2
        assert dropped(dataset) == 2 * len(dropped_keys)


@settings(max_examples=40, deadline=None)
@given(order=orders)
def test_a_stream_ends_where_a_key_repeats(tmp_path_factory, order):
    """Samples before the error have been yielded; the rest of the shard counts as one drop."""
    path = tmp_path_factory.mktemp("shards") / "x.tar.gz"
    path.write_bytes(gzip.compress(plain([(name, name.encode()) for name in order]), 1))
    runs = [key for key, _ in itertools.groupby(order, lambda name: name[0])]
    first = next((number for number, key in enumerate(runs) if key in runs[:number]), len(runs))
    dataset = tarmac.WebDataset(str(path), handler=wds.ignore_and_continue, empty_check=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [key for key, _ in samples_of(dataset)] == runs[:first]
    assert [each.category for each in caught] == [PartialSamples] * (first < len(runs))
    assert dropped(dataset) == (first < len(runs))
    single = opening.group_by_keys(
        opening.tar_file_expander(opening.url_opener([str(path)] * 2)), handler=wds.ignore_and_continue
    )
    assert [sample["__key__"] for sample in single] == runs[:first] * 2


def test_samples_with_the_same_key_are_dropped(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(plain([(f"{key}.txt", b"1") for key in "abcad"]))
    dataset = tarmac.WebDataset(str(path), handler=wds.ignore_and_continue)
    assert [sample["__key__"] for sample in dataset] == ["b", "c", "d"]
    with pytest.raises(tarmac.errors.SplitSample):
        list(tarmac.WebDataset(str(path)))


CONCATENATED = plain(form=tarfile.USTAR_FORMAT) + plain([("t.cls", b"1"), ("t.txt", b"2")])
WITHOUT_END = plain()[:-1024]
LENIENT = tarmac.TarOptions(end="lenient")
ALLOW_CONCATENATED = tarmac.TarOptions(concatenated=True)


@pytest.mark.parametrize(
    ("content", "options", "keys"),
    [(CONCATENATED, ALLOW_CONCATENATED, ["s0", "s1", "s2", "t"]), (WITHOUT_END, LENIENT, ["s0", "s1", "s2"])],
    ids=["concatenated", "without an end"],
)
@pytest.mark.filterwarnings("ignore::tarmac.errors.TruncatedTail")
@pytest.mark.parametrize("handler", [wds.reraise_exception, wds.ignore_and_continue])
def test_tar_options_of_every_reader(tmp_path, content, options, keys, handler):
    path = str(tmp_path / "x.tar")
    (tmp_path / "x.tar").write_bytes(content)
    readers = [
        tarmac.read(path, tar=options),
        tarmac.WebDataset(path, handler, tar=options),
        tarmac.DataPipeline(wds.SimpleShardList(path), wds.tarfile_to_samples(handler, tar=options)),
        wds.tarfile_samples([{"url": path}], handler, tar=options),
    ]
    for reader in readers:
        assert [sample["__key__"] for sample in reader] == keys
    if handler is wds.ignore_and_continue:
        dataset = tarmac.WebDataset(path, handler)
        assert [sample["__key__"] for sample in dataset] == ["s0", "s1"]  # the last may lack fields
        assert dropped(dataset) == 1


@pytest.mark.parametrize("content", [CONCATENATED, WITHOUT_END], ids=["concatenated", "without an end"])
@pytest.mark.filterwarnings("ignore::tarmac.errors.TruncatedTail")
def test_the_hints_of_errors_work(tmp_path, content, capsys):
    """The option and the command that the hint names both read every sample."""
    path = tmp_path / "x.tar"
    path.write_bytes(content)
    with pytest.raises((Truncated, tarmac.errors.TrailingData)) as caught:
        list(tarmac.WebDataset(str(path)))
    hint = str(caught.value)
    options = eval(hint.rpartition("tar=")[2].rstrip("."), {"tarmac": tarmac})
    library = samples_of(tarmac.WebDataset(str(path), tar=options))
    command = re.search(r"tarmac (?:check|copy) SHARD.*?(?=,| makes| merges)", hint)[0]
    from tarmac.cli import main

    (tmp_path / "fixed").mkdir()
    places = {"SHARD": str(path), "DIR/": f"{tmp_path}/fixed/", "NEW.tar": f"{tmp_path}/fixed/x.tar"}
    words = [places.get(word, word) for word in command.split()[1:]]
    with pytest.raises(SystemExit):
        main(words)
    assert samples_of(tarmac.read(str(tmp_path / "fixed" / "x.tar"))) == library
    assert len(library) == (4 if content is CONCATENATED else 3)


def test_non_contiguous_samples_of_a_stream_without_a_name():
    files = opening.tar_file_iterator(io.BytesIO(plain([("a.x", b"1"), ("b.x", b"2"), ("a.y", b"3")])))
    samples = opening.group_by_keys(files, handler=wds.ignore_and_continue)
    assert [sample["__key__"] for sample in samples] == ["a", "b"]
