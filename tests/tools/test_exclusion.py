"""Two jobs with one output: one of them runs, and the other one fails before it writes."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys

import pytest

from harness.servers import required, seaweed_s3
from tarmac.cli import main
from tools.shards import files, keys, make

TARMAC = [sys.executable, "-m", "tarmac"]
SLOW = """
import os
def slow(sample):
    if sample["__key__"].endswith(os.environ["WAIT_AT"]):
        with open("begun", "w"):
            pass
        open("go").close()
    return sample
"""
VERBS = {
    "copy": "copy b-*.tar",
    "sort": "sort b-*.tar",
    "map": "map b-*.tar --py quick.py:quick",
    "join": "join b-*.tar --with b-0.tar --prefix n.",
    "pack": "pack raw",
    "copy of a stream": "copy b.tar.gz",
    "export": "export b-*.tar --to jsonl",
    "repair": "check cut.tar --repair",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Shards `a-*` and `b-*` with different keys, and a function that waits until it may go on."""
    make(tmp_path, 6, 6, name="a-{}.tar")
    make(tmp_path, *(0, 0, 6, 6), name="b-{}.tar")
    for old in ("b-0.tar", "b-1.tar"):
        (tmp_path / old).unlink()
    os.rename(tmp_path / "b-2.tar", tmp_path / "b-0.tar")
    os.rename(tmp_path / "b-3.tar", tmp_path / "b-1.tar")
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress((tmp_path / "b-0.tar").read_bytes()))
    (tmp_path / "cut.tar").write_bytes((tmp_path / "b-0.tar").read_bytes()[:-1024])
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "one.txt").write_text("one")
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "quick.py").write_text("def quick(sample):\n    return sample\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Held:
    """A job that waits until it may finish, at its first sample, before it has opened a file."""

    def __init__(self, *arguments, at="000"):
        os.mkfifo("go")
        os.mkfifo("begun")
        command = [*TARMAC, "map", *arguments, "--py", "slow.py:slow", "-j", "1"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ | {"WAIT_AT": at})
        open("begun").close()  # waits until the job opens it

    def __enter__(self):
        return self

    def finish(self):
        open("go", "w").close()
        os.unlink("begun")
        os.symlink("/dev/null", "begun")  # the next shard does not wait
        os.unlink("go")
        os.symlink("/dev/null", "go")
        return self._process.wait()

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()


def tarmac(capsys, line, *more):
    with pytest.raises(SystemExit) as done:
        main([*line.split(), *more])
    return done.value.code or 0, capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_writes_what_another_is_about_to_write(here, capsys, verb):
    output = "two/a-{i}.tar"
    with Held("a-0.tar", "-o", output) as held:
        status, message = tarmac(capsys, VERBS[verb], "-o", output)
        assert (status, files(here / "two")) == (2, {})
        assert "`tarmac map` (process" in message or ".job: " in message
        assert "--overwrite" not in message  # as for a job with other options, which is not running
        assert held.finish() == 0
    assert keys("two/*.tar") == keys("a-0.tar")
    assert sorted(os.listdir("two")) == [".tarmac", "a-0.tar"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("two/", "two/a-{i}.tar"),
        ("two/a-{i}.tar", "two/a-%d.tar"),
        ("two/a-0.tar", "./two/a-{i:01d}.tar"),
        ("two/a-{i}.tar", "two/../two/a-0.tar"),
    ],
)
def test_patterns_that_make_one_name_exclude_each_other(here, capsys, one, other):
    with Held("a-0.tar", "-o", one) as held:
        status, message = tarmac(capsys, "copy b-0.tar", "-o", other)
        assert (status, files(here / "two")) == (2, {})
        assert "`tarmac map` (process" in message
        assert held.finish() == 0
    assert keys("two/*.tar") == keys("a-0.tar")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("other", ["two/b-{i}.tar", "two/a-{i}.tgz", "two/a-x{i}.tar", "two/deep/a-{i}.tar"])
def test_names_that_differ_are_written_at_the_same_time(here, capsys, stream, other):
    source = "b.tar.gz" if stream else "b-0.tar"
    with Held("a-0.tar", "-o", "two/a-{i}.tar") as held:
        assert tarmac(capsys, f"copy {source}", "-o", other)[0] == 0
        assert held.finish() == 0
    assert keys("two/a-0.tar") == keys("a-0.tar")
    assert keys(other.replace("{i}", "0")) == keys("b-0.tar")


def test_a_stream_does_not_know_how_far_it_counts(here, capsys):
    os.rename("a-0.tar", "a-100.tar")
    with Held("a-100.tar", "-o", "two/") as held:
        status, message = tarmac(capsys, "copy b.tar.gz", "-o", "two/a-{i:03d}.tar")
        assert (status, "`tarmac map` (process" in message) == (2, True)
        assert tarmac(capsys, "copy b-0.tar", "-o", "two/a-{i:03d}.tar")[0] == 0  # a-000.tar, and no more
        assert held.finish() == 0


def test_tasks_of_one_job_run_at_the_same_time(here, capsys):
    """The second leaves the only shard to the first. A job with a driver, or another job, is refused meanwhile."""
    job = "a-0.tar", "-o", "two/"
    with Held(*job, "--task", "0/2") as held:
        status, message = tarmac(capsys, "map --py slow.py:slow --task 1/2", *job)
        assert (status, "1 of 1 units are in progress in other tasks" in message) == (0, True)
        assert "there are no samples" not in message
        assert tarmac(capsys, "map --py slow.py:slow", *job)[0] == 2
        assert tarmac(capsys, "copy --task 0/2", *job)[0] == 2
        assert held.finish() == 0
    assert keys("two/*.tar") == keys("a-0.tar")


def test_outputs_of_another_verb_are_not_replaced(here, capsys):
    """The first job finds its shards gone and others there, which it did not make."""
    one, other = (("sort", "a-0.tar", "-o", "two/c-{i}.tar"), ("copy", "b-0.tar", "-o", "two/c-{i}.tar"))
    assert tarmac(capsys, "", *one)[0] == 0
    assert tarmac(capsys, "", *other)[0] == 2
    assert keys("two/*.tar") == keys("a-0.tar")
    os.unlink("two/c-0.tar")
    assert tarmac(capsys, "", *other)[0] == 0
    status, message = tarmac(capsys, "", *one)
    assert (status, "two/c-0.tar: `tarmac copy` " in message) == (2, True)
    assert keys("two/*.tar") == keys("b-0.tar")
    assert tarmac(capsys, "", *one, "--overwrite")[0] == 0
    assert keys("two/*.tar") == keys("a-0.tar")


def test_what_another_program_puts_there_meanwhile_stays(here, capsys):
    with Held("a-0.tar", "-o", "two/a-{i}.tar", at="001") as held:
        (here / "two" / "a-0.tar").write_bytes(b"mine")
        assert held.finish() == 1
    assert files(here / "two") == {"a-0.tar": b"mine"}


def together(first, second, env=None):
    """Start two jobs at the same moment; which of them succeeded?"""
    begun = [subprocess.Popen([*TARMAC, *each], stderr=subprocess.PIPE, env=env) for each in (first, second)]
    message = [process.communicate()[1].decode() for process in begun]
    return [process.returncode for process in begun], message


@pytest.mark.parametrize(
    "verbs", [("copy", "sort"), ("sort", "map --py quick.py:quick"), ("map --py quick.py:quick", "copy")]
)
@pytest.mark.parametrize("options", [(), ("--overwrite",)])
def test_of_two_that_start_together_the_output_is_of_one(here, verbs, options):
    """Each shard there is of the last job that succeeded; none is of one that failed."""
    for turn in range(2):
        out = f"out-{turn}/c-{{i}}.tar"
        jobs = [
            [*verb.split(), f"{name}-0.tar", f"{name}-1.tar", "-o", out, "--max-samples", "2", *options]
            for verb, name in zip(verbs, "ab", strict=True)
        ]
        statuses, message = together(*jobs)
        created = {name for name in "ab" if set(keys(f"out-{turn}/*.tar")) & set(keys(f"{name}-*.tar"))}
        assert 0 in statuses, message
        if not options:
            assert sorted(statuses) == [0, 2], message
            assert created == {"ab"[statuses.index(0)]}
        assert len(created) == 1, message
        (whole,) = created
        assert sorted(keys(f"out-{turn}/*.tar")) == sorted(keys(f"{whole}-*.tar"))
        assert statuses["ab".index(whole)] == 0


def test_in_a_store_too(here):
    with required(seaweed_s3()) as server:
        server.make_bucket("shards")
        env = os.environ | server.env()
        for turn in range(2):
            out = f"s3://shards/{turn}/"
            jobs = [
                [verb, f"{name}-0.tar", f"{name}-1.tar", "-o", out + "c-{i}.tar", "--max-samples", "2"]
                for verb, name in (("copy", "a"), ("sort", "b"))
            ]
            statuses, message = together(*jobs, env=env)
            assert sorted(statuses) == [0, 2], message
            winner = "ab"[statuses.index(0)]
            back = [*TARMAC, "copy", out + "*.tar", "-o", f"back-{turn}.tar"]
            assert subprocess.run(back, env=env, stderr=subprocess.PIPE).returncode == 0
            assert sorted(keys(f"back-{turn}.tar")) == sorted(keys(f"{winner}-*.tar"))
