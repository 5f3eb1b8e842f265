"""The Write flags: names, limits, keys, commands, manifests, and what must not be replaced."""

from __future__ import annotations

import os
import subprocess

import pytest

import tarmac
from tarmac.errors import CommandFailed, CommitFailed, UrlError
from tarmac.indexing.manifest import read_manifest
from tarmac.jobs.task import Outcome
from tarmac.tools.output import Output, Sources, fields_of, write_shard

SAMPLES = [{"__key__": f"k{n}", "__url__": "somewhere", "txt": b"x" * n} for n in range(4)]


def test_names():
    assert Output("x-{i:06d}.tar").name(3) == "x-000003.tar"
    assert Output("x-%04d.tar").name(3) == "x-0003.tar"
    assert Output("{part}/{name}-{i}.tar").name(1, "a", "val") == "val/a-1.tar"
    assert Output("out/").name(1, "train-7") == "out/train-7.tar"
    assert Output("out/").by_shard
    assert not Output("out/{i}.tar").by_shard
    assert Output("s3://b/my%20data/%d0%bf-%06d.tar").name(3) == "s3://b/my%20data/%d0%bf-000003.tar"
    assert not Output("s3://b/my%20data/x.tar").numbered
    assert Output("-").stream
    assert Output("pipe:cat > x").stream


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"pattern": "x-{j}.tar"}, "cannot be filled in"),
        ({"pattern": "x-{i:q}.tar"}, "cannot be filled in"),
        ({"pattern": "x.tar", "max_samples": 0}, "--max-samples must be positive"),
        ({"pattern": "x.tar", "max_bytes": -1}, "--max-bytes must be positive"),
        ({"pattern": "x.tar", "rm": True}, "--then, which is not given"),
        ({"pattern": "x.tar", "rekey": "{no}"}, "--rekey"),
        ({"pattern": "x.tar", "rekey": "same"}, "every sample the same key"),
        ({"pattern": "x.tar", "compress": "rar"}, "--compress is one of bz2, gz, xz, zst"),
        ({"pattern": "x.tar", "compress": "gz", "index": True}, "compressed shard has no index"),
        ({"pattern": "x-{i}.tar.zst", "manifest": "m.json"}, "compressed shard has no index"),
        ({"pattern": "s3://b/x.tar", "rm": True, "then": "true"}, "of this machine only"),
        ({"pattern": "out/", "max_samples": 3}, "nothing to cut"),
        ({"pattern": "{name}-{i}.tar", "max_bytes": 3}, "nothing to cut"),
        ({"pattern": "-", "max_samples": 3}, "standard output"),
        ({"pattern": "-", "index": True}, "standard output"),
    ],
)
def test_mistakes_are_told_before_anything_is_done(flags, message):
    with pytest.raises(UrlError, match=message):
        Output(**flags)


def test_a_shard_is_full_before_the_sample_that_is_too_much():
    by_count, by_size = Output("x", max_samples=2), Output("x", max_bytes=10)
    assert [by_count.is_full(n, 0, 1) for n in range(3)] == [False, False, True]
    assert [by_size.is_full(1, 6, n) for n in (4, 5)] == [False, True]
    assert not by_size.is_full(0, 0, 1000)
    assert not Output("x").is_full(10**9, 10**12, 1)


def test_writing_a_shard(tmp_path):
    name = str(tmp_path / "deep" / "x.tar")
    outcome = write_shard(Output(name, rekey="new-{i:03d}-{key}"), name, SAMPLES, first=7)
    assert (outcome.written, outcome.bytes) == (4, 6)
    assert outcome.outputs == {name: os.path.getsize(name)}
    assert [each["__key__"] for each in tarmac.read(name)] == [f"new-{n + 7:03d}-k{n}" for n in range(4)]
    assert fields_of(SAMPLES[2]) == {"txt": b"xx"}


def test_no_samples_make_no_shard(tmp_path):
    outcome = write_shard(Output("x"), str(tmp_path / "x.tar"), [])
    assert (outcome.written, outcome.outputs) == (0, {})
    assert list(tmp_path.iterdir()) == []


def test_compression_by_flag_and_by_name(tmp_path):
    for name, flag in (("a.tar.gz", ""), ("b.tar", "zst")):
        path = str(tmp_path / name)
        write_shard(Output(path, compress=flag), path, SAMPLES)
        assert len(list(tarmac.read(path))) == 4
    assert (tmp_path / "b.tar").read_bytes()[:4] == b"\x28\xb5\x2f\xfd"


def test_the_manifest_of_all(tmp_path):
    output = Output(str(tmp_path / "x-{i}.tar"), manifest=str(tmp_path / "all.json"))
    outcomes = [write_shard(output, output.name(n), SAMPLES[n:]) for n in range(2)]
    output.finish(outcomes)
    found = read_manifest(output.manifest)
    assert [shard.samples for shard in found.shards] == [4, 3]
    dataset = tarmac.Dataset(output.manifest, verify=True)
    assert len(dataset) == 7
    dataset.close()


def test_a_command_for_each_shard_must_succeed(tmp_path):
    odd = tmp_path / "it's odd.tar"
    output = Output(str(odd), then=f"cp {{path}} {tmp_path}/copy && echo noise")
    outcome = write_shard(output, str(odd), SAMPLES)
    output.after(outcome)
    assert (tmp_path / "copy").read_bytes() == odd.read_bytes()
    with pytest.raises(CommandFailed, match=r"--then ended with status 3"):
        Output(str(odd), then="exit 3").after(outcome)
    assert odd.exists()
    Output(str(odd), then="true", rm=True).after(outcome)
    assert not odd.exists()
    assert outcome.removed


def test_output_of_commands_is_not_data(tmp_path):
    script = (
        "from tarmac.tools.output import Output; from tarmac.jobs.task import Outcome\n"
        "Output('x.tar', then='echo noise').after(Outcome(outputs={'x.tar': 1}))"
    )
    done = subprocess.run(["python3", "-c", script], capture_output=True, env=_with_sources(), check=True)
    assert done.stdout == b""


def _with_sources():
    import sys

    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"],
    }


def test_what_is_there_is_not_replaced_unasked(tmp_path):
    (tmp_path / "x.tar").write_bytes(b"mine")
    names = [str(tmp_path / "x.tar"), str(tmp_path / "y.tar")]
    with pytest.raises(UrlError, match="--overwrite"):
        Output("x").check_new(names)
    Output("x", overwrite=True).check_new(names)
    Output("x").check_new(names[1:])


def test_sources_are_known_by_any_name(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    sources = Sources([str(tmp_path / "a.tar"), "s3://b/c.tar"])
    for name in (f"{tmp_path}/link/a.tar", f"file:{tmp_path}/x/../a.tar", "s3://b/c.tar"):
        with pytest.raises(UrlError, match="being read"):
            sources.refuse(name)
    sources.refuse(str(tmp_path / "b.tar"))
    Sources(["-", "pipe:cat"]).refuse("-")


def test_what_the_result_depends_on():
    assert Output("x", max_samples=3, rekey="{i}", overwrite=True).options() == {
        "pattern": "x",
        "max_samples": 3,
        "rekey": "{i}",
    }
    assert Outcome().outputs == {}


def test_a_command_gets_nothing_of_what_is_read(tmp_path):
    """Many programs read standard input without being asked to."""
    script = (
        "from tarmac.tools.output import Output; from tarmac.jobs.task import Outcome\n"
        "Output('x.tar', then='cat > {path}.in').after(Outcome(outputs={'x.tar': 1}))\n"
        "import sys; print(sys.stdin.read(), end='')"
    )
    done = subprocess.run(
        ["python3", "-c", script],
        input=b"data",
        capture_output=True,
        env=_with_sources(),
        cwd=tmp_path,
        check=True,
    )
    assert done.stdout == b"data"
    assert (tmp_path / "x.tar.in").read_bytes() == b""


def test_a_shard_that_the_command_moved_is_gone_already(tmp_path):
    name = str(tmp_path / "x.tar")
    output = Output(name, then=f"mv {{path}} {tmp_path}/moved.tar", rm=True, index=True)
    outcome = write_shard(output, name, SAMPLES)
    output.after(outcome)
    assert os.listdir(tmp_path) == ["moved.tar"]  # and no index without a shard


def test_what_an_earlier_job_left_under_the_name_is_no_part_of_this_one(tmp_path):
    name = str(tmp_path / "x.tar")
    write_shard(Output(name, index=True), name, SAMPLES)
    assert write_shard(Output(name), name, []).outputs == {}
    assert len(os.listdir(tmp_path)) == 2
    assert write_shard(Output(name, overwrite=True), name, []).outputs == {}
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    name = str(tmp_path / "file" / "x.tar")
    with pytest.raises(CommitFailed, match="could not be made"):
        write_shard(Output(name), name, SAMPLES)


def test_names_that_are_taken(tmp_path):
    for name in ("x-0.tar", "x-12.tar", "x-007.tar", "x-a.tar", "y-1.tar", "x-3.tar.arrow"):
        (tmp_path / name).write_text("")
    taken = Output(f"{tmp_path}/x-{{i}}.tar").taken()
    assert sorted(taken) == [f"{tmp_path}/x-0.tar", f"{tmp_path}/x-12.tar"]
    assert Output(f"{tmp_path}/x-%03d.tar").taken() == [f"{tmp_path}/x-007.tar"]
    assert Output(f"{tmp_path}/y-1.tar").taken() == [f"{tmp_path}/y-1.tar"]
    assert Output(f"{tmp_path}/").taken() == []
