"""What ledgers and leases say about jobs: status, log, retry and finish."""

from __future__ import annotations

import builtins
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import tarmac
from cli.running import run
from harness.servers import required, seaweed_s3
from tarmac.errors import JobError, JobMismatch, NotFound, UnitsFailed, UnitTimedOut, UrlError, UsageError
from tarmac.jobs.journal import Journal
from tarmac.jobs.ledger import open_ledger, read_job
from tarmac.jobs.task import Outcome, Unit
from tarmac.tools.jobs import finish, log, retry, status
from tarmac.tools.jobs.status import duration, group_errors
from tools.shards import keys, make

EARLIER = Path(__file__).parent.parent / "data" / "earlier-jobs.tar.gz"
FUNCTIONS = '''
import os
from pathlib import Path

def picky(sample):
    """Fail where the file `bad` says so."""
    if Path("bad").exists() and sample["__key__"] in Path("bad").read_text().split():
        raise ValueError(f"cannot do {sample['__key__']}")
    return sample

def held(sample):
    """Wait at each sample of the second shard."""
    if sample["__url__"].endswith("in-1.tar"):
        open("begun", "w").close()
        open("go").close()
    return sample
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Three shards of three samples, and functions to map."""
    make(tmp_path, 3, 3, 3)
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "functions", raising=False)
    return tmp_path


def picky(output, *, bad=(), **options):
    """Run a job in which the units fail that have these samples."""
    import functions

    Path("bad").write_text("\n".join(bad))
    return tarmac.map("in-{0..2}.tar", output, functions.picky, jobs=1, **options)


def bad_keys(*shards):
    return [keys(f"in-{shard}.tar")[0] for shard in shards]


class HeldTask:
    """A task of a job that waits in its second unit."""

    def __init__(self, *arguments):
        os.mkfifo("go")
        os.mkfifo("begun")
        command = [
            sys.executable,
            "-m",
            "tarmac",
            "map",
            "in-{0..2}.tar",
            "--py",
            "functions.py:held",
            "-j",
            "1",
        ]
        self.process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE)
        open("begun").close()  # waits until the job opens it

    def __enter__(self):
        return self

    def finish(self):
        for fifo in ("begun", "go"):
            os.rename(fifo, f"{fifo}-fifo")
            os.symlink("/dev/null", fifo)
        writer = os.open("go-fifo", os.O_RDWR)  # which does not wait: the task may not have opened it yet
        try:
            return self.process.wait()
        finally:
            os.close(writer)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def test_a_complete_job(here):
    tarmac.copy("in-*.tar", "out/x-{i}.tar", max_samples=2)
    (job,) = status("out/x-{i}.tar")
    assert (job.verb, job.units, job.done, job.missing, job.complete) == ("copy", 5, 5, 0, True)
    assert (job.samples["read"], job.samples["written"], job.samples["failed"]) == (9, 9, 0)
    assert job.samples["bytes"] > 0
    assert (job.running, job.dead, job.failed, job.errors, job.remaining_seconds) == ([], [], [], [], None)
    assert (len(job.slowest), job.exit_status) == (5, 0)
    assert list(job.slowest.values()) == sorted(job.slowest.values(), reverse=True)


@pytest.mark.parametrize("max_failed_units", [0, 5])
def test_a_job_with_failed_units(here, max_failed_units):
    with pytest.raises(Exception, match="cannot do"):
        picky("out/", bad=bad_keys(0, 2), max_failed_units=max_failed_units)
    (job,) = status("out")
    failed = ["out/in-0.tar", "out/in-2.tar"] if max_failed_units else ["out/in-0.tar"]
    assert (job.units, job.done + job.missing, job.failed) == (3, 3 - len(failed), failed)
    assert (job.exit_status, job.complete) == (1, False)
    (error,) = job.errors  # those that differ only in names are one
    assert error.count == len(failed)
    assert bad_keys(0)[0] in error.example

    entries = log("out")
    assert [(entry.unit, entry.state) for entry in entries] == [(name, "failed") for name in failed]
    assert all("cannot do" in entry.error and entry.time for entry in entries)

    assert retry("out") == failed
    (job,) = status("out")
    assert (job.failed, job.missing, log("out")) == ([], 3 - job.done, [])
    assert retry("out") == []
    picky("out/")
    assert status("out")[0].complete


def test_only_the_given_units_are_retried(here):
    with pytest.raises(UnitsFailed):
        picky("out/", bad=bad_keys(0, 2), max_failed_units=5)
    with pytest.raises(UsageError, match="`units`"):
        retry("out", ["out/in-1.tar"])
    assert retry("out", ["out/in-2.tar"]) == ["out/in-2.tar"]
    assert status("out")[0].failed == ["out/in-0.tar"]


def test_a_retry_counts_even_if_the_clock_is_behind(here):
    with pytest.raises(UnitsFailed):
        picky("out/", bad=bad_keys(0, 2), max_failed_units=5)
    (path,) = Path("out/.tarmac").glob("map.job/*/*.jsonl")
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(f"{json.dumps(entry | {'at': 4e9})}\n" for entry in entries))
    assert len(retry("out")) == 2
    assert status("out")[0].failed == []


def test_samples_that_failed(here):
    picky("out/", bad=bad_keys(0, 2), on_error="skip")
    (job,) = status("out/")
    assert (job.done, job.samples["failed"], job.samples["written"], job.exit_status) == (3, 2, 7, 0)
    assert [error.count for error in job.errors] == [2]
    entries = log("out/")
    assert [(entry.unit, entry.state, entry.failed) for entry in entries] == [
        ("out/in-0.tar", "done", 1),
        ("out/in-2.tar", "done", 1),
    ]
    assert all(len(entry.errors) == 1 for entry in entries)


def test_everything_about_a_unit(here):
    picky("out/", bad=bad_keys(0), on_error="skip")
    (entry,) = log("out", "out/in-0.tar")
    assert (entry.state, entry.failed, entry.details["read"], entry.details["written"]) == ("done", 1, 3, 2)
    assert list(entry.details["outputs"]) == ["out/in-0.tar"]
    (entry,) = log("out", "out/in-1.tar")
    assert (entry.state, entry.errors, entry.details["written"]) == ("done", [], 3)
    with pytest.raises(UsageError, match="`unit`"):
        log("out", "out/in-9.tar")


@pytest.mark.processes
@pytest.mark.parametrize("task", [(), ("--task", "0/1")])
def test_a_running_job(here, task):
    with HeldTask("-o", "out/", "--manifest", "out/m.json", *task) as held:
        (job,) = status("out")
        (running,) = job.running
        assert (running.unit, running.pid) == ("out/in-1.tar", held.process.pid)
        assert running.owner == "".join(task[1:])
        assert running.seconds >= 0
        assert (job.units, job.done, job.missing, job.dead, job.exit_status) == (3, 1, 1, [], 0)
        assert job.remaining_seconds > 0
        assert log("out", "out/in-1.tar")[0].state == "running"
        assert (finish("out")[0].missing, finish("out")[0].exit_status) == (2, 3)
        assert held.finish() == 0
    (job,) = status("out")
    assert (job.done, job.running, job.complete) == (3, [], True)


@pytest.mark.processes
def test_a_dead_task(here):
    with HeldTask("-o", "out/", "--task", "0/1") as held:
        held.kill()
        (job,) = status("out")
        assert [dead.unit for dead in job.dead] == ["out/in-1.tar"]
        assert (job.done, job.running, job.missing, job.exit_status) == (1, [], 1, 0)
        assert log("out", "out/in-1.tar")[0].state == "dead"
        for fifo in ("begun", "go"):
            os.unlink(fifo)
            os.symlink("/dev/null", fifo)
        command = ["map", "in-{0..2}.tar", "--py", "functions.py:held", "-o", "out/", "--task", "1/2"]
        subprocess.run([sys.executable, "-m", "tarmac", *command], check=True, capture_output=True)
    assert status("out")[0].complete


@pytest.fixture(scope="module")
def server():
    with required(seaweed_s3()) as server:
        server.make_bucket("jobs")
        yield server


def test_a_job_in_a_store(here, server, monkeypatch):
    for name, value in server.env().items():
        monkeypatch.setenv(name, value)
    output, manifest = f"s3://jobs/{here.name}/out/", f"s3://jobs/{here.name}/m.json"
    with pytest.raises(UnitsFailed):
        picky(output, bad=bad_keys(0, 1), max_failed_units=5, manifest=manifest)
    for location in (output, output.rstrip("/"), f"{output}.tarmac/map.job"):
        (job,) = status(location)
        assert (job.units, job.done, len(job.failed)) == (3, 1, 2)
    assert len(log(output)) == 2
    assert retry(output) == [f"{output}in-0.tar", f"{output}in-1.tar"]
    assert status(output)[0].missing == 2
    assert finish(output)[0].missing == 2
    picky(output, manifest=manifest, task="0/1")
    assert status(output)[0].complete
    assert finish(output)[0].written == [manifest]
    with pytest.raises(NotFound):
        status(f"s3://jobs/{here.name}/else/")


def test_jobs_are_located_by_their_output(here):
    tarmac.copy("in-0.tar", "out/x-{i}.tar")
    tarmac.sort("in-1.tar", "out/y-{i}.tar")
    tarmac.copy("in-2.tar", "out/{split}-{i}.tar", split={"a": 0.5, "b": 0.5})
    tarmac.copy("in-0.tar", "alone.tar")

    def verbs(location):
        return [job.verb for job in status(location)]

    assert (
        verbs("out")
        == verbs("out/")
        == verbs(here / "out")
        == verbs("out/.tarmac")
        == ["copy", "copy", "sort"]
    )
    assert verbs("out/x-{i}.tar") == verbs("out/.tarmac/copy-x-_i_.tar.job") == ["copy"]
    assert verbs("out/y-{i}.tar") == ["sort"]
    assert verbs("out/{split}-{i}.tar") == ["copy"]
    assert verbs("alone.tar") == verbs(".") == ["copy"]
    for location in ("none", "out/z-{i}.tar", "in-0.tar", "functions.py"):
        with pytest.raises(NotFound):
            status(location)
    with pytest.raises(UsageError):
        status("https://example.com/out/")


def test_jobs_of_earlier_versions(tmp_path, monkeypatch):
    with tarfile.open(EARLIER) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    (job,) = status("map")
    assert (job.verb, job.units, job.done, job.missing) == ("map", None, 2, 0)
    assert (retry("map"), log("map")) == ([], [])
    assert finish("map")[0].by_command
    assert [job.verb for job in status("each")] == ["copy"]


def test_a_job_that_overwrites_another(here):
    """Only its own units count; what the other one wrote is removed when it is finished."""
    tarmac.copy("in-*.tar", "out/x-{i}.tar", max_samples=3)
    with pytest.raises(Exception, match="status 1"):
        tarmac.copy(
            "in-*.tar", "out/x-{i}.tar", max_samples=5, overwrite=True, jobs=1,
            post_cmd="case {path} in *x-1.tar) exit 1;; esac",
        )  # fmt: skip
    (job,) = status("out")
    assert (job.units, job.done, job.failed) == (2, 1, ["out/x-1.tar"])

    url, ledger = job.url, read_job(job.url)[1]
    ledger.journal.record(Unit("out/x-1.tar"), Outcome(4, 4, outputs={"out/x-1.tar": 1}))
    ledger.close()
    (result,) = finish(url)
    assert (result.missing, result.removed_outputs, os.path.exists("out/x-2.tar")) == (
        0,
        ["out/x-2.tar"],
        False,
    )
    assert str(finish(url)[0]) == "copy: nothing to finish"


@pytest.mark.parametrize("shared", [False, True])
def test_errors_that_may_pass_are_shown_and_not_held_against_the_unit(here, shared):
    """A task tries such a unit again without `retry`."""
    Path("slow.py").write_text(
        "import os, time\n"
        "def work(sample):\n"
        "    while not os.path.exists('quick'):\n"
        "        time.sleep(0.01)\n"
        "    return sample\n"
    )

    def run(**options):
        task = "0/2" if shared else None
        return tarmac.map("in-{0..2}.tar", "out/", "slow.py:work", jobs=1, task=task, **options)

    with pytest.raises(UnitTimedOut):
        run(unit_timeout=0.2, retries=0)
    (job,) = status("out")
    assert (job.units, job.done, job.failed, job.missing, job.exit_status) == (3, 0, [], 3, 0)
    assert [error.count for error in job.errors] == [1]
    assert "more than 0.2 seconds" in job.lines()[-1]
    (entry,) = log("out")
    assert (entry.state, entry.unit) == ("missing", "out/in-0.tar")
    assert "more than 0.2 seconds" in str(entry)
    assert retry("out") == []
    Path("quick").touch()
    assert run().done == 3
    assert (status("out")[0].errors, log("out")) == ([], [])


DAMAGES = {
    "head": lambda job: (job / "job.json").write_text("what"),
    "entry": lambda job: next(job.glob("*/*.jsonl")).write_text("what\n"),
    "version": lambda job: (job / "job.json").write_text('{"format": "tarmac-ledger-9", "verb": "copy"}'),
    "plan": lambda job: next(job.glob("*/plan.json")).write_text('{"units": 3}'),
    "no verb": lambda job: (job / "job.json").write_text('{"format": "tarmac-ledger-1", "generation": "x"}'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_ledger_does_not_hide_other_jobs(here, damage):
    tarmac.copy("in-0.tar", "out/x-{i}.tar")
    tarmac.copy("in-1.tar", "out/y-{i}.tar")
    DAMAGES[damage](here / "out/.tarmac/copy-x-_i_.tar.job")
    damaged, whole = status("out")
    assert (bool(damaged.damage), damaged.exit_status, damaged.complete) == (True, 1, False)
    assert (str(damaged), damaged.lines()) == (damaged.damage, [])
    assert (whole.done, whole.exit_status) == (1, 0)
    for look in (log, retry, finish):
        if damage != "plan" or look is finish:
            with pytest.raises(JobMismatch):
                look("out/x-{i}.tar")


def manifest_job(output="out/", **options):
    """Run a job that writes a manifest."""
    tarmac.copy("in-{0..2}.tar", output, manifest=options.pop("manifest", "out/m.json"), jobs=1, **options)


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("manifest", ["out/m.json", "lists/m.json"])
def test_finishing_writes_the_same_manifest(here, monkeypatch, elsewhere, absolute, manifest):
    Path("lists").mkdir()
    manifest_job(f"{here}/out/" if absolute else "out/", manifest=manifest)
    content = Path(manifest).read_bytes()
    Path(manifest).unlink()
    if elsewhere:
        (here / "else").mkdir()
        monkeypatch.chdir(here / "else")
    for _ in range(2):
        (result,) = finish(here / "out" if elsewhere or absolute else "out")
        assert ([os.path.realpath(path) for path in result.written]) == [str(here / manifest)]
        assert (here / manifest).read_bytes() == content


def test_a_job_of_the_version_before_that_was_moved_is_finished_by_its_command(here):
    manifest_job()
    shutil.move("out", "moved")
    head = here / "moved/.tarmac/copy.job/job.json"
    options = json.loads(head.read_text()) | {"format": "tarmac-ledger-1"}
    options["options"]["pattern"] = "out/"
    head.write_text(json.dumps(options))
    with pytest.raises(JobError, match="another directory"):
        finish("moved")


def test_finishing_keeps_a_manifest_of_other_shards(here):
    manifest_job()
    Path("out/m.json").unlink()
    tarmac.index("in-0.tar", "out/m.json")
    content = Path("out/m.json").read_bytes()
    with pytest.raises(UsageError, match=r"out/m\.json"):
        finish("out")
    assert Path("out/m.json").read_bytes() == content


def test_finishing_packs_writes_the_classes(here):
    for name in ("cat", "dog"):
        (here / "raw" / name).mkdir(parents=True)
        (here / "raw" / name / "x.jpg").write_text(name)
    tarmac.pack("raw", "out/x-{i}.tar", format="imagefolder", max_samples=1, manifest="out/m.json")
    contents = {name: (here / "out" / name).read_bytes() for name in ("x.classes.txt", "m.json")}
    for name in contents:
        (here / "out" / name).unlink()
    (result,) = finish("out")
    assert sorted(result.written) == ["out/m.json", "out/x.classes.txt"]
    assert {name: (here / "out" / name).read_bytes() for name in contents} == contents


def test_exports_are_finished_by_their_command(here):
    tarmac.export("in-*.tar", "out/x.jsonl", "jsonl")
    (result,) = finish("out/x.jsonl")
    assert (result.by_command, result.missing, result.exit_status) == (True, 0, 0)


def test_plans_hold_no_secrets(here):
    """Only the job itself knows them, so only its command writes such a manifest."""
    with pytest.raises(UrlError, match="manifest"):  # of local files, on a server
        manifest_job(manifest="http://user:hunter2@127.0.0.1:1/m.json?token=hunter2", overwrite=True)
    texts = [path.read_text() for path in Path("out/.tarmac").rglob("*") if path.is_file()]
    assert any('"closing": null' in text for text in texts)
    assert not any("hunter2" in text for text in texts)
    assert finish("out")[0].by_command


UNITS = 10_000


def test_every_file_is_read_once(tmp_path, monkeypatch):
    """The cost does not depend on the number of outputs, which are not looked at."""
    url, writers = str(tmp_path / "out/.tarmac/copy.job"), 20
    names = [f"out/x-{number:06d}.tar" for number in range(UNITS)]
    ledger = open_ledger(url, "copy", {})
    ledger.begin(names)
    journal = ledger.journal
    for writer in range(writers):
        for name in names[writer::writers]:
            journal.record(Unit(name), Outcome(10, 10, bytes=100, outputs={name: 100}, seconds=1.0))
        Journal(journal.url).close()  # the next one begins a file
    ledger.close()

    opened, looked_at = [], []
    monkeypatch.setattr(builtins, "open", _noting(opened, builtins.open))
    monkeypatch.setattr(os, "open", _noting(opened, os.open))
    monkeypatch.setattr(os, "stat", _noting(looked_at, os.stat))
    (job,) = status(tmp_path / "out")
    assert (job.units, job.done, job.samples["read"], job.unit_seconds) == (UNITS, UNITS, 10 * UNITS, 1.0)
    read = [path for path in opened if str(tmp_path) in str(path)]
    assert len(read) == len(set(read)) == writers + 2  # and the head and the plan
    assert len([path for path in looked_at if str(tmp_path) in str(path)]) < 20


def _noting(names, function):
    def call(path, *args, **options):
        names.append(path)
        return function(path, *args, **options)

    return call


def test_errors_are_grouped_without_names():
    errors = [
        'a/x-0.tar @ 0x00000400, sample "a": bad number 17.',
        'b/x-12.tar @ 0x0000f400, sample "b c": bad number 3.5.',
        "s3://b/k: denied.",
    ]
    assert [(error.count, error.example) for error in group_errors(errors)] == [
        (2, errors[0]),
        (1, errors[2]),
    ]
    assert len(group_errors(f"{letter}!" for letter in "abcdefgh")) == 5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.25 s"), (59, "59 s"), (600, "10 min"), (12_000, "3 h 20 min"), (200_000, "2 d 7 h")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_the_command_line(here, capsys):
    with pytest.raises(UnitsFailed):
        picky("out/", bad=bad_keys(0, 2), max_failed_units=5, manifest="out/m.json")
    code, out, _ = run(capsys, "jobs", "status", "out")
    assert (code, "map: 1 of 3 units done, 2 FAILED" in out) == (1, True)
    code, out, _ = run(capsys, "jobs", "status", "out", "--json")
    assert (code, json.loads(out)["failed"]) == (1, ["out/in-0.tar", "out/in-2.tar"])
    code, out, _ = run(capsys, "jobs", "log", "out")
    assert (code, out.count("failed out/in-")) == (0, 2)
    code, out, _ = run(capsys, "jobs", "log", "out", "--unit", "out/in-1.tar", "--json")
    assert (code, json.loads(out)["details"]["written"]) == (0, 3)
    code, _, err = run(capsys, "jobs", "finish", "out")
    assert (code, "2 units" in err) == (3, True)
    code, out, err = run(capsys, "jobs", "retry", "out", "out/in-0.tar")
    assert (code, out, "1 failed unit " in err) == (0, "out/in-0.tar\n", True)
    picky("out/", manifest="out/m.json")
    code, _, err = run(capsys, "jobs", "finish", "out")
    assert (code, "out/m.json" in err) == (0, True)
    code, _, err = run(capsys, "jobs", "log", "out")
    assert (code, err != "") == (0, True)
    assert run(capsys, "jobs", "status", "nowhere")[0] == 3
