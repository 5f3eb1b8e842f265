"""`overwrite`: what an earlier job wrote and this one does not is removed, also if a run of it was killed."""

from __future__ import annotations

import gzip
import os

import pytest

from harness.crash import Forked, survive
from harness.servers import required, seaweed_s3
from tarmac import ShardWriter, StorageOptions, copy, pack, read
from tarmac.errors import HookFailed

KILLS = 6 * int(os.environ.get("TARMAC_TORTURE", "1"))


@pytest.fixture
def urls(tmp_path):
    with ShardWriter(f"{tmp_path}/in-{{i}}.tar", max_samples=8) as shards:
        for number in range(24):
            shards.write({"__key__": f"{number:03d}", "txt": f"text {number}"})
    return [f"{tmp_path}/in-{number}.tar" for number in range(3)]


@pytest.fixture
def output(tmp_path):
    return f"{tmp_path}/out/x-{{i:03d}}.tar"


def shards(output):
    folder = os.path.dirname(output)
    return sorted(name for name in os.listdir(folder) if name.endswith(".tar"))


def samples(output):
    return [
        (sample["__key__"], sample["txt"]) for sample in read(os.path.join(os.path.dirname(output), "*.tar"))
    ]


@pytest.mark.processes
def test_leftovers_are_removed_however_often_the_job_is_killed(urls, output):
    copy(urls, output, max_samples=3, jobs=1)
    expected = samples(output)

    def overwrite():
        return copy(urls, output, max_samples=8, jobs=1, overwrite=True)

    def check():
        assert overwrite().units == 3
        assert shards(output) == ["x-000.tar", "x-001.tar", "x-002.tar"]
        assert samples(output) == expected
        copy(urls, output, max_samples=3, jobs=1, overwrite=True)

    survive(KILLS, lambda seed: Forked(overwrite).crash(seed, 0.03), check)


@pytest.mark.processes
@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("number", range(3))
def test_a_run_that_continues_a_failed_one_removes_leftovers(urls, output, tmp_path, number, overwrite):
    copy(urls, output, max_samples=3, jobs=1)
    expected = samples(output)
    options = {"max_samples": 8, "jobs": 1}
    options["post_cmd"] = f"test -e {tmp_path}/cured || test {{path}} != {output.format(i=number)}"
    with pytest.raises(HookFailed):
        copy(urls, output, overwrite=True, **options)
    assert len(shards(output)) == 8
    (tmp_path / "cured").touch()
    report = copy(urls, output, overwrite=overwrite, **options)
    assert [os.path.basename(url) for url in report.removed_outputs] == [
        f"x-{n:03d}.tar" for n in range(3, 8)
    ]
    assert shards(output) == ["x-000.tar", "x-001.tar", "x-002.tar"]
    assert samples(output) == expected
    again = copy(urls, output, **options)
    assert (again.kept, again.removed_outputs) == (3, [])


def test_a_file_that_comes_back_is_not_removed_again(urls, output):
    copy(urls, output, max_samples=3, jobs=1)
    name = output.format(i=7)
    with open(name, "rb") as file:
        content = file.read()
    copy(urls, output, max_samples=8, jobs=1, overwrite=True)
    with open(name, "wb") as file:
        file.write(content)
    assert copy(urls, output, max_samples=8, jobs=1).removed_outputs == []
    assert os.path.exists(name)


def test_leftovers_of_streams_and_generators(urls, output, tmp_path):
    packed = tmp_path / "in.tar.gz"
    with open(urls[0], "rb") as file:
        packed.write_bytes(gzip.compress(file.read()))
    assert copy(packed, output, max_samples=2, jobs=1).done == 4
    assert len(copy(packed, output, max_samples=8, jobs=1, overwrite=True).removed_outputs) == 3
    assert shards(output) == ["x-000.tar"]

    def generated():
        yield from ({"__key__": str(number), "txt": "text"} for number in range(6))

    generated_shards = f"{tmp_path}/made/x-{{i:03d}}.tar"
    pack(generated, generated_shards, max_samples=2, jobs=1)
    assert len(pack(generated, generated_shards, max_samples=6, jobs=1, overwrite=True).removed_outputs) == 2
    assert shards(generated_shards) == ["x-000.tar"]


@pytest.mark.processes
def test_leftovers_in_a_store_are_reported(urls):
    with required(seaweed_s3()) as server:
        server.make_bucket("out")
        storage = StorageOptions(config=server.config())
        output = "s3://out/x-{i:03d}.tar"
        copy(urls, output, max_samples=8, jobs=1, storage=storage)
        report = copy(urls, output, max_samples=12, jobs=1, storage=storage, overwrite=True)
        assert (report.removed_outputs, report.stale_outputs) == ([], ["s3://out/x-002.tar"])
        assert copy(urls, output, max_samples=12, jobs=1, storage=storage).stale_outputs == []
