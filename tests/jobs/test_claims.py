"""Claims: no two jobs may write the same name, and claims of dead jobs do not count."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.servers import required, seaweed_s3
from tarmac.errors import JobBusy
from tarmac.jobs.claims import Claims, overlap
from tarmac.storage import StorageOptions

NUMBERED = ("c-", ".tar")
PIECES = st.lists(st.text("a1-", max_size=3), min_size=1, max_size=3).map(tuple)
NUMBERS = ("1", "11", "111", "1111")


@pytest.fixture(scope="module")
def store():
    with required(seaweed_s3()) as server:
        server.make_bucket("claims")
        yield StorageOptions(config=server.config())


@pytest.fixture(params=["disk", "store"])
def claims(request, tmp_path, store):
    """Make claims of a job in one directory: `claims("copy", NAMES)`."""
    local = request.param == "disk"
    home = f"{tmp_path}/" if local else f"s3://claims/{tmp_path.name}/"
    held = []

    def make(job, *names, overwrite=False):
        held.append(Claims(job, job, overwrite, StorageOptions() if local else store))
        held[-1].hold((f"{home}{first}", *rest) for first, *rest in names)
        return held[-1]

    yield make
    for each in held:
        each.close()


def filled(pieces, numbers):
    """Names of a pattern, with numbers of the only digit there is."""
    names = [pieces[0]]
    for piece in pieces[1:]:
        names = [f"{name}{number}{piece}" for name in names for number in numbers]
    return set(names)


@given(PIECES, PIECES)
def test_patterns_overlap_when_they_match_a_common_name(one, other):
    common = [name for name in filled(one, NUMBERS) if re.fullmatch(r"\d+".join(map(re.escape, other)), name)]
    common += [
        name for name in filled(other, NUMBERS) if re.fullmatch(r"\d+".join(map(re.escape, one)), name)
    ]
    assert bool(common) == (overlap([one], [other]) is not None) == (overlap([other], [one]) is not None)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (NUMBERED, NUMBERED),
        (NUMBERED, ("c-007.tar",)),
        (("c-0.tar",), ("c-0.tar",)),
        (("c-1", ".tar"), NUMBERED),
    ],
)
def test_a_name_that_another_job_may_write_is_rejected(claims, one, other):
    first = claims("copy", one)
    with pytest.raises(JobBusy, match=r"c-.*tarmac copy"):
        claims("sort", other)
    first.close()
    claims("sort", other)


def test_other_names_are_free(claims):
    claims("copy", NUMBERED)
    claims("sort", ("d-", ".tar"), ("c-x.tar",))
    claims("pack", ("c-", ".tar.gz"))


def test_a_job_can_claim_its_own_names_again(claims):
    mine = claims("copy", NUMBERED)
    mine.hold([NUMBERED])


def test_a_rejected_claim_leaves_nothing(claims):
    first = claims("copy", NUMBERED)
    with pytest.raises(JobBusy):
        claims("sort", NUMBERED, ("d.tar",))
    claims("map", ("d.tar",))
    first.close()


def test_released_claims_leave_no_files(tmp_path):
    with contextlib.closing(Claims("copy")) as mine:
        mine.hold([(f"{tmp_path}/c.tar",), (f"{tmp_path}/deep/d.tar",)])
        assert (tmp_path / ".tarmac" / "claims").is_dir()
    assert list(tmp_path.rglob("*")) == [tmp_path / "deep"]


def test_claims_of_a_killed_job_do_not_count(tmp_path):
    """Not even while a process that it forked still runs."""
    code = f"""
import os, subprocess, sys
from tarmac.jobs.claims import Claims
mine = Claims("copy", "a")
mine.hold([("{tmp_path}/c.tar",)])
ready, forked = os.pipe()
if os.fork() == 0:
    os.write(forked, b"1")
    sys.stdin.read()
    os._exit(0)
os.read(ready, 1)  # the child has run its hooks
print("held", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with contextlib.closing(Claims("sort", "b")) as other:
            with pytest.raises(JobBusy, match=f"process {process.pid} "):
                other.hold([(f"{tmp_path}/c.tar",)])
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            other.hold([(f"{tmp_path}/c.tar",)])


def test_in_a_store_the_same_job_continues_and_another_needs_overwrite(store, tmp_path, monkeypatch):
    """A store cannot tell whether a job is dead."""
    monkeypatch.setattr("tarmac.jobs.claims.CHECK_SECONDS", 0.0)

    def make(job, overwrite=False):
        held = Claims(job, job, overwrite, store)
        held.hold([(f"s3://claims/{tmp_path.name}/killed/c-", ".tar")])
        return held

    killed = make("copy")
    with pytest.raises(JobBusy, match="`overwrite`"):
        make("sort")
    again = make("copy")
    again.check()
    with pytest.raises(JobBusy, match="in the meantime"):
        killed.check()
    replacing = make("sort", overwrite=True)
    replacing.check()
    with pytest.raises(JobBusy, match="in the meantime"):
        again.check()
    replacing.close()
    make("map").close()
