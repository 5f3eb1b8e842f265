"""Every verb reads from a bucket and writes into one."""

from __future__ import annotations

import json

import pytest

import tarmac
from harness.servers import required, seaweed_s3
from tarmac.cli import main
from tarmac.storage import StorageOptions
from tools.shards import keys, make


@pytest.fixture(scope="module")
def server():
    with required(seaweed_s3()) as started:
        started.make_bucket("verbs")
        yield started


@pytest.fixture
def bucket(server, tmp_path, monkeypatch):
    """Two shards in a bucket, and the environment that leads there."""
    for name, value in server.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    storage = StorageOptions(config=server.config())
    url = f"s3://verbs/{tmp_path.name}"
    tarmac.copy(make(tmp_path, 6, 5), f"{url}/in/", storage=storage)
    return url


def run(capfdbinary, *arguments):
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    shown = capfdbinary.readouterr()
    assert not done.value.code, shown.err.decode()
    return shown.out


def keys_in(url):
    return [sample["__key__"] for sample in tarmac.read(url)]


@pytest.mark.parametrize(
    "verb",
    [
        ["copy", "--max-samples", "4"],
        ["sort", "--by", "key", "--max-samples", "4"],
        ["map", "-c", "cp sample.txt sample.copy", "--max-samples", "4"],
    ],
    ids=lambda verb: verb[0],
)
def test_shards_from_a_bucket_to_a_bucket(bucket, capfdbinary, verb):
    command = [*verb, f"{bucket}/in/*.tar", "-o", f"{bucket}/{verb[0]}/x-{{i}}.tar", "-j", "1"]
    run(capfdbinary, *command)
    assert keys_in(f"{bucket}/{verb[0]}/x-*.tar") == keys("in-*.tar")
    report = json.loads(run(capfdbinary, *command, "--json"))
    assert (report["done"], report["kept"]) == (0, 3)


def test_two_processes(bucket, capfdbinary):
    run(capfdbinary, "map", f"{bucket}/in/*.tar", "-c", "true", "-o", f"{bucket}/two/", "-j", "2")
    assert keys_in(f"{bucket}/two/*.tar") == keys("in-*.tar")


def test_join_with_a_table_in_a_bucket(bucket, capfdbinary, server):
    rows = "".join(f"{key},{number}\n" for number, key in enumerate(keys("in-*.tar")))
    sink = tarmac.storage.open_write(
        f"{bucket}/more.csv", StorageOptions(config=server.config()), tarmac.storage.WriteOptions()
    )
    sink.write(f"key,rank.txt\n{rows}".encode())
    sink.commit()
    run(capfdbinary, "join", f"{bucket}/in/*.tar", "--with", f"{bucket}/more.csv", "-o", f"{bucket}/joined/")
    samples = list(tarmac.read(f"{bucket}/joined/*.tar"))
    assert [sample["rank.txt"] for sample in samples] == [b"%d" % number for number in range(11)]


def test_check_index_show_and_export(bucket, capfdbinary):
    out = run(capfdbinary, "check", f"{bucket}/in/*.tar", "--require", "txt,cls")
    assert out.count(b"ok ") == 2
    run(capfdbinary, "index", f"{bucket}/in/*.tar", "-o", f"{bucket}/in.json", "--digests")
    run(capfdbinary, "check", f"{bucket}/in.json", "--digests")
    assert run(capfdbinary, "show", f"{bucket}/in.json", "--at", "7").startswith(b"s1/001")
    run(capfdbinary, "export", f"{bucket}/in/*.tar", "--to", "jsonl", "-o", f"{bucket}/all.jsonl")
    run(capfdbinary, "export", f"{bucket}/in/*.tar", "--to", "parquet", "-o", "all.parquet")
    run(capfdbinary, "cache", "warm", f"{bucket}/in/*.tar", "--cache", "kept")
    assert len(json.loads(run(capfdbinary, "cache", "ls", "--cache", "kept", "--json").splitlines()[0])) > 0


def test_pack_from_a_bucket_into_it(bucket, capfdbinary):
    run(capfdbinary, "export", f"{bucket}/in/*.tar", "--to", "dir", "-o", "files/")
    run(capfdbinary, "pack", "files", "-o", f"{bucket}/packed/x-{{i}}.tar", "--max-samples", "4")
    assert sorted(keys_in(f"{bucket}/packed/x-*.tar")) == sorted(keys("in-*.tar"))


def test_deleted_objects_are_written_again_and_others_stay(bucket, capfdbinary, server):
    command = [
        "copy",
        f"{bucket}/in/*.tar",
        "-o",
        f"{bucket}/out/x-{{i}}.tar",
        "--max-samples",
        "4",
        "-j",
        "1",
    ]
    run(capfdbinary, *command)
    name = f"{bucket}/out/x-1.tar".removeprefix("s3://verbs/")
    server._store("verbs").delete(name)
    report = json.loads(run(capfdbinary, *command, "--json"))
    assert (report["done"], report["kept"]) == (1, 2)
    assert keys_in(f"{bucket}/out/x-*.tar") == keys("in-*.tar")
    with pytest.raises(SystemExit) as done:
        main(["copy", f"{bucket}/in/in-0.tar", "-o", f"{bucket}/in/in-1.tar"])
    assert done.value.code
    assert b"in-1.tar" in capfdbinary.readouterr().err
    assert len(keys_in(f"{bucket}/in/in-1.tar")) == 5
