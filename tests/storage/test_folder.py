"""Names that are replaced by symbolic links during use lead neither out of a directory nor into it.

The replacement happens before each system call in turn, so that every race between check and use occurs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import warnings
from pathlib import Path

import pytest

import tarmac
from harness.faultfs import interrupted
from storage.caches import FAST, read
from tarmac.errors import CacheDisabled, WriteError
from tarmac.storage import Cache
from tarmac.storage.folder import Folder
from tarmac.storage.local import LocalSink

URL, OTHER = "mem://a/x.tar", "mem://a/y.tar"


@pytest.fixture
def memory():
    """A directory in memory, because these tests create and remove thousands of files."""
    directory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=directory) as path:
        yield Path(path)


def victim(directory: Path) -> Path:
    """Create a directory of user files, some with names that a cache uses."""
    for name in ("notes", "parts", "locks"):
        (directory / name).mkdir(parents=True)
    for name in ("precious.txt", "notes/precious", "locks/budget", "parts/p"):
        (directory / name).write_text(f"mine: {name}")
        os.utime(directory / name, (1000, 1000))
    return directory


def facts(directory: Path) -> dict[str, tuple[bytes, float, int]]:
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime, path.stat().st_mode) for path in paths}


def swap(name: Path, target: Path) -> None:
    """Replace a file or directory by a link."""
    if name.is_symlink() or name.is_file():
        name.unlink()
    elif name.is_dir():
        os.rename(name, name.with_name(f"{name.name}.away"))
    with contextlib.suppress(FileExistsError, FileNotFoundError):
        name.symlink_to(target)


def swap_all(folder: Path, target: Path) -> None:
    for path in list(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []:
        if path.is_file():
            swap(path, target)


ATTACKS = {
    "home": lambda root, out: swap(root / ".tarmac", out),
    "notes": lambda root, out: swap(root / ".tarmac/notes", out / "notes"),
    "parts": lambda root, out: swap(root / ".tarmac/parts", out / "parts"),
    "locks": lambda root, out: swap(root / ".tarmac/locks", out / "locks"),
    "each note": lambda root, out: swap_all(root / ".tarmac/notes", out / "precious.txt"),
    "each part": lambda root, out: swap_all(root / ".tarmac/parts", out / "precious.txt"),
    "each lock": lambda root, out: swap_all(root / ".tarmac/locks", out / "new file"),
    "entries": lambda root, out: swap_all(root, out / "precious.txt"),
    "clock": lambda root, out: swap(root / ".tarmac/clock", out / "precious.txt"),
    "dangling clock": lambda root, out: swap(root / ".tarmac/clock", out / "new file"),
    "pipe": lambda root, out: [os.mkfifo(root / ".tarmac/pipe"), *pipes(root)],
}


def pipes(root: Path) -> list[None]:
    """Replace entries and notes by named pipes, which would block when opened."""
    paths = [path for path in (*root.iterdir(), *root.glob(".tarmac/notes/*")) if path.is_file()]
    for path in paths:
        path.unlink()
        os.mkfifo(path)
    return []


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("before", [False, True], ids=["empty", "filled"])
def test_links_swapped_into_a_cache(memory, origin, attack, before):
    """At every call: the bytes are correct, and no other file is written, removed or touched."""
    reached, origin.size = 1, 1000
    while True:
        root, out = memory / "cache", victim(memory / "out")
        cache = Cache(root, max_bytes=3 * origin.size)
        if before:
            read(cache, URL)
            read(Cache(root), OTHER)
        untouched = facts(out)
        with (
            interrupted(reached, lambda r=root, o=out: ATTACKS[attack](r, o)) as seen,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", CacheDisabled)
            with contextlib.suppress(FileNotFoundError):  # the attack came before the directory existed
                fresh = Cache(root, max_bytes=2 * origin.size)
                assert read(fresh, URL) == origin.body(URL)
                fresh.retire(URL)
                with contextlib.suppress(OSError):
                    fresh.clean()
                fresh.remove(fresh.path_of(URL).name)
        assert facts(out) == untouched, (reached, seen[-1:])
        shutil.rmtree(root)
        shutil.rmtree(out)
        if len(seen) < reached:
            break
        reached += 1
    assert reached > 40


SINK_ATTACKS = {
    "directory": lambda directory, out: swap(directory, out),
    "part": lambda directory, out: [
        swap(path, out / "precious.txt") for path in directory.glob(".x.tar.part-*")
    ],
    "target": lambda directory, out: swap(directory / "x.tar", out / "precious.txt"),
    "dangling target": lambda directory, out: swap(directory / "x.tar", out / "new file"),
}


@pytest.mark.parametrize("attack", SINK_ATTACKS)
@pytest.mark.parametrize("existing", [False, True], ids=["new", "replacing"])
def test_links_swapped_into_the_directory_of_a_writer(memory, attack, existing):
    """A file is published in the directory where it was created, or not at all; links are not followed."""
    reached = 1
    while True:
        directory, out = memory / "shards", victim(memory / "out")
        directory.mkdir()
        if existing:
            (directory / "x.tar").write_bytes(b"old")
        untouched = facts(out)
        sink = LocalSink(str(directory / "x.tar"))
        published = False
        with interrupted(reached, lambda p=directory, o=out: SINK_ATTACKS[attack](p, o)) as seen:
            with contextlib.suppress(WriteError):
                sink.write(b"n" * 600_000)
                sink.commit()
                published = True
        assert facts(out) == untouched, (reached, seen[-1:])
        where = (
            directory.with_name("shards.away")
            if attack == "directory" and directory.is_symlink()
            else directory
        )
        if published and not (where / "x.tar").is_symlink():  # else it was swapped after it was published
            assert (where / "x.tar").read_bytes() == b"n" * 600_000
        for folder in (directory, memory / "shards.away", out):
            if folder.is_symlink():
                folder.unlink()
            shutil.rmtree(folder, ignore_errors=True)
        if len(seen) < reached:
            break
        reached += 1
    assert reached > 5


def test_an_open_folder_survives_renames(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with Folder(tmp_path / "a") as folder:
        os.rename(tmp_path / "a", tmp_path / "c")
        (tmp_path / "a").symlink_to("b")
        os.close(folder.create("x"))
        assert os.listdir(tmp_path / "c") == ["x"]
        os.symlink("x", tmp_path / "c/link")
        os.mkfifo(tmp_path / "c/pipe")
        (tmp_path / "c/dir").mkdir()
        for name in ("link", "pipe", "dir", "none"):
            assert folder.stat(name) is None
            with pytest.raises(OSError):
                os.close(folder.open(name))
            assert folder.has(name) == (name != "none")
        with pytest.raises(FileExistsError):
            folder.create("link")
        os.symlink("dir", tmp_path / "c/dirlink")
        with pytest.raises(OSError):
            folder.open_folder("dirlink", create=True)
    assert os.listdir(tmp_path / "b") == []


def test_shards_are_read_through_links_of_the_user(tmp_path, origin):
    """The directory itself may be a link, because the user named it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "cache").symlink_to("real")
    assert read(Cache(tmp_path / "cache"), URL, FAST) == origin.body(URL)
    assert read(Cache(tmp_path / "real"), URL, FAST) == origin.body(URL)
    assert len(origin.fetched) == 1
    with tarmac.TarWriter(tmp_path / "cache/x.tar") as shard:
        shard.write({"__key__": "a", "txt": "b"})
    assert (tmp_path / "real/x.tar").exists()
