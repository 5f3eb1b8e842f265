"""Follow the hints of files, patterns, lists and schemes."""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
import threading
from pathlib import Path

import pytest

import tarmac
from harness.commands import run
from harness.folder import folder
from harness.hints import follows, hinted
from harness.servers import aistore
from harness.shards import plain
from storage.caches import FAST
from tarmac.storage import schemes

SAMPLE = {"__key__": "a", "txt": "1"}


@pytest.fixture(autouse=True)
def shard(tmp_path, monkeypatch) -> str:
    """A working directory with one shard, and no schemes of other tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(schemes, "_registered", {})
    Path("x.tar").write_bytes(plain())
    return "x.tar"


def count(shards, **options) -> int:
    return len(list(tarmac.read(shards, **options)))


def write(target, **options) -> None:
    with tarmac.TarWriter(target, **options) as writer:
        writer.write(SAMPLE)


@follows("@shards.txt")
def test_a_list_without_a_name(shard):
    with hinted("@shards.txt"):
        count("@")
    Path("shards.txt").write_text("x.tar\n")
    assert count("@shards.txt") == 3


@pytest.mark.processes
@follows("`allow_exec`, if you trust it.")
def test_a_command(shard, capsys):
    with hinted("`allow_exec`, if you trust it."):
        tarmac.copy("pipe:cat x.tar", "out.tar", allow_exec=False)
    assert tarmac.copy("pipe:cat x.tar", "out.tar", allow_exec=True, jobs=1).written == 3
    assert run(["copy", "pipe:cat x.tar", "-o", "flag.tar"]) == 2
    assert "Try: --allow-exec, if you trust it." in capsys.readouterr().err
    assert run(["copy", "pipe:cat x.tar", "-o", "flag.tar", "--allow-exec", "-j", "1"]) == 0


@follows("a path, a pattern like 'train-{000..009}.tar', or a list.")
def test_no_shards(shard):
    with hinted("a path, a pattern like 'train-{000..009}.tar', or a list."):
        count([])
    for number in range(10):
        shutil.copy(shard, f"train-{number:03d}.tar")
    assert [count(Path(shard)), count("train-{000..009}.tar"), count([shard, shard])] == [3, 30, 6]


@follows("{}/*.tar")
def test_a_directory_to_read(tmp_path):
    with hinted("{}/*.tar") as caught:
        count(str(tmp_path))
    assert count(caught.value.hint) == 3


@follows("a name in it: {}/NAME")
def test_a_directory_to_write(tmp_path):
    with hinted("a name in it: {}/NAME") as caught:
        write(tmp_path)
    name = caught.value.hint.removeprefix("a name in it: ")
    write(name)
    assert count(name) == 1


@pytest.mark.processes
@follows('a file name, "-" for standard output, or a pipe: command.')
def test_a_device(capfdbinary):
    with hinted('a file name, "-" for standard output, or a pipe: command.'):
        write("/dev/null")
    write("file.tar")
    write("pipe:cat > piped.tar")
    write("-")
    assert capfdbinary.readouterr().out == Path("file.tar").read_bytes() == Path("piped.tar").read_bytes()


OVERWRITE = "write=tarmac.storage.WriteOptions(overwrite=True), or another name."
CLASH = "give each writer its own names, or write=tarmac.storage.WriteOptions(overwrite=True)."


@pytest.fixture(params=["local", pytest.param("store", marks=pytest.mark.processes)])
def directory(request, tmp_path):
    """A directory to write to: local, or of a server."""
    if request.param == "local":
        yield str(tmp_path)
    else:
        with folder(tmp_path) as url:
            yield url


@follows("write=tarmac.storage.WriteOptions(overwrite=True), or another name.")
def test_a_target_that_exists(directory):
    with hinted(OVERWRITE):
        write(f"{directory}/x.tar", write=tarmac.storage.WriteOptions(overwrite=False))
    write(f"{directory}/y.tar", write=tarmac.storage.WriteOptions(overwrite=False))
    write(f"{directory}/x.tar", write=tarmac.storage.WriteOptions(overwrite=True))
    assert count(f"{directory}/x.tar") == count(f"{directory}/y.tar") == 1


@follows("give each writer its own names, or write=tarmac.storage.WriteOptions(overwrite=True).")
def test_two_writers_of_one_name(directory):
    def both(*names, **options):
        writers = [tarmac.TarWriter(f"{directory}/{name}", **options) for name in names]
        for number, writer in enumerate(writers):
            writer.write(SAMPLE | {"__key__": f"{number}" * (number + 1)})
        for writer in writers:
            writer.close()

    with hinted(CLASH):
        both("new.tar", "new.tar")
    both("one.tar", "two.tar")
    both("new.tar", "new.tar", write=tarmac.storage.WriteOptions(overwrite=True))
    [sample] = tarmac.read(f"{directory}/new.tar")
    assert sample["__key__"] == "11"


@pytest.mark.processes
@follows("free space in {}, or set TMPDIR; no part of this object was published.")
def test_no_space_for_an_upload(tmp_path, monkeypatch):
    with folder(tmp_path) as url:
        monkeypatch.setattr(tempfile, "tempdir", "/dev/full")
        with hinted("free space in /dev/full, or set TMPDIR; no part of this object was published."):
            write(f"{url}/new.tar")
        assert not Path("new.tar").exists()
        (tmp_path / "tmp").mkdir()
        monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
        monkeypatch.setattr(tempfile, "tempdir", None)
        write(f"{url}/new.tar")
    assert count("new.tar") == 1


@follows("os.set_blocking(file.fileno(), True).")
def test_a_file_that_would_block():
    out, into = os.pipe()
    os.set_blocking(into, False)
    sample, received = {"__key__": "a", "bin": bytes(1 << 20)}, []
    with io.FileIO(out) as reader, io.FileIO(into, "wb") as file:
        with hinted("os.set_blocking(file.fileno(), True)."), tarmac.TarWriter(file) as writer:
            writer.write(sample)
        os.set_blocking(file.fileno(), True)
        thread = threading.Thread(target=lambda: received.extend(iter(lambda: reader.read(1 << 16), b"")))
        thread.start()
        with tarmac.TarWriter(file) as writer:
            writer.write(sample)
        file.close()
        thread.join()
    with tarmac.TarWriter("same.tar") as writer:
        writer.write(sample)
    assert b"".join(received).endswith(Path("same.tar").read_bytes())


@follows("raise Limits.shards.")
def test_too_many_shards(shard, capsys):
    shutil.copy(shard, "y.tar")
    for shards in ("{x,y}.tar", ["x.tar", "y.tar"], "*.tar"):
        with hinted("raise Limits.shards."):
            count(shards, limits=tarmac.Limits(shards=1))
        assert count(shards, limits=tarmac.Limits(shards=2)) == 6
    assert run(["copy", shard, "y.tar", "-o", "z/", "--limits", "shards=1"]) == 2
    assert "Try: raise --limits shards=N." in capsys.readouterr().err
    assert run(["copy", shard, "y.tar", "-o", "z/", "-j", "1", "--limits", "shards=2"]) == 0


@follows("raise Limits.list_bytes.")
def test_a_long_list(shard):
    Path("shards.txt").write_text("x.tar\n")
    with hinted("raise Limits.list_bytes."):
        count("@shards.txt", limits=tarmac.Limits(list_bytes=5))
    assert count("@shards.txt", limits=tarmac.Limits(list_bytes=6)) == 3


@follows("list each shard by itself, without '::' and '${'.")
@pytest.mark.parametrize("line", ["x.tar::d/y.tar", "${NAME}.tar"])
def test_patterns_in_a_list(shard, line):
    shutil.copy(shard, "y.tar")
    Path("shards.txt").write_text(line)
    with hinted("list each shard by itself, without '::' and '${'."):
        count("@shards.txt")
    Path("shards.txt").write_text("x.tar\ny.tar\n")
    assert count("@shards.txt") == 6


class Streams(tarmac.storage.Store):
    """A store that can only be read from start to end."""

    def open_read(self, url, storage, /):
        path = Path(url.removeprefix("old://"))
        source = tarmac.storage.FileSource(path.open("rb"))
        source.length = path.stat().st_size
        return source


@follows("a list of URLs.")
def test_a_store_that_cannot_be_listed(shard):
    tarmac.register_scheme("old", Streams())
    with hinted("a list of URLs."):
        tarmac.storage.list_objects("old://")
    assert count(["old://x.tar", "old://x.tar"]) == 6


@follows("a `cache`, which downloads whole shards.")
def test_a_store_without_ranges(tmp_path):
    tarmac.register_scheme("old", Streams())
    with hinted("a `cache`, which downloads whole shards."):
        tarmac.Dataset("old://x.tar")[1]
    assert tarmac.Dataset("old://x.tar", cache=tarmac.Cache(tmp_path / "cache"))[1]["__key__"] == "s1"


@pytest.mark.processes
@follows("tarmac.register_scheme(name, store), or a pipe: command.")
def test_an_unknown_scheme(shard):
    with hinted("tarmac.register_scheme(name, store), or a pipe: command."):
        count("old://x.tar")
    assert count("pipe:cat x.tar") == 3
    tarmac.register_scheme("old", Streams())
    assert count("old://x.tar") == 3


@follows("tarmac.storage.FileStore(function), for a function that opens file objects.")
def test_a_function_in_place_of_a_store(shard):
    def function(url):
        return open(url.removeprefix("old://"), "rb")

    with hinted("tarmac.storage.FileStore(function), for a function that opens file objects."):
        tarmac.register_scheme("old", function)
    tarmac.register_scheme("old", tarmac.storage.FileStore(function))
    assert count("old://x.tar") == 3


@follows("unset GOPEN_REWRITE.")
def test_rewriting_in_secure_mode(shard, monkeypatch):
    monkeypatch.setenv("TARMAC_SECURE", "1")
    monkeypatch.setenv("GOPEN_REWRITE", "y=x")
    with hinted("unset GOPEN_REWRITE."):
        count(shard)
    monkeypatch.delenv("GOPEN_REWRITE")
    assert count(shard) == 3


@pytest.mark.processes
@follows(
    "export AIS_ENDPOINT=http://HOST:PORT",
    "set USE_AIS_FOR to one or more of {}, separated by colons.",
)
def test_aistore(shard, tmp_path, monkeypatch):
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    monkeypatch.setenv("USE_AIS_FOR", "ftp")
    (tmp_path / "bucket").mkdir()
    shutil.copy(shard, "bucket/x.tar")
    with hinted("set USE_AIS_FOR to one or more of {}, separated by colons.") as caught:
        count("ftp://bucket/x.tar")
    names = re.search("of (.*), separated", caught.value.hint)[1].split(", ")
    monkeypatch.setenv("USE_AIS_FOR", ":".join(names))
    with hinted("export AIS_ENDPOINT=http://HOST:PORT"):
        count("ais://bucket/x.tar")
    with aistore(tmp_path) as url:
        monkeypatch.setenv("AIS_ENDPOINT", url)
        assert [count(f"{name}://bucket/x.tar", storage=FAST) for name in names] == [3] * len(names)


@pytest.mark.processes
@follows("write locally, then `hf upload`.")
def test_writing_to_the_hub(tmp_path, monkeypatch):
    with hinted("write locally, then `hf upload`."):
        write("hf://datasets/me/data/new.tar")
    write("new.tar")
    hub = tmp_path / "datasets/me/data/resolve/main"  # where the hub serves what was uploaded
    hub.mkdir(parents=True)
    shutil.copy("new.tar", hub)
    with folder(tmp_path) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        assert count("hf://datasets/me/data/new.tar") == 1
