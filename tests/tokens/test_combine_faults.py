"""`combine` is killed, runs out of disk, or gets the parts of an unfinished job: nothing is lost."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from pathlib import Path

import pytest

import tarmac
from harness import rounds
from harness.crash import Forked, survive
from harness.faultfs import Fault, every_fault, faulty
from tarmac.errors import (
    DiskFull,
    JobError,
    JobMismatch,
    TarmacError,
    UsageError,
)
from tarmac.storage.locks import try_lock
from tarmac.tokens.formats.tarmac import TarmacFormat
from tokens.parts import Given, expected, some_parts, stored, unique, write_parts


def content(folder: Path) -> dict[str, bytes]:
    """Return the files of a directory, without ledgers and indexes, which have the times of their shards."""
    paths = [path for path in folder.iterdir() if path.is_file() and path.name[0] != "."]
    return {path.name: path.read_bytes() for path in paths if path.suffix != ".arrow"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("tarmac", {"max_rows": 30}),
        ("tarmac", {"max_rows": 50, "order": "key", "pack": 40}),
        ("tensordict", {}),
        ("npy", {"block_size": 40}),
        ("megatron", {}),
        ("sidecar", {}),
    ],
)
def test_killed_runs_are_completed(tmp_path, format, options):
    rows = some_parts(4, 300)
    rows[3][5] = (rows[0][7][0], [1, 2])
    tokens = write_parts(tmp_path, rows, batch_size=16)
    tarmac.combine(tokens, tmp_path / "quiet", format=format, jobs=1, **options)
    quiet, parts = content(tmp_path / "quiet"), content(tokens)

    def work():
        tarmac.combine(
            tokens, tmp_path / "out", format=format, delete_parts=True, jobs=1, progress=False, **options
        )

    def check():
        present = content(tmp_path / "out") if (tmp_path / "out").exists() else {}
        assert {name: quiet[name] for name in present} == present
        left = content(tokens)
        assert {name: parts[name] for name in left} == left
        # Nothing is deleted before all is there.
        if left != parts:
            assert present == quiet

    shutil.copytree(tokens, tmp_path / "saved")

    def strike(seed):
        result = Forked(work).crash(seed, 0.3)
        if not result.killed:  # it was finished before: begin again
            check()
            shutil.rmtree(tokens)
            shutil.copytree(tmp_path / "saved", tokens)
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
        return result

    survive(rounds(20) if format == "tarmac" else rounds(5), strike, check)
    work()
    assert content(tmp_path / "out") == quiet
    assert not content(tokens)


def test_working_files_of_killed_runs_are_removed(tmp_path, monkeypatch):
    rows = some_parts()
    tokens = write_parts(tmp_path, rows)
    home = tmp_path / "out" / ".tarmac"

    def combine():
        tarmac.combine(tokens, tmp_path / "out", pack=40, jobs=1, progress=False)

    with monkeypatch.context() as patch:
        patch.setattr(TarmacFormat, "write", lambda *arguments: os._exit(9))  # it has packed all rows
        for _ in range(2):
            os.waitpid(Forked(combine).start(), 0)
            (left,) = home.glob("work-*/*.tar")
        # A run that is alive keeps its files, and so does one of another machine, whose locks may be invisible.
        with open(left.parent / "lock") as lock:
            assert try_lock(lock.fileno())
            os.waitpid(Forked(combine).start(), 0)
            assert len(list(home.glob("work-*/*.tar"))) == 2
    host, lock_file = socket.gethostname(), left.parent / "lock"
    lock_file.write_text("another-machine")
    combine()
    assert list(home.glob("work-*")) == [left.parent]
    lock_file.write_text(host)
    combine()  # has nothing to do
    tarmac.combine(tokens, tmp_path / "out", pack=40, jobs=1, overwrite=True)
    assert not list(home.glob("work-*"))
    assert len(tarmac.Tokens(tmp_path / "out")) > 0


@pytest.mark.long
def test_killed_runs_that_move_are_completed(tmp_path):
    rows = some_parts(4, 100)
    tokens = write_parts(tmp_path, rows, batch_size=16)
    shutil.copytree(tokens, tmp_path / "saved")
    tarmac.combine(tokens, tmp_path / "quiet", jobs=1, max_rows=50)
    quiet, parts = content(tmp_path / "quiet"), content(tokens)

    def work():
        tarmac.combine(tokens, move=True, jobs=1, max_rows=50, progress=False)

    def check():
        inside = tokens / "combined"
        files = content(tokens) | (content(inside) if inside.exists() else {})
        assert {name: (quiet | parts)[name] for name in files} == files
        assert quiet.keys() <= files.keys() or parts.keys() <= files.keys()

    def strike(seed):
        result = Forked(work).crash(seed, 0.25)
        if not result.killed:
            check()
            shutil.rmtree(tokens)
            shutil.copytree(tmp_path / "saved", tokens)
        return result

    survive(rounds(20), strike, check)
    work()
    assert content(tokens) == quiet


@pytest.mark.parametrize("stop", ["unlink", "replace", "rmtree"])
def test_every_step_of_cleaning_up_can_be_the_last(tmp_path, monkeypatch, stop):
    """Stop before each call that deletes or moves something, in turn."""
    rows = some_parts(3, 20)
    template = write_parts(tmp_path / "template", rows)
    for number in range(40):
        tokens = tmp_path / str(number) / "tokens"
        shutil.copytree(template, tokens)
        tarmac.combine(tokens, jobs=1, max_rows=25)
        seen = 0
        real = getattr(shutil if stop == "rmtree" else os, stop)

        def call(*args, _real=real, _number=number, **kwargs):
            nonlocal seen
            seen += 1
            if seen == _number + 1:
                raise KeyboardInterrupt
            return _real(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(shutil if stop == "rmtree" else os, stop, call)
            try:
                tarmac.combine(tokens, move=True, jobs=1, max_rows=25)
            except KeyboardInterrupt:
                pass
            else:
                break
        report = tarmac.combine(tokens, move=True, jobs=1, max_rows=25)
        assert report.written == 60
        assert stored(tokens) == expected(unique(rows))
        assert not (tokens / "combined").exists()
    else:
        raise AssertionError("it never ends")
    assert number > 0


@pytest.mark.long
@pytest.mark.parametrize("format", ["tarmac", "npy", "tensordict", "megatron", "sidecar"])
def test_a_full_disk_loses_nothing(tmp_path, format):
    rows = some_parts(2, 30)
    tokens = write_parts(tmp_path, rows)
    parts, limits = content(tokens), {"max_rows": 20} if format == "tarmac" else {}
    failed = 0
    for fault in every_fault(errno.ENOSPC, ("write", "fsync", "link")):
        out = tmp_path / f"out-{fault.number}"
        try:
            with faulty(fault):
                tarmac.combine(tokens, out, format=format, jobs=1, **limits)
        except TarmacError:
            failed += 1
        assert content(tokens) == parts
        assert tarmac.combine(tokens, out, format=format, jobs=1, **limits).written == 60
        shutil.rmtree(out)
    assert failed > 3


def test_a_full_disk_while_keys_are_compared(tmp_path):
    rows = some_parts(2, 30)
    tokens = write_parts(tmp_path, [rows[1], rows[0], rows[1][:3]])
    for order in ("shard", "key"):
        with faulty(Fault(2, errno.ENOSPC, ("write",))) as fault, pytest.raises(DiskFull):
            tarmac.combine(tokens, tmp_path / order, order=order, jobs=1)
        assert fault.fired
        assert tarmac.combine(tokens, tmp_path / order, order=order, jobs=1).written == 60


class Stopping(Given):
    """Stops the job at a sample."""

    def __call__(self, batch):
        if any(row == [666] for row in batch):
            raise KeyboardInterrupt
        return super().__call__(batch)


def unfinished(folder: Path) -> tuple[Path, list[list[tuple[str, list[int]]]]]:
    """Return the directory of a job that was stopped in its second unit, and the rows it has saved."""
    rows = some_parts(3, 50)
    rows[1][33] = (rows[1][33][0], [666])
    with pytest.raises(KeyboardInterrupt):
        write_parts(folder, rows, mapper=Stopping, batch_size=10, checkpoint_samples=10)
    return folder / "tokens", [rows[0], rows[1][:30]]


def test_an_unfinished_job(tmp_path):
    tokens, rows = unfinished(tmp_path)
    before = sorted((path, path.stat().st_mtime_ns) for path in tokens.rglob("*"))
    with pytest.raises(JobError, match="2 of 3 units"):
        tarmac.combine(tokens, tmp_path / "out", jobs=1)
    report = tarmac.combine(tokens, tmp_path / "out", partial=True, jobs=1)
    assert stored(tmp_path / "out") == expected(unique(rows))
    assert (report.read, report.written) == (80, 80)
    assert any("2 units" in remark for remark in report.remarks)
    assert sorted((path, path.stat().st_mtime_ns) for path in tokens.rglob("*")) == before
    assert tarmac.combine(tokens, tmp_path / "out", partial=True, jobs=1).kept == 1
    for option in ("move", "delete_parts"):
        with pytest.raises(UsageError, match="unfinished"):
            tarmac.combine(tokens, partial=True, jobs=1, **{option: True})


def test_a_job_that_went_on_is_another_input(tmp_path):
    tokens, rows = unfinished(tmp_path)
    tarmac.combine(tokens, tmp_path / "out", partial=True, jobs=1)
    Path(tmp_path / "in-001.tar").touch()
    write_rest(tmp_path)
    with pytest.raises(JobMismatch, match="inputs"):
        tarmac.combine(tokens, tmp_path / "out", partial=True, jobs=1)
    report = tarmac.combine(tokens, tmp_path / "out", jobs=1, overwrite=True)
    assert report.written == 149
    assert len(stored(tmp_path / "out")) == 149
    assert rows[0][0] in [(key, row["tokens"]) for key, row in stored(tmp_path / "out")]


def write_rest(folder: Path) -> None:
    """Complete the job, without the sample that stopped it."""

    tarmac.tokenize(
        f"{folder}/in-*.tar", folder / "tokens", mapper=Stopped, jobs=1, repeated="keep",
        batch_size=10, overwrite=True, on_error="skip",
    )  # fmt: skip


class Stopped(Given):
    """Fails a sample."""

    def prepare(self, sample):
        row = super().prepare(sample)
        if row == [666]:
            raise ValueError("bad")
        return row
