"""`tarmac.combine`: any parts become the same rows, each key once, in the order of the shards or of the keys."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness import rounds
from tarmac.tokens import duplicates, key_order
from tokens.parts import expected, some_parts, stored, unique, write_parts

KEYS = st.one_of(
    st.integers(0, 30).map(lambda number: f"{number:03d}"), st.sampled_from(["a", "é", "long" * 9, "0"])
)
PARTS = st.lists(
    st.lists(st.tuples(KEYS, st.lists(st.integers(0, 59_999), max_size=9)), max_size=12), max_size=5
)


@settings(max_examples=rounds(30), deadline=None)
@given(
    parts=PARTS.filter(lambda parts: any(parts)),
    batch_size=st.integers(1, 9),
    limits=st.fixed_dictionaries(
        {
            "max_rows": st.integers(1, 20),
            "max_bytes": st.integers(1, 400),
            "record_rows": st.integers(1, 10),
            "record_bytes": st.integers(1, 300),
        }
    ),
    order=st.sampled_from(["shard", "key"]),
)
def test_any_parts_are_their_rows_each_key_once(parts, batch_size, limits, order):
    parts = [unique([part]) for part in parts]
    with tempfile.TemporaryDirectory() as folder:
        tokens = write_parts(Path(folder), parts, batch_size=batch_size)
        report = tarmac.combine(tokens, order=order, jobs=1, **limits)
        rows = unique(parts)
        if order == "key":
            rows.sort(key=lambda row: row[0].encode())
        assert stored(tokens / "combined") == expected(rows)
        total = sum(map(len, parts))
        assert (report.read, report.written, report.dropped) == (total, len(rows), total - len(rows))
        assert report.notes["duplicates"] == total - len(rows)
        read = tarmac.Tokens(tokens / "combined", length=None)
        assert [row["__key__"] for row in read] == [key for key, _ in rows]


@pytest.mark.parametrize("order", ["shard", "key"])
def test_keys_that_occur_again_in_a_shard(tmp_path, order):
    parts = [[("b", [1]), ("a", [2]), ("c", [3]), ("a", [4]), ("b", [5])], [("c", [6]), ("d", [7])]]
    tokens = write_parts(tmp_path, parts)
    report = tarmac.combine(tokens, order=order, jobs=1)
    rows = unique(parts)
    assert stored(tokens / "combined") == expected(sorted(rows) if order == "key" else rows)
    assert (report.read, report.written, report.dropped) == (7, 4, 3)
    assert any("the same key" in remark for remark in report.remarks)


@pytest.mark.parametrize("order", ["shard", "key"])
def test_little_memory_gives_the_same_rows(tmp_path, monkeypatch, order):
    rng = np.random.default_rng(3)
    parts = [[(f"{rng.integers(0, 3000):05d}", [int(n)]) for n in rng.integers(0, 99, 700)] for _ in range(4)]
    parts = [unique([part]) for part in parts]  # each part has a key once, but parts share keys
    tokens = write_parts(tmp_path, parts, batch_size=64)
    monkeypatch.setattr(duplicates, "BUCKET_BYTES", 2000)
    monkeypatch.setattr(duplicates, "RANGE", 256)
    monkeypatch.setattr(duplicates, "_PENDING", 100)
    monkeypatch.setattr(key_order.sort_parts, "__defaults__", (3000,))
    monkeypatch.setattr(key_order, "MAX_RUNS", 3)
    tarmac.combine(tokens, order=order, jobs=1)
    rows = unique(parts)
    assert stored(tokens / "combined") == expected(sorted(rows) if order == "key" else rows)


def test_the_index_reads_single_rows(tmp_path):
    parts = some_parts()
    tokens = write_parts(tmp_path, parts, batch_size=16)
    assert not tarmac.combine(tokens, tmp_path / "out", jobs=1, max_rows=40, record_rows=20).remarks
    read = tarmac.Tokens(tmp_path / "out", length=None)
    assert len(read) == 150
    rows = unique(parts)
    for number in (0, 39, 40, 77, 149):
        key, values = rows[number]
        assert read[number]["tokens"].tolist() == values == read[key]["tokens"].tolist()
    assert read.info.pad_token == 7


def test_whole_records_are_copied_as_they_are(tmp_path):
    tokens = write_parts(tmp_path, some_parts(2, 64), batch_size=32)
    tarmac.combine(tokens, tmp_path / "out", jobs=1, record_rows=64)
    parts = [sample["arrow"] for sample in tarmac.read(f"{tokens}/*.tar")]
    assert [sample["arrow"] for sample in tarmac.read(f"{tmp_path}/out/*.tar")] == parts


@pytest.mark.processes
def test_several_processes_write_the_same_bytes(tmp_path):
    rng = np.random.default_rng(0)
    parts = [[(f"{rng.integers(0, 500):05d}", [part, row]) for row in range(100)] for part in range(4)]
    tokens = write_parts(tmp_path, [unique([part]) for part in parts], batch_size=16)
    for jobs in (1, 2):
        tarmac.combine(tokens, tmp_path / str(jobs), jobs=jobs, max_rows=37)
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / n).glob("*.tar")} for n in "12")
    assert one == two
    assert len(one) > 5


def test_a_finished_run_does_nothing(tmp_path, monkeypatch):
    tokens = write_parts(tmp_path, some_parts())
    first = tarmac.combine(tokens, jobs=1)
    monkeypatch.setattr("tarmac.tokens.combine.survey", None)
    again = tarmac.combine(tokens, jobs=1)
    assert (again.kept, again.done, again.written) == (first.units, 0, first.written)
    for path in (tokens / "combined").glob("*.tar"):
        path.unlink()
    monkeypatch.undo()
    assert tarmac.combine(tokens, jobs=1).done == first.units


def test_a_dry_run_writes_nothing(tmp_path):
    tokens = write_parts(tmp_path, some_parts())
    report = tarmac.combine(tokens, jobs=1, max_rows=50, dry_run=True)
    assert (report.units, report.done) == (3, 0)
    assert not (tokens / "combined").exists()


class TestBugsOfTheScripts:
    """What goes wrong in the scripts that this replaces."""

    def test_code_0_is_a_token(self, tmp_path):
        parts = [[("a", [0, 0, 0]), ("b", [0, 5]), ("c", [])]]
        tokens = write_parts(tmp_path, parts)
        for name in ("tarmac", "npy", "tensordict", "megatron"):
            assert tarmac.combine(tokens, tmp_path / name, format=name, jobs=1).written == 3
        assert [row["tokens"] for _, row in stored(tmp_path / "tarmac")] == [[0, 0, 0], [0, 5], []]

    def test_the_last_short_batch_overwrites_nothing(self, tmp_path):
        parts = some_parts(2, 37)
        tokens = write_parts(tmp_path, parts, batch_size=16)
        tarmac.combine(tokens, tmp_path / "npy", format="npy", block_size=31, jobs=1)
        values, mask = (np.load(tmp_path / "npy" / name) for name in ("tokens.npy", "tokens.mask.npy"))
        assert [row[has].tolist() for row, has in zip(values, mask, strict=True)] == [
            t for _, t in unique(parts)
        ]

    def test_one_row_of_each_key_is_kept_not_the_first_rows(self, tmp_path):
        numbers = [5, 6, 5, 6, 7, 8]
        parts = [[(str(n), [n]) for n in numbers[:2]], [(str(n), [n + 100]) for n in numbers[2:]]]
        tokens = write_parts(tmp_path, parts)
        report = tarmac.combine(tokens, jobs=1)
        assert [row["tokens"] for _, row in stored(tokens / "combined")] == [[5], [6], [107], [108]]
        assert report.notes["duplicates"] == 2


def test_parts_are_deleted_after_they_were_verified(tmp_path):
    tokens = write_parts(tmp_path, some_parts())
    tarmac.combine(tokens, tmp_path / "out", delete_parts=True, jobs=1)
    assert not list(tokens.rglob("*.tar"))
    assert not (tokens / ".tarmac" / "tokenize.job").exists()
    assert stored(tmp_path / "out") == expected(unique(some_parts()))
    assert tarmac.combine(tokens, tmp_path / "out", delete_parts=True, jobs=1).kept == 1


def test_the_output_takes_the_place_of_the_parts(tmp_path):
    parts = some_parts()
    tokens = write_parts(tmp_path, parts)
    tarmac.combine(tokens, move=True, jobs=1, max_rows=50)
    names = {path.name for path in tokens.iterdir()}
    assert names == {".tarmac", "tokens.json"} | {
        f"tokens-{n:06d}.tar{end}" for n in range(3) for end in ("", ".rows.arrow")
    }
    assert [row["__key__"] for row in tarmac.Tokens(tokens, length=None)] == [key for key, _ in unique(parts)]
    again = tarmac.combine(tokens, move=True, jobs=1, max_rows=50)
    assert (again.done, again.kept, again.written) == (0, 3, 150)


def test_a_part_with_the_name_of_an_output_is_replaced_last(tmp_path):
    parts = some_parts(1)
    tokens = write_parts(tmp_path / "a", parts)
    shutil.move(tmp_path / "a" / "in-000.tar", tmp_path / "tokens-000000.tar")
    from tokens.parts import Given

    tokens = tmp_path / "tokens"
    tarmac.tokenize(f"{tmp_path}/tokens-000000.tar", tokens, mapper=Given, jobs=1)
    tarmac.combine(tokens, move=True, jobs=1)
    assert stored(tokens) == expected(unique(parts))
    assert (tokens / "tokens-000000.tar.rows.arrow").exists()


def test_nothing_is_deleted_if_rows_are_missing(tmp_path, monkeypatch):
    from tarmac.errors import WriteError
    from tarmac.tokens.formats.tarmac import TarmacFormat

    tokens = write_parts(tmp_path, some_parts())
    before = {path.name: path.read_bytes() for path in tokens.glob("*.tar")}
    monkeypatch.setattr(TarmacFormat, "count", lambda self, target, names: 149)
    with pytest.raises(WriteError, match="149 rows, 150 were expected"):
        tarmac.combine(tokens, tmp_path / "out", delete_parts=True, jobs=1)
    assert {path.name: path.read_bytes() for path in tokens.glob("*.tar")} == before
    monkeypatch.undo()
    tarmac.combine(tokens, tmp_path / "out", delete_parts=True, jobs=1)
    assert not list(tokens.glob("*.tar"))


def test_failed_samples_are_counted(tmp_path):
    rows = [(f"{n:03d}", [n]) for n in range(20)]
    tokens = write_parts(tmp_path, [rows, [("x", [70_000]), ("y", [3])]], on_error="skip", batch_size=4)
    report = tarmac.combine(tokens, jobs=1)
    assert (report.read, report.written) == (21, 21)
    assert report.notes["samples_that_failed_in_tokenize"] == 1
    assert report.ok


@pytest.mark.parametrize("across", [False, True])
def test_rows_are_packed_into_sequences(tmp_path, across):
    parts = [*some_parts(), [("000003", [1, 2]), ("empty", [])]]
    tokens = write_parts(tmp_path, parts, batch_size=16)
    for again in (False, True):
        report = tarmac.combine(
            tokens, tmp_path / "out", pack=24, across_documents=across, jobs=1, max_rows=9
        )
        assert (report.read, report.written, report.dropped) == (152, 150, 2)
        assert (report.notes["duplicates"], report.notes["samples_without_tokens"]) == (1, 1)
        assert bool(report.kept) == again
    rows, sequences = dict(unique(parts)), stored(tmp_path / "out")
    assert report.notes["sequences"] == len(sequences) == len(tarmac.Tokens(tmp_path / "out"))
    together = [token for _, row in sequences for token in row["tokens"]]
    assert sorted(together) == sorted(token for row in rows.values() for token in row)
    if across:
        assert together == [token for row in rows.values() for token in row]
    for key, row in sequences:
        assert sum(row["segments"]) == len(row["tokens"]) == len(row["modality"]) <= 24
        assert row["modality"] == [token % 2 for token in row["tokens"]]
        first = row["tokens"][: row["segments"][0]]
        assert any(rows[key][at : at + len(first)] == first for at in range(len(rows[key]) + 1))
    loaded = tarmac.Tokens(tmp_path / "out")
    assert loaded.info.packed == 24
    assert loaded[0]["tokens"].shape == (24,)


def test_packed_sequences_are_nearly_full(tmp_path):
    rng = np.random.default_rng(1)
    lengths = np.clip(rng.lognormal(3, 1, 3000), 1, 256).astype(int)
    parts = [[(f"{n:05d}", [1] * int(length)) for n, length in enumerate(lengths)]]
    tokens = write_parts(tmp_path, parts, batch_size=500)
    report = tarmac.combine(tokens, tmp_path / "out", pack=256, jobs=1)
    assert lengths.sum() / (256 * report.notes["sequences"]) > 0.97


def test_the_command_line(tmp_path, capsys):
    from tarmac.cli import main

    tokens = write_parts(tmp_path, some_parts())
    command = [
        "combine",
        str(tokens),
        "-o",
        f"{tmp_path}/out",
        "--max-rows",
        "60",
        "--order",
        "key",
        "-j",
        "1",
    ]
    with pytest.raises(SystemExit, match="0"):
        main(command)
    assert "150 samples in, 150 out" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(command)
    assert "nothing to do" in capsys.readouterr().err
    assert len(list((tmp_path / "out").glob("*.tar"))) == 3
