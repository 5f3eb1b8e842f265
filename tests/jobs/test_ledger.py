"""Ledgers: recorded units survive killed processes, full disks and changed options."""

from __future__ import annotations

import errno
import json
import os

import pytest

from harness.faultfs import SHORT, Fault, faulty
from harness.servers import required, seaweed_s3
from tarmac.errors import JobBusy, JobMismatch, WriteError
from tarmac.jobs.journal import Journal
from tarmac.jobs.ledger import ledger_url, open_ledger
from tarmac.jobs.task import Outcome, Unit
from tarmac.storage import StorageOptions

OPTIONS = {"size": 3, "names": ("a", "b")}
DONE = Outcome(5, 4, 1, bytes=100, outputs={"x.tar": 10}, errors=["bad"], details={"note": [1]}, seconds=0.5)


@pytest.fixture(scope="module")
def store():
    with required(seaweed_s3()) as server:
        server.make_bucket("ledgers")
        yield StorageOptions(config=server.config())


@pytest.fixture(params=["disk", "store"])
def location(request, tmp_path, store):
    if request.param == "disk":
        return str(tmp_path / "deep" / ".tarmac" / "copy.job"), StorageOptions()
    return f"s3://ledgers/{tmp_path.name}/copy.job", store


def opened(location, options=OPTIONS, **more):
    return open_ledger(location[0], "copy", options, storage=location[1], **more)


def started(location, *units):
    ledger = opened(location)
    ledger.begin()
    for unit in units:
        ledger.record(unit, DONE)
    ledger.close()


def test_recorded_units_are_read_back(location):
    started(location, Unit("a", inputs="1"), Unit("b\udce9"))
    ledger = opened(location)
    assert not ledger.new
    assert ledger.done == {"a": ("1", DONE), "b\udce9": ("", DONE)}
    ledger.record(Unit("c"), Outcome())
    ledger.close()
    ledger = opened(location)
    assert sorted(ledger.done) == ["a", "b\udce9", "c"]
    ledger.close()


def test_a_job_that_never_started_can_change_its_options(location):
    opened(location).close()
    ledger = opened(location, {"other": 1})
    assert ledger.new
    ledger.close()


def test_changed_options_are_rejected_and_named(location):
    started(location, Unit("a"))
    with pytest.raises(JobMismatch, match="size 3 -> 4"):
        opened(location, OPTIONS | {"size": 4})
    with pytest.raises(JobMismatch, match="more None -> 1"):
        opened(location, OPTIONS | {"more": 1})


def test_changed_inputs_are_not_shown_as_hashes(tmp_path):
    location = str(tmp_path / "l.job"), StorageOptions()
    ledger = opened(location, OPTIONS | {"inputs": "abc"})
    ledger.begin()
    ledger.record(Unit("a"), DONE)
    ledger.close()
    with pytest.raises(JobMismatch, match=r"l\.job: .*inputs"):
        opened(location, OPTIONS | {"inputs": "def"})
    with pytest.raises(JobMismatch, match=r"l\.job: .*: size 3 -> 4\.") as raised:
        opened(location, OPTIONS | {"inputs": "def", "size": 4})
    assert "def" not in str(raised.value)


def test_a_job_without_completed_units_can_change_its_options(location):
    started(location)
    ledger = opened(location, OPTIONS | {"size": 4})
    assert (ledger.new, ledger.done) == (True, {})
    ledger.begin()
    ledger.record(Unit("a"), DONE)
    ledger.close()
    ledger = opened(location, OPTIONS | {"size": 4})
    assert (ledger.new, list(ledger.done)) == (False, ["a"])
    ledger.close()
    with pytest.raises(JobMismatch):
        opened(location)


def test_another_verb_is_rejected(location):
    started(location, Unit("a"))
    with pytest.raises(JobMismatch, match="copy -> map"):
        open_ledger(location[0], "map", OPTIONS, storage=location[1])


def test_overwriting_discards_the_entries(location):
    started(location, Unit("a"))
    ledger = opened(location, {"other": 1}, overwrite=True)
    assert ledger.new
    assert ledger.done == {}
    ledger.begin()
    ledger.close()
    ledger = opened(location, {"other": 1})
    assert ledger.done == {}
    ledger.close()


def entries(job):
    """Return the file in which the only writer of a job recorded its units."""
    (path,) = job.glob("*/*.jsonl")
    return path


def test_an_incomplete_last_line_is_dropped(tmp_path):
    location = str(tmp_path / "l.job"), StorageOptions()
    started(location, Unit("a"), Unit("b"))
    written = entries(tmp_path / "l.job")
    whole = written.read_bytes()
    for cut in range(len(whole)):
        written.write_bytes(whole[:cut])
        ledger = opened(location)
        assert list(ledger.done) == ["a", "b"][: whole[:cut].count(b"\n")]
        ledger.record(Unit("c"), Outcome())
        ledger.close()
        ledger = opened(location)
        assert "c" in ledger.done
        ledger.close()
        for path in written.parent.glob("*.jsonl"):
            path.unlink()


@pytest.mark.parametrize("damage", [b"nonsense\n", b"[]\n", b'{"unit": 1}\n', b'{"inputs": ""}\n'])
def test_a_damaged_ledger_is_rejected(tmp_path, damage):
    location = str(tmp_path / "l.job"), StorageOptions()
    started(location, Unit("a"))
    with entries(tmp_path / "l.job").open("ab") as file:
        file.write(damage)
    with pytest.raises(JobMismatch, match="damaged"):
        opened(location)
    (tmp_path / "l.job" / "job.json").write_bytes(b'{"format": "else"}\n')
    with pytest.raises(JobMismatch, match=r"l\.job: .*version"):
        opened(location)


def test_writers_are_read_as_a_union(location):
    """The latest entry of a unit counts, and one that is done has not failed."""
    ledger = opened(location)
    ledger.begin(["a", "b", "c"])
    journal = ledger.journal
    journal.fail(Unit("a"), "first")
    journal.record(Unit("a", inputs="1"), DONE)
    journal.fail(Unit("b"), "second")
    journal.fail(Unit("c"), "third")
    journal.retry("c")
    ledger.close()
    ledger = opened(location)
    assert (ledger.done, ledger.failed) == ({"a": ("1", DONE)}, {"b": "second"})
    Journal(journal.url, location[1]).record(Unit("b"), DONE)
    Journal(journal.url, location[1]).close()
    assert sorted(ledger.done) == ["a"]
    ledger.refresh()
    assert (sorted(ledger.done), ledger.failed) == (["a", "b"], {})
    ledger.close()


def test_tasks_share_a_ledger(location):
    """They choose the same generation, whichever begins first."""
    ledgers = [opened(location, shared=True) for _ in range(3)]
    for number, ledger in enumerate(ledgers):
        ledger.begin(["0", "1", "2"])
        ledger.record(Unit(str(number)), DONE)
    for ledger in ledgers:
        ledger.refresh()
        assert sorted(ledger.done) == ["0", "1", "2"]
        assert ledger.has_begun()
    if "s3://" not in location[0]:
        with pytest.raises(JobBusy):
            opened(location)
    for ledger in ledgers:
        ledger.close()
    ledger = opened(location)
    assert len(ledger.done) == 3
    ledger.close()


def test_a_ledger_is_locked(tmp_path):
    location = str(tmp_path / "l.job"), StorageOptions()
    ledger = opened(location)
    with pytest.raises(JobBusy):
        opened(location)
    ledger.close()
    opened(location).close()


@pytest.mark.parametrize("kind", [errno.ENOSPC, SHORT])
def test_a_full_disk_raises_and_keeps_recorded_units(tmp_path, kind):
    location = str(tmp_path / "l.job"), StorageOptions()
    started(location, Unit("a"))
    ledger = opened(location)
    with faulty(Fault(1, kind, ("write",))), pytest.raises(WriteError):
        ledger.record(Unit("b"), DONE)
    ledger.close()
    ledger = opened(location)
    assert list(ledger.done) == ["a"]
    ledger.close()


def test_an_unwritable_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"l\.job"):
        open_ledger(str(tmp_path / "file" / "l.job"), "copy", {})


def test_without_a_url_nothing_is_written(tmp_path):
    ledger = open_ledger(None, "check", OPTIONS)
    ledger.begin()
    ledger.record(Unit("a"), DONE)
    ledger.close()
    assert os.listdir(tmp_path) == []


def test_ledgers_are_beside_the_output():
    assert ledger_url("out/x-{i:06d}.tar", "copy") == "out/.tarmac/copy-x-_i_06d_.tar.job"
    assert ledger_url("s3://b/p/", "map") == "s3://b/p/.tarmac/map.job"
    assert ledger_url("x.tar", "sort") == ".tarmac/sort-x.tar.job"


def test_entries_are_plain_json(tmp_path):
    started((str(tmp_path / "l.job"), StorageOptions()), Unit("a", inputs="1"))
    head = json.loads((tmp_path / "l.job" / "job.json").read_text())
    assert head.pop("generation") == entries(tmp_path / "l.job").parent.name
    assert head == {"format": "tarmac-ledger-2", "verb": "copy", "options": {"size": 3, "names": ["a", "b"]}}
    entry = json.loads(entries(tmp_path / "l.job").read_text())
    assert (entry["unit"], entry["written"], entry["outputs"]) == ("a", 4, {"x.tar": 10})


OLD_HEAD = {"format": "tarmac-ledger-1", "verb": "copy", "options": {"size": 3, "names": ["a", "b"]}}
OLD_ENTRY = {
    "unit": "out/x-000000.tar", "read": 5, "written": 4, "failed": 1, "dropped": 0, "left_out": 0, "added": 0,
    "bytes": 100, "outputs": {"out/x-000000.tar": 10240}, "inputs": "f00", "errors": ["bad"], "seconds": 0.5,
    "facts": {
        "beside": {"out/x-000000.tar.arrow": 2048},
        "removed": True,
        "marks": {"out/x-000000.tar": "0123456789abcdef"},
        "keys_found": ["a"],
    },
}  # fmt: skip


def test_ledgers_of_earlier_versions_are_read_and_continued(tmp_path):
    path = tmp_path / "l.jsonl"
    path.write_text(f"{json.dumps(OLD_HEAD)}\n{json.dumps(OLD_ENTRY)}\n")
    ledger = opened((str(tmp_path / "l.job"), StorageOptions()))
    inputs, outcome = ledger.done["out/x-000000.tar"]
    assert (inputs, outcome.written, outcome.outputs) == ("f00", 4, {"out/x-000000.tar": 10240})
    assert outcome.companions == {"out/x-000000.tar.arrow": 2048}
    assert outcome.removed
    assert outcome.sampled_digests == {"out/x-000000.tar": "0123456789abcdef"}
    assert outcome.details == {"keys_found": ["a"]}
    assert path.exists()  # until the job begins
    ledger.begin()
    ledger.record(Unit("b"), DONE)
    ledger.close()
    assert not path.exists()
    ledger = opened((str(tmp_path / "l.job"), StorageOptions()))
    assert ledger.done == {"out/x-000000.tar": ("f00", outcome), "b": ("", DONE)}
    ledger.close()


@pytest.mark.parametrize("settled", [True, False])
def test_an_earlier_version_was_overwriting_a_job(tmp_path, settled):
    lines = [
        OLD_HEAD,
        OLD_ENTRY,
        OLD_HEAD,
        OLD_ENTRY | {"unit": "b"},
        *([{"settled": True}] if settled else []),
    ]
    path = tmp_path / "ledger"  # as `check` was told to
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for _ in range(2):
        ledger = opened((str(path), StorageOptions()))
        assert (list(ledger.done), list(ledger.previous)) == (["b"], [] if settled else ["out/x-000000.tar"])
        ledger.begin()
        ledger.close()


def test_a_forked_worker_does_not_keep_the_lock(tmp_path):
    location = str(tmp_path / "l.job"), StorageOptions()
    ledger = opened(location)
    reader, writer = os.pipe()
    ready, child_ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(child_ready, b"x")
        os.read(reader, 1)  # runs until it is told to exit
        os._exit(0)
    try:
        os.read(ready, 1)
        with pytest.raises(JobBusy):
            opened(location)  # the lock is still this process's
        ledger.close()
        opened(location).close()
    finally:
        os.write(writer, b"x")
        os.waitpid(child, 0)
        for fd in (reader, writer, ready, child_ready):
            os.close(fd)


def test_an_overwriting_job_that_never_starts_changes_nothing(tmp_path):
    location = str(tmp_path / "copy.job"), StorageOptions()
    started(location, Unit("a", inputs="1"))
    before = (tmp_path / "copy.job" / "job.json").read_bytes()
    ledger = opened(location, {"other": 1}, overwrite=True)
    assert (ledger.new, ledger.done, sorted(ledger.previous)) == (True, {}, ["a"])
    ledger.close()
    assert (tmp_path / "copy.job" / "job.json").read_bytes() == before
    ledger = opened(location, {"other": 1}, overwrite=True)
    ledger.begin()
    ledger.record(Unit("b"), DONE)
    ledger.close()
    with pytest.raises(JobMismatch):
        opened(location)
    ledger = opened(location, {"other": 1})
    assert sorted(ledger.done) == ["b"]
    ledger.close()


def test_a_damaged_ledger_can_be_overwritten(tmp_path):
    (tmp_path / "copy.job").mkdir()
    (tmp_path / "copy.job" / "job.json").write_text("what\nis this\n")
    ledger = opened((str(tmp_path / "copy.job"), StorageOptions()), overwrite=True)
    assert (ledger.new, ledger.previous) == (True, {})
    ledger.begin()
    ledger.close()
