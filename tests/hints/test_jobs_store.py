"""Hints of jobs that write to a store."""

from __future__ import annotations

import pytest

import tarmac
from harness.hints import follows, hinted
from harness.servers import required, seaweed_s3
from tarmac.jobs.claims import Claims
from tarmac.storage import StorageOptions
from tools.shards import keys, make


@pytest.fixture(scope="module")
def storage():
    with required(seaweed_s3()) as server:
        server.make_bucket("jobs")
        yield StorageOptions(config=server.config())


@pytest.mark.processes
@follows("wait until it has finished, or write to other names; `overwrite`, if it no longer runs.")
@pytest.mark.parametrize("advice", ["wait", "other", "overwrite"])
def test_another_job_may_be_running(tmp_path, storage, advice):
    shards, taken = make(tmp_path, 3), f"s3://jobs/{advice}/x.tar"
    other = Claims("sort", "another job", False, storage)
    other.hold([(taken,)])
    with hinted("wait until it has finished, or write to other names; `overwrite`, if it no longer runs."):
        tarmac.copy(shards, taken, storage=storage)
    if advice == "wait":
        other.close()
    output = f"s3://jobs/{advice}/y.tar" if advice == "other" else taken
    tarmac.copy(shards, output, storage=storage, overwrite=advice == "overwrite")
    assert [each["__key__"] for each in tarmac.read(output, storage=storage)] == keys(*shards)
