"""`combine` gets parts that do not belong together, other directories, or options that make no sense."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import tarmac
from tarmac.errors import (
    ArchiveError,
    DecodeFailed,
    JobBusy,
    JobError,
    JobMismatch,
    NotFound,
    UsageError,
)
from tokens.parts import Given, expected, some_parts, stored, unique, write_parts


def test_parts_that_do_not_belong_together(tmp_path):
    a = write_parts(tmp_path / "a", some_parts())

    class Wide(Given):
        outputs = {**Given.outputs, "tokens": tarmac.tools.mappers.Column("uint32", (None,))}

    b = write_parts(tmp_path / "b", some_parts(seed=1), mapper=Wide)
    shutil.copy(b / "in-001.tar", a / "in-009.tar")
    with pytest.raises(JobError, match=r"in-009\.tar.*another job"):
        tarmac.combine(a, jobs=1)
    os.unlink(a / "in-009.tar")
    shutil.copy(b / "in-001.tar", a / "in-001.tar")
    with pytest.raises(JobError, match=r"in-001\.tar.*not the one"):
        tarmac.combine(a, jobs=1)
    os.unlink(a / "in-001.tar")
    with pytest.raises(NotFound, match=r"in-001\.tar.*missing"):
        tarmac.combine(a, jobs=1)
    assert not list((a).glob("combined/*.tar"))


def test_mixed_columns(tmp_path, monkeypatch):
    a, b = (
        write_parts(tmp_path / name, some_parts(), mapper=mapper)
        for name, mapper in (("a", Given), ("b", Other))
    )
    for path in b.glob("*.tar"):
        shutil.copy(path, a / path.name) if path.name != "in-000.tar" else None
    monkeypatch.setattr("tarmac.tokens.source.TokenJob.check", lambda self: None)
    with pytest.raises(JobError, match=r"in-001\.tar.*the column count"):
        tarmac.combine(a, jobs=1)


class Other(Given):
    """Tokens with other columns."""

    outputs = {name: column for name, column in Given.outputs.items() if name != "count"}

    def __call__(self, batch):
        return {name: values for name, values in super().__call__(batch).items() if name != "count"}


@pytest.mark.parametrize("at", [0.2, 0.5, 0.9])
def test_damaged_parts(tmp_path, at, monkeypatch):
    tokens = write_parts(tmp_path, some_parts())
    path = tokens / "in-001.tar"
    data = path.read_bytes()
    path.write_bytes(data[: int(at * len(data)) // 512 * 512])
    with pytest.raises(JobError, match=r"in-001\.tar"):
        tarmac.combine(tokens, jobs=1)
    monkeypatch.setattr("tarmac.tokens.source.TokenJob.check", lambda self: None)
    with pytest.raises((ArchiveError, DecodeFailed, JobError), match=r"in-001\.tar"):
        tarmac.combine(tokens, jobs=1)
    assert not list(tokens.glob("combined/*.tar"))


def test_directories_without_parts(tmp_path):
    with pytest.raises(UsageError, match="tokenize has written nothing"):
        tarmac.combine(tmp_path, jobs=1)
    with pytest.raises(UsageError, match="tokenize has written nothing"):
        tarmac.combine(tmp_path / "missing", jobs=1)
    (tmp_path / "x.tar").touch()
    with pytest.raises(UsageError, match=r"x\.tar: this is a file"):
        tarmac.combine(tmp_path / "x.tar", jobs=1)
    with pytest.raises(UsageError, match="an empty name"):
        tarmac.combine("", jobs=1)
    tokens = write_parts(tmp_path, [[("a", [70_000])]], on_error="skip")
    with pytest.raises(UsageError, match="no rows"):
        tarmac.combine(tokens, jobs=1)


def test_combined_tokens_are_not_parts(tmp_path):
    tokens = write_parts(tmp_path, some_parts())
    tarmac.combine(tokens, jobs=1)
    for option in ({}, {"output": tmp_path / "out"}, {"delete_parts": True}):
        with pytest.raises(UsageError, match="combined tokens and no parts"):
            tarmac.combine(tokens / "combined", jobs=1, **option)
    tarmac.combine(tokens, move=True, jobs=1)
    with pytest.raises(UsageError, match="combined tokens and no parts"):
        tarmac.combine(tokens, format="npy", jobs=1)
    assert len(stored(tokens)) == 150


def test_a_directory_that_was_moved_or_copied(tmp_path):
    tokens = write_parts(tmp_path / "a", some_parts())
    tarmac.combine(tokens, jobs=1)
    for move in (shutil.copytree, shutil.move):
        there = Path(move(tokens, tmp_path / move.__name__))
        assert tarmac.combine(there, jobs=1).kept == 1
        assert len(tarmac.Tokens(there / "combined", length=None)) == 150
        report = tarmac.combine(there, tmp_path / f"{move.__name__}-out", delete_parts=True, jobs=1)
        assert (report.written, report.kept) == (150, 0)
        assert not list(there.glob("*.tar"))
        assert stored(tmp_path / f"{move.__name__}-out") == expected(unique(some_parts()))
        assert tokens.exists() == (move is shutil.copytree)


def test_nothing_is_deleted_if_samples_are_unaccounted_for(tmp_path, monkeypatch):
    """What the job read is rows of its parts, or failed."""
    from tarmac.tokens import combine

    tokens = write_parts(tmp_path, some_parts())
    find = combine.Settlement.find
    for field, number in (("failed", 1), ("read", 149)):

        def wrong(self, *, partial, field=field, number=number):
            return replace(find(self, partial=partial), **{field: number})

        with (
            monkeypatch.context() as patch,
            pytest.raises(JobError, match=r"150 rows; the job read 1\d\d samples"),
        ):
            patch.setattr(combine.Settlement, "find", wrong)
            tarmac.combine(tokens, tmp_path / field, delete_parts=True, jobs=1)
        assert len(list(tokens.glob("*.tar"))) == 3
    assert tarmac.combine(tokens, tmp_path / "out", delete_parts=True, jobs=1).written == 150


def test_names_as_urls(tmp_path, monkeypatch):
    tokens = write_parts(tmp_path, some_parts())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert tarmac.combine(f"file://{tokens}", f"file://{tmp_path}/out", jobs=1, pack=64).written == 150
    assert os.listdir() == []  # working files are beside the output
    assert len(tarmac.Tokens(f"file://{tmp_path}/out")) > 1


def test_shards_without_samples(tmp_path):
    rows = some_parts(2, 5)
    tokens = write_parts(tmp_path, [[], rows[0], [], rows[1], []])
    tarmac.combine(tokens, jobs=1)
    assert stored(tokens / "combined") == expected(unique(rows))
    tarmac.combine(tokens, tmp_path / "sidecars", format="sidecar", jobs=1)
    present = [tarmac.read(str(path)) for path in sorted((tmp_path / "sidecars").glob("*.tar"))]
    assert sum(len(list(samples)) for samples in present) == 10


def test_outputs_that_exist(tmp_path):
    tokens = write_parts(tmp_path, some_parts())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tokens-000000.tar").write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        tarmac.combine(tokens, tmp_path / "out", jobs=1)
    assert (tmp_path / "out" / "tokens-000000.tar").read_text() == "mine"
    tarmac.combine(tokens, tmp_path / "other", jobs=1)
    with pytest.raises(JobMismatch, match="format"):
        tarmac.combine(tokens, tmp_path / "other", format="npy", jobs=1)
    (tmp_path / "other" / "mine.txt").write_text("mine")
    for form in ("npy", "megatron", "tarmac", "tensordict"):
        tarmac.combine(tokens, tmp_path / "other", format=form, jobs=1, overwrite=True)
        tarmac.combine(tokens, tmp_path / form, format=form, jobs=1)
        one, other = ({path.name for path in (tmp_path / name).iterdir()} for name in ("other", form))
        assert one == other | {"mine.txt"}
    (tokens / "tokens.json").write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        tarmac.combine(tokens, move=True, jobs=1)
    assert len(list(tokens.glob("*.tar"))) == 3


def test_other_options_after_the_parts_are_gone(tmp_path):
    tokens = write_parts(tmp_path, some_parts())
    tarmac.combine(tokens, tmp_path / "out", delete_parts=True, jobs=1)
    with pytest.raises(JobError, match="parts are gone"):
        tarmac.combine(tokens, tmp_path / "out", delete_parts=True, jobs=1, order="key")
    os.unlink(tmp_path / "out" / "tokens-000000.tar")
    with pytest.raises(NotFound, match="gone or has changed"):
        tarmac.combine(tokens, tmp_path / "out", jobs=1)


def test_parts_of_a_running_job_are_not_deleted(tmp_path):
    from tarmac.storage.locks import claim

    tokens = write_parts(tmp_path, some_parts())
    with open(tokens / ".tarmac" / "tokenize.job" / "lock", "w") as lock:
        assert claim(lock.fileno())
        with pytest.raises(JobBusy):
            tarmac.combine(tokens, delete_parts=True, jobs=1)
    assert len(list(tokens.glob("*.tar"))) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"format": "parquet"}, {"order": "random"}, {"max_rows": 0}, {"record_bytes": -1}, {"block_size": 0},
        {"format": "sidecar", "order": "key"}, {"format": "sidecar", "pack": 10}, {"across_documents": True},
        {"pack": 0}, {"move": True, "output": "x"}, {"format": "npy", "block_size": 3},
        {"format": "npy", "output": "memory://x"}, {"block_size": 40}, {"format": "megatron", "block_size": 40},
        {"format": "npy", "max_rows": 9}, {"format": "sidecar", "max_bytes": 99}, {"pack": "8"}, {"max_rows": 2.5},
        {"record_rows": "8"}, {"block_size": "8", "format": "npy"}, {"output": ""}, {"output": "-"},
    ],
)  # fmt: skip
def test_options_that_make_no_sense(tmp_path, options):
    tokens = write_parts(tmp_path, some_parts())
    with pytest.raises(UsageError):
        tarmac.combine(tokens, jobs=1, **options)
    assert len(list(tokens.glob("*.tar"))) == 3


def test_the_directory_of_the_parts_is_not_the_output(tmp_path):
    tokens = write_parts(tmp_path, some_parts())
    with pytest.raises(UsageError, match="directory of the parts"):
        tarmac.combine(tokens, tokens, jobs=1)
