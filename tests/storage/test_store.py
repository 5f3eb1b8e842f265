"""Custom stores: everything that works with a built-in scheme works with a registered one."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

import tarmac
from tarmac.errors import (
    CommitFailed,
    NotFound,
    ShortRead,
    TooManyShards,
    TransferError,
    UnsupportedScheme,
    WriteError,
)
from tarmac.storage import (
    Cache,
    FileSource,
    FileStore,
    ObjectInfo,
    Store,
    WriteOptions,
    can_list,
    is_stream,
    list_objects,
    open_read,
    open_write,
    read_all,
    read_range,
    register_scheme,
    schemes,
    stat,
    write_all,
)
from tarmac.storage.store import FileSink
from tarmac.storage.urls import expand


class MemoryStore(Store):
    """Objects in a dictionary; `requests` counts the calls of each method."""

    def __init__(self):
        self.objects = {}
        self.requests = []

    def _get(self, request, url):
        self.requests.append(request)
        try:
            return self.objects[url]
        except KeyError:
            raise NotFound("no such object.", url=url) from None

    def open_read(self, url, storage):
        return FileSource(io.BytesIO(self._get("open", url)))

    def stat(self, url, storage):
        content = self._get("stat", url)
        return ObjectInfo(len(content), str(hash(content)))

    def read_range(self, url, start, stop, storage, version):
        return self._get("range", url)[start:stop]

    def put(self, url, file, size, storage, *, only_new):
        if only_new and url in self.objects:
            raise CommitFailed("the object exists.", url=url)
        self.objects[url] = file.read()
        assert len(self.objects[url]) == size

    def list_objects(self, prefix, storage):
        return [(url, self.stat(url, storage)) for url in self.objects if url.startswith(prefix)]


class ReadOnlyStore(Store):
    """A store that implements nothing but `open_read`."""

    def open_read(self, url, storage):
        return FileSource(io.BytesIO(b"content"))


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    monkeypatch.setattr(schemes, "_registered", {})


@pytest.fixture
def memory():
    store = MemoryStore()
    register_scheme("mem", store)
    return store


def write_shards(pattern="mem://d/x-%d.tar", samples=10):
    with tarmac.ShardWriter(pattern, max_samples=4) as writer:
        for number in range(samples):
            writer.write({"__key__": f"{number:03d}", "txt": str(number)})


def test_writers_readers_and_globs(memory):
    write_shards()
    assert sorted(memory.objects) == [f"mem://d/x-{number}.tar" for number in range(3)]
    keys = [f"{number:03d}" for number in range(10)]
    assert [sample["__key__"] for sample in tarmac.read("mem://d/x-*.tar")] == keys
    assert expand("mem://d/x-[01].tar") == ["mem://d/x-0.tar", "mem://d/x-1.tar"]
    assert expand("mem://**/x-2.tar") == ["mem://d/x-2.tar"]
    stream = tarmac.WebDataset("mem://d/x-*.tar", shardshuffle=False)
    assert [sample["__key__"] for sample in stream] == keys
    with pytest.raises(NotFound, match="mem://d/y"):
        expand("mem://d/y-*.tar")
    with pytest.raises(TooManyShards, match="mem://d/"):
        expand("mem://d/*", limits=tarmac.Limits(shards=2))


def test_datasets_read_ranges(memory):
    write_shards()
    dataset = tarmac.Dataset("mem://d/x-*.tar")
    memory.requests.clear()
    assert dataset[7]["txt"] == b"7"
    assert "open" not in memory.requests
    assert "range" in memory.requests


def test_a_cache_downloads_each_shard_once(memory, tmp_path):
    write_shards()
    cache = Cache(tmp_path / "cache")
    memory.requests.clear()
    for _ in range(2):
        assert len(list(tarmac.read("mem://d/x-*.tar", cache=cache))) == 10
    assert memory.requests.count("open") == 3


SCRIPT = """
import os, shutil, sys
import tarmac
from tarmac.cli import main
from tarmac.storage import FileSource, ObjectInfo, Store

def path_of(url):
    return os.path.join(sys.argv[1], url.removeprefix("dir://"))

class DirectoryStore(Store):
    def open_read(self, url, storage):
        try:
            return FileSource(open(path_of(url), "rb"))
        except FileNotFoundError:
            raise tarmac.errors.NotFound("no such object.", url=url) from None

    def stat(self, url, storage):
        with self.open_read(url, storage) as source:
            return ObjectInfo(source.seek(0, 2, url), None)

    def read_range(self, url, start, stop, storage, version):
        with open(path_of(url), "rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def put(self, url, file, size, storage, *, only_new):
        os.makedirs(os.path.dirname(path_of(url)), exist_ok=True)
        try:
            with open(path_of(url), "xb" if only_new else "wb") as target:
                shutil.copyfileobj(file, target)
        except FileExistsError:
            raise tarmac.errors.CommitFailed("the object exists.", url=url) from None

    def list_objects(self, prefix, storage):
        for folder, _, names in os.walk(sys.argv[1]):
            for name in names:
                url = "dir://" + os.path.relpath(os.path.join(folder, name), sys.argv[1])
                if url.startswith(prefix):
                    yield url, self.stat(url, storage)

tarmac.register_scheme("dir", DirectoryStore())  # at top level: worker processes import this module, too

if __name__ == "__main__":
    main(sys.argv[2:])
"""


def test_verbs_in_worker_processes(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    store = tmp_path / "store"
    store.mkdir()
    write_shards(f"{store}/x-%d.tar")

    def run(*arguments):
        command = [sys.executable, str(tmp_path / "script.py"), str(store), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr

    run("index", "dir://x-*.tar", "-o", "dir://m.json")
    for _ in range(2):  # the second run finds everything done
        run("copy", "dir://m.json", "-o", "dir://out/y-{i}.tar", "--max-samples", "5", "--jobs", "2")
    run("check", "dir://out/y-*.tar")
    shards = sorted(store.glob("out/y-*.tar"))
    assert len(shards) == 2
    assert sum(len(list(tarmac.read(path))) for path in shards) == 10


def test_uploads_are_atomic_and_guarded(memory):
    sink = open_write("mem://d/a")
    sink.write(b"1")
    assert not memory.objects
    sink.abort()
    assert not memory.objects
    write_all("mem://d/a", b"1")
    assert read_all("mem://d/a") == b"1"
    with pytest.raises(CommitFailed, match="mem://d/a"):
        write_all("mem://d/a", b"2", write=WriteOptions(overwrite=False))
    sink = open_write("mem://d/a")
    memory.objects["mem://d/a"] = b"other"
    sink.write(b"3")
    with pytest.raises(CommitFailed, match="mem://d/a"):
        sink.commit()
    assert read_all("mem://d/a") == b"other"


def test_a_failed_write_all_leaves_the_object(memory):
    write_all("mem://d/a", b"1")
    with pytest.raises(TypeError):
        write_all("mem://d/a", "text")
    assert read_all("mem://d/a") == b"1"


def test_list_objects(memory):
    for name in ("b", "a", "c"):
        write_all(f"mem://d/{name}", name.encode())
    assert [url for url, _ in list_objects("mem://d/")] == ["mem://d/a", "mem://d/b", "mem://d/c"]
    assert list_objects("mem://d/b")[0][1].size == 1
    with pytest.raises(TooManyShards, match="mem://d/"):
        list_objects("mem://d/", max_objects=2)


def test_list_local_files(tmp_path, monkeypatch):
    for name in ("a.tar", "sub/b.tar", "sub/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"xy")
    listed = list_objects(f"{tmp_path}/")
    assert [url for url, _ in listed] == [
        f"{tmp_path}/{name}" for name in ("a.tar", "sub/.hidden", "sub/b.tar")
    ]
    assert {info.size for _, info in listed} == {2}
    monkeypatch.chdir(tmp_path)
    assert [url for url, _ in list_objects("sub/")] == ["sub/.hidden", "sub/b.tar"]
    assert [url for url, _ in list_objects("a")] == ["a.tar"]
    assert list_objects("missing/") == []


def test_a_minimal_store_is_read_only_and_cannot_be_listed():
    register_scheme("min", ReadOnlyStore())
    assert read_all("min:x") == b"content"
    assert not can_list("min:x")
    assert not is_stream("min:x")
    assert expand("min://d/*.tar") == ["min://d/*.tar"]  # not a pattern
    for operation in (stat, open_write, list_objects, lambda url: read_range(url, 0, 1)):
        with pytest.raises(UnsupportedScheme, match="min:x"):
            operation("min:x")


def test_a_source_with_a_length_needs_no_stat():
    class Sized(ReadOnlyStore):
        def open_read(self, url, storage):
            source = super().open_read(url, storage)
            source.length, source.version = 7, "v1"
            return source

    register_scheme("min", Sized())
    assert stat("min:x") == ObjectInfo(7, "v1")


@pytest.mark.parametrize(
    ("url", "stream"),
    [("-", True), ("pipe:cat x", True), ("x.tar", False), ("s3://b/x", False), ("unknown://x", False)],
)
def test_is_stream(url, stream):
    assert is_stream(url) == stream


def test_registering_something_else_is_rejected():
    with pytest.raises(ValueError, match="store"):
        register_scheme("mem", lambda url: io.BytesIO())


def test_file_stores():
    objects = {}

    class Kept(io.BytesIO):
        def __init__(self, url):
            super().__init__()
            self.url = url

        def close(self):
            objects[self.url] = self.getvalue()
            super().close()

    register_scheme("mem", FileStore(lambda url: io.BytesIO(objects[url]), Kept))
    with tarmac.TarWriter("mem:x.tar") as shard:
        shard.write({"__key__": "a", "txt": "b"})
    assert len(list(tarmac.read("mem:x.tar"))) == 1
    assert stat("mem:x.tar").size == len(objects["mem:x.tar"])
    assert read_range("mem:x.tar", 5, 10) == objects["mem:x.tar"][5:10]
    with pytest.raises(ShortRead, match="mem:x"):
        read_range("mem:x.tar", 0, 1 << 20)
    register_scheme("mem", FileStore(lambda url: io.BytesIO(b"other")))
    with pytest.raises(UnsupportedScheme, match="mem:x"):
        open_write("mem:x")
    with open_read("mem://y") as source:
        assert source.read(100) == b"other"


def test_file_objects_that_cannot_seek():
    class Pipe(io.BytesIO):
        def seek(self, *_):
            raise io.UnsupportedOperation("seek")

    register_scheme("mem", FileStore(lambda url: Pipe(b"content")))
    for operation in (stat, lambda url: read_range(url, 0, 1)):
        with pytest.raises(TransferError, match="mem:x"):
            operation("mem:x")


def test_a_file_object_that_accepts_few_bytes_per_call():
    class Slow(io.RawIOBase):
        def __init__(self):
            self.data = b""
            self.most = 7

        def writable(self):
            return True

        def write(self, data):
            if self.most is None:
                return None
            self.data += bytes(data[: self.most])
            return min(self.most, len(data))

    slow = Slow()
    sink = FileSink(slow, close=False)
    sink.write(b"0123456789" * 10)
    assert slow.data == b"0123456789" * 10
    for most in (0, None):
        slow.most = most
        with pytest.raises(WriteError):
            sink.write(b"x")
    sink.commit()
    assert not slow.closed


def test_a_file_object_that_fails_to_flush_is_closed():
    class Full(io.BytesIO):
        def flush(self):
            raise OSError(28, "No space left")

    full = Full()
    with pytest.raises(OSError, match="No space"):
        FileSink(full, close=True).commit()
    assert full.closed
