"""Ledgers: what is done stays done, whatever happened to the process, the disk or the options."""

from __future__ import annotations

import errno
import json
import os

import pytest

from harness.faultfs import SHORT, Fault, faulty
from harness.servers import required, seaweed_s3
from tarmac.errors import JobBusy, JobMismatch, WriteError
from tarmac.jobs.ledger import ledger_place, open_ledger
from tarmac.jobs.task import Outcome, Unit
from tarmac.storage import StorageOptions

OPTIONS = {"size": 3, "names": ("a", "b")}
DONE = Outcome(5, 4, 1, bytes=100, outputs={"x.tar": 10}, errors=["bad"], facts={"note": [1]}, seconds=0.5)


@pytest.fixture(scope="module")
def store():
    with required(seaweed_s3()) as server:
        server.make_bucket("ledgers")
        yield StorageOptions(config=server.config())


@pytest.fixture(params=["disk", "store"])
def place(request, tmp_path, store):
    if request.param == "disk":
        return str(tmp_path / "deep" / ".tarmac" / "copy.jsonl"), StorageOptions()
    return f"s3://ledgers/{tmp_path.name}/copy.jsonl", store


def opened(place, options=OPTIONS, **more):
    return open_ledger(place[0], "copy", options, storage=place[1], **more)


def begun(place, *units):
    book = opened(place)
    book.begin()
    for unit in units:
        book.record(unit, DONE)
    book.close()


def test_what_was_recorded_is_there_again(place):
    begun(place, Unit("a", inputs="1"), Unit("b\udce9"))
    book = opened(place)
    assert not book.new
    assert book.done == {"a": ("1", DONE), "b\udce9": ("", DONE)}
    book.record(Unit("c"), Outcome())
    book.close()
    book = opened(place)
    assert sorted(book.done) == ["a", "b\udce9", "c"]
    book.close()


def test_a_job_that_was_not_begun_leaves_nothing_to_go_on_with(place):
    opened(place).close()
    book = opened(place, {"other": 1})
    assert book.new
    book.close()


def test_other_options_are_refused_and_named(place):
    begun(place, Unit("a"))
    with pytest.raises(JobMismatch, match=r"size 3 -> 4.*--overwrite"):
        opened(place, OPTIONS | {"size": 4})
    with pytest.raises(JobMismatch, match="more None -> 1"):
        opened(place, OPTIONS | {"more": 1})


def test_other_inputs_are_called_so(tmp_path):
    place = str(tmp_path / "l.jsonl"), StorageOptions()
    book = opened(place, OPTIONS | {"inputs": "abc"})
    book.begin()
    book.record(Unit("a"), DONE)
    book.close()
    with pytest.raises(JobMismatch, match=r"jsonl: the inputs are others"):
        opened(place, OPTIONS | {"inputs": "def"})
    with pytest.raises(JobMismatch, match=r"options: size 3 -> 4\.") as raised:
        opened(place, OPTIONS | {"inputs": "def", "size": 4})
    assert "def" not in str(raised.value)


def test_a_job_of_which_nothing_came_binds_nobody(place):
    begun(place)
    book = opened(place, OPTIONS | {"size": 4})
    assert (book.new, book.done) == (True, {})
    book.begin()
    book.record(Unit("a"), DONE)
    book.close()
    book = opened(place, OPTIONS | {"size": 4})
    assert (book.new, list(book.done)) == (False, ["a"])
    book.close()
    with pytest.raises(JobMismatch):
        opened(place)


def test_another_verb_is_another_job(place):
    begun(place, Unit("a"))
    with pytest.raises(JobMismatch, match="copy -> map"):
        open_ledger(place[0], "map", OPTIONS, storage=place[1])


def test_beginning_anew_forgets(place):
    begun(place, Unit("a"))
    book = opened(place, {"other": 1}, anew=True)
    assert book.new
    assert book.done == {}
    book.begin()
    book.close()
    book = opened(place, {"other": 1})
    assert book.done == {}
    book.close()


def test_half_a_line_is_not_a_line(tmp_path):
    place = str(tmp_path / "l.jsonl"), StorageOptions()
    begun(place, Unit("a"), Unit("b"))
    whole = (tmp_path / "l.jsonl").read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        (tmp_path / "l.jsonl").write_bytes(whole[:cut])
        book = opened(place)
        assert list(book.done) == ["a", "b"][: whole[first:cut].count(b"\n")]
        book.record(Unit("c"), Outcome())
        book.close()
        book = opened(place)
        assert "c" in book.done
        book.close()


@pytest.mark.parametrize("damage", [b"nonsense\n", b"[]\n", b'{"unit": 1}\n', b'{"inputs": ""}\n'])
def test_a_damaged_ledger_is_refused(tmp_path, damage):
    place = str(tmp_path / "l.jsonl"), StorageOptions()
    begun(place, Unit("a"))
    with (tmp_path / "l.jsonl").open("ab") as file:
        file.write(damage)
    with pytest.raises(JobMismatch, match="damaged"):
        opened(place)
    (tmp_path / "l.jsonl").write_bytes(b'{"format": "else"}\n')
    with pytest.raises(JobMismatch, match="not a ledger"):
        opened(place)


def test_two_processes_cannot_do_the_same_job(tmp_path):
    place = str(tmp_path / "l.jsonl"), StorageOptions()
    book = opened(place)
    with pytest.raises(JobBusy):
        opened(place)
    book.close()
    opened(place).close()


@pytest.mark.parametrize("kind", [errno.ENOSPC, SHORT])
def test_a_full_disk_is_told_and_what_was_recorded_stays(tmp_path, kind):
    place = str(tmp_path / "l.jsonl"), StorageOptions()
    begun(place, Unit("a"))
    book = opened(place)
    with faulty(Fault(1, kind, ("write",))), pytest.raises(WriteError):
        book.record(Unit("b"), DONE)
    book.close()
    book = opened(place)
    assert list(book.done) == ["a"]
    book.close()


def test_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="ledger"):
        open_ledger(str(tmp_path / "file" / "l.jsonl"), "copy", {})


def test_without_a_place_nothing_is_kept(tmp_path):
    book = open_ledger(None, "check", OPTIONS)
    book.begin()
    book.record(Unit("a"), DONE)
    book.close()
    assert os.listdir(tmp_path) == []


def test_ledgers_lie_beside_what_they_speak_of():
    assert ledger_place("out/x-{i:06d}.tar", "copy") == "out/.tarmac/copy-x-_i_06d_.tar.jsonl"
    assert ledger_place("s3://b/p/", "map") == "s3://b/p/.tarmac/map.jsonl"
    assert ledger_place("x.tar", "sort") == ".tarmac/sort-x.tar.jsonl"


def test_entries_are_plain_json(tmp_path):
    begun((str(tmp_path / "l.jsonl"), StorageOptions()), Unit("a", inputs="1"))
    head, entry = map(json.loads, (tmp_path / "l.jsonl").read_text().splitlines())
    assert head == {"format": "tarmac-ledger-1", "verb": "copy", "options": {"size": 3, "names": ["a", "b"]}}
    assert (entry["unit"], entry["written"], entry["outputs"]) == ("a", 4, {"x.tar": 10})


def test_a_forked_worker_does_not_keep_the_lock(tmp_path):
    place = str(tmp_path / "l.jsonl"), StorageOptions()
    book = opened(place)
    reader, writer = os.pipe()
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(there, b"x")
        os.read(reader, 1)  # lives on until it is told to end
        os._exit(0)
    try:
        os.read(here, 1)
        with pytest.raises(JobBusy):
            opened(place)  # the lock is still this process's
        book.close()
        opened(place).close()
    finally:
        os.write(writer, b"x")
        os.waitpid(child, 0)
        for fd in (reader, writer, here, there):
            os.close(fd)


def test_a_job_that_is_refused_forgets_nothing(tmp_path):
    place = str(tmp_path / "copy.jsonl"), StorageOptions()
    begun(place, Unit("a", inputs="1"))
    before = (tmp_path / "copy.jsonl").read_bytes()
    book = opened(place, {"other": 1}, anew=True)
    assert (book.new, book.done, sorted(book.before)) == (True, {}, ["a"])
    book.close()
    assert (tmp_path / "copy.jsonl").read_bytes() == before
    book = opened(place, {"other": 1}, anew=True)
    book.begin()
    book.record(Unit("b"), DONE)
    book.close()
    with pytest.raises(JobMismatch):
        opened(place)
    book = opened(place, {"other": 1})
    assert sorted(book.done) == ["b"]
    book.close()


def test_a_ledger_that_is_damaged_can_be_begun_anew(tmp_path):
    (tmp_path / "copy.jsonl").write_text("what\nis this\n")
    book = opened((str(tmp_path / "copy.jsonl"), StorageOptions()), anew=True)
    assert (book.new, book.before) == (True, {})
    book.begin()
    book.close()
