"""Output: names, limits, keys, commands, manifests, and files that must not be replaced."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

import tarmac
from tarmac.errors import CommitFailed, HookFailed, UsageError
from tarmac.indexing.manifest import read_manifest
from tarmac.tools.output import Output, Sources, fields_of, write_shard

SAMPLES = [{"__key__": f"k{n}", "__url__": "somewhere", "txt": b"x" * n} for n in range(4)]


def test_names():
    assert Output("x-{i:06d}.tar").name(3) == "x-000003.tar"
    assert Output("x-%04d.tar").name(3) == "x-0003.tar"
    assert Output("{split}/{name}-{i}.tar").name(1, "a", "val") == "val/a-1.tar"
    assert Output("out/").name(1, "train-7") == "out/train-7.tar"
    assert Output("out/").by_shard
    assert not Output("out/{i}.tar").by_shard
    assert Output("s3://b/my%20data/%d0%bf-%06d.tar").name(3) == "s3://b/my%20data/%d0%bf-000003.tar"
    assert not Output("s3://b/my%20data/x.tar").numbered
    assert Output("-").stream
    assert Output("pipe:cat > x").stream


@pytest.mark.parametrize(
    ("options", "location"),
    [
        ({"pattern": "x-{j}.tar"}, "{j}"),
        ({"pattern": "x-{i:q}.tar"}, "{i:q}"),
        ({"pattern": "x.tar", "max_samples": 0}, "max_samples"),
        ({"pattern": "x.tar", "max_bytes": -1}, "max_bytes"),
        ({"pattern": "x.tar", "delete_after": True}, "post_cmd"),
        ({"pattern": "x.tar", "rekey": "{no}"}, "rekey"),
        ({"pattern": "x.tar", "rekey": "same"}, "rekey"),
        ({"pattern": "x.tar", "compress": "rar"}, "compress"),
        ({"pattern": "x.tar", "compress": "gz", "index": True}, "x.tar"),
        ({"pattern": "x-{i}.tar.zst", "manifest": "m.json"}, "tar.zst"),
        ({"pattern": "s3://b/x.tar", "delete_after": True, "post_cmd": "true"}, "delete_after"),
        ({"pattern": "out/", "max_samples": 3}, "max_samples"),
        ({"pattern": "{name}-{i}.tar", "max_bytes": 3}, "max_bytes"),
        ({"pattern": "-", "max_samples": 3}, "max_samples"),
        ({"pattern": "-", "index": True}, "index"),
    ],
)
def test_invalid_arguments_are_reported_before_any_work(options, location):
    with pytest.raises(UsageError, match=re.escape(location)):
        Output(**options)


def test_when_a_shard_is_full():
    by_count, by_size = Output("x.tar", max_samples=2), Output("x.tar", max_bytes=10)
    assert [by_count.is_full(n, 0, 1) for n in range(3)] == [False, False, True]
    assert [by_size.is_full(1, 6, n) for n in (4, 5)] == [False, True]
    assert not by_size.is_full(0, 0, 1000)
    assert not Output("x.tar").is_full(10**9, 10**12, 1)


def test_writing_a_shard(tmp_path):
    name = str(tmp_path / "deep" / "x.tar")
    outcome = write_shard(Output(name, rekey="new-{i:03d}-{key}"), name, SAMPLES, first=7)
    assert (outcome.written, outcome.bytes) == (4, 6)
    assert outcome.outputs == {name: os.path.getsize(name)}
    assert [each["__key__"] for each in tarmac.read(name)] == [f"new-{n + 7:03d}-k{n}" for n in range(4)]
    assert fields_of(SAMPLES[2]) == {"txt": b"xx"}


def test_no_samples_make_no_shard(tmp_path):
    outcome = write_shard(Output("x.tar"), str(tmp_path / "x.tar"), [])
    assert (outcome.written, outcome.outputs) == (0, {})
    assert list(tmp_path.iterdir()) == []


def test_compression_by_argument_and_by_name(tmp_path):
    for name, flag in (("a.tar.gz", None), ("b.tar", "zst")):
        path = str(tmp_path / name)
        write_shard(Output(path, compress=flag), path, SAMPLES)
        assert len(list(tarmac.read(path))) == 4
    assert (tmp_path / "b.tar").read_bytes()[:4] == b"\x28\xb5\x2f\xfd"


def test_manifest(tmp_path):
    output = Output(str(tmp_path / "x-{i}.tar"), manifest=str(tmp_path / "all.json"))
    outcomes = [write_shard(output, output.name(n), SAMPLES[n:]) for n in range(2)]
    output.finish(outcomes)
    manifest = read_manifest(output.manifest)
    assert [shard.samples for shard in manifest.shards] == [4, 3]
    dataset = tarmac.Dataset(output.manifest, verify=True)
    assert len(dataset) == 7
    dataset.close()


def test_a_command_for_each_shard_must_succeed(tmp_path):
    odd = tmp_path / "it's odd.tar"
    output = Output(str(odd), post_cmd=f"cp {{path}} {tmp_path}/copy && echo noise")
    outcome = write_shard(output, str(odd), SAMPLES)
    output.run_post_cmd(outcome)
    assert (tmp_path / "copy").read_bytes() == odd.read_bytes()
    with pytest.raises(HookFailed, match="3"):
        Output(str(odd), post_cmd="exit 3").run_post_cmd(outcome)
    assert odd.exists()
    Output(str(odd), post_cmd="true", delete_after=True).run_post_cmd(outcome)
    assert not odd.exists()
    assert outcome.removed


def test_output_of_commands_is_not_data(tmp_path):
    script = (
        "from tarmac.tools.output import Output; from tarmac.jobs.task import Outcome\n"
        "Output('x.tar', post_cmd='echo noise').run_post_cmd(Outcome(outputs={'x.tar': 1}))"
    )
    done = subprocess.run(["python3", "-c", script], capture_output=True, env=_with_sources(), check=True)
    assert done.stdout == b""


def _with_sources():
    import sys

    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"],
    }


def test_existing_files_are_not_replaced(tmp_path):
    (tmp_path / "x.tar").write_bytes(b"mine")
    names = [str(tmp_path / "x.tar"), str(tmp_path / "y.tar")]
    with pytest.raises(UsageError, match="overwrite"):
        Output("x.tar").check_new(names)
    Output("x.tar", overwrite=True).check_new(names)
    Output("x.tar").check_new(names[1:])


def test_inputs_are_recognised_by_any_name(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    sources = Sources([str(tmp_path / "a.tar"), "s3://b/c.tar"])
    for name in (f"{tmp_path}/link/a.tar", f"file:{tmp_path}/x/../a.tar", "s3://b/c.tar"):
        with pytest.raises(UsageError, match="input"):
            sources.check(name)
    sources.check(str(tmp_path / "b.tar"))
    Sources(["-", "pipe:cat"]).check("-")


def test_options_for_the_ledger():
    assert Output("x.tar", max_samples=3, rekey="{i}", overwrite=True).options() == {
        "pattern": "x.tar",
        "max_samples": 3,
        "rekey": "{i}",
    }


def test_commands_do_not_read_standard_input(tmp_path):
    """Many programs read it unasked."""
    script = (
        "from tarmac.tools.output import Output; from tarmac.jobs.task import Outcome\n"
        "Output('x.tar', post_cmd='cat > {path}.in').run_post_cmd(Outcome(outputs={'x.tar': 1}))\n"
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


def test_the_command_may_move_the_shard(tmp_path):
    name = str(tmp_path / "x.tar")
    output = Output(name, post_cmd=f"mv {{path}} {tmp_path}/moved.tar", delete_after=True, index=True)
    outcome = write_shard(output, name, SAMPLES)
    output.run_post_cmd(outcome)
    assert os.listdir(tmp_path) == ["moved.tar"]  # and no index without a shard


def test_an_empty_shard_replaces_that_of_a_previous_job(tmp_path):
    name = str(tmp_path / "x.tar")
    write_shard(Output(name, index=True), name, SAMPLES)
    assert write_shard(Output(name), name, []).outputs == {}
    assert len(os.listdir(tmp_path)) == 2
    assert write_shard(Output(name, overwrite=True), name, []).outputs == {}
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    name = str(tmp_path / "file" / "x.tar")
    with pytest.raises(CommitFailed, match="directory"):
        write_shard(Output(name), name, SAMPLES)


def test_existing_files_of_a_pattern(tmp_path):
    for name in ("x-0.tar", "x-12.tar", "x-007.tar", "x-a.tar", "y-1.tar", "x-3.tar.arrow"):
        (tmp_path / name).write_text("")
    existing = Output(f"{tmp_path}/x-{{i}}.tar").existing()
    assert sorted(existing) == [f"{tmp_path}/x-0.tar", f"{tmp_path}/x-12.tar"]
    assert Output(f"{tmp_path}/x-%03d.tar").existing() == [f"{tmp_path}/x-007.tar"]
    assert Output(f"{tmp_path}/y-1.tar").existing() == [f"{tmp_path}/y-1.tar"]
    assert Output(f"{tmp_path}/").existing() == []
