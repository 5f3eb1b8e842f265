"""Sample caches that another user wrote, or that are damaged, raise a typed error and run no code."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import tarmac.webdataset as wds
from harness.waiting import TIMEOUT
from tarmac.errors import DecodeFailed, TarmacError, UnsafeCodec

SAMPLES = [{"__key__": f"{i:03d}", "x": [i]} for i in range(25)]


class Evil:
    """A pickle that creates a directory when it is loaded."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return os.mkdir, (self.canary,)


def make(kind, path):
    if kind == "db":
        return wds.DBCache(path / "c.db", chunksize=4)
    return wds.LMDBCached(path / "lmdb", 1 << 26, chunksize=4)


def filled(kind, path):
    cache = make(kind, path)
    assert list(cache(iter(SAMPLES))) == SAMPLES
    assert list(cache(iter(()))) == SAMPLES
    return cache


def data_file(kind, path):
    return path / ("c.db" if kind == "db" else "lmdb/data.mdb")


def change(kind, path, value):
    """Write values into a cache, as any program with access to the file can."""
    if kind == "db":
        with sqlite3.connect(path / "c.db") as db:
            db.execute("UPDATE samples SET data = ? WHERE number = 3", (value,))
        db.close()
    else:
        import lmdb

        with lmdb.open(str(path / "lmdb"), map_size=1 << 26) as db, db.begin(write=True) as txn:
            txn.put(b"sample 0/1/0/1 0000000000000003", value)


@pytest.mark.parametrize("kind", ["db", "lmdb"])
def test_a_pickle_put_into_a_cache_is_never_loaded(kind, tmp_path):
    cache, canary = filled(kind, tmp_path), tmp_path / "canary"
    for value in (pickle.dumps(Evil(canary)), bytes(16) + pickle.dumps(Evil(canary)), b"", b"x"):
        change(kind, tmp_path, value)
        if kind == "db":
            with pytest.raises(UnsafeCodec, match=r"c\.db"):
                list(cache(iter(SAMPLES)))
        else:  # LMDB must not even open a file that was changed
            assert list(cache(iter(SAMPLES))) == SAMPLES
        assert not canary.exists()


@pytest.mark.parametrize("kind", ["db", "lmdb"])
def test_a_cache_signed_with_another_key_raises(kind, tmp_path, monkeypatch):
    canary, theirs = tmp_path / "canary", tmp_path / "theirs"
    monkeypatch.setenv("TARMAC_HOME", str(theirs))
    list(make(kind, tmp_path)(iter([Evil(canary)])))
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "ours"))
    with pytest.raises(UnsafeCodec, match="TARMAC_HOME"):
        list(make(kind, tmp_path)(iter(SAMPLES)))
    assert not canary.exists()
    (shutil.rmtree if kind == "lmdb" else os.unlink)(tmp_path / ("lmdb" if kind == "lmdb" else "c.db"))
    filled(kind, tmp_path)


def test_the_key_is_for_its_owner_only(tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path))
    filled("db", tmp_path)
    key = tmp_path / "sample-cache.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "c.db").stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    with pytest.raises(UnsafeCodec, match=r"sample-cache\.key"):
        list(make("db", tmp_path)(iter(SAMPLES)))


def test_missing_or_moved_samples_raise(tmp_path):
    cache = filled("db", tmp_path)
    with sqlite3.connect(tmp_path / "c.db") as db:
        db.execute("DELETE FROM samples WHERE number = 24")
    db.close()
    with pytest.raises(DecodeFailed, match="24 of 25"):
        list(cache(iter(SAMPLES)))
    with sqlite3.connect(tmp_path / "c.db") as db:
        db.execute("UPDATE samples SET number = 100 - number")
    db.close()
    with pytest.raises(UnsafeCodec):
        list(cache(iter(SAMPLES)))


TRAPS = [
    "CREATE TRIGGER t AFTER INSERT ON samples BEGIN DELETE FROM samples; END",
    "CREATE TRIGGER t AFTER DELETE ON samples BEGIN SELECT load_extension('/tmp/x.so'); END",
    "CREATE VIEW v AS SELECT 1",
    "CREATE TABLE more (x)",
    "CREATE INDEX i ON samples (abs(number))",
]


@pytest.mark.parametrize("trap", TRAPS)
def test_a_foreign_schema_raises(trap, tmp_path):
    filled("db", tmp_path)
    with sqlite3.connect(tmp_path / "c.db") as db:
        db.execute(trap)
    db.close()
    with pytest.raises(DecodeFailed, match=r"c\.db"):
        list(make("db", tmp_path)(iter(SAMPLES)))


def test_another_database_is_not_changed(tmp_path):
    with sqlite3.connect(tmp_path / "c.db") as db:
        db.execute("CREATE TABLE samples (mine TEXT)")
        db.execute("INSERT INTO samples VALUES ('precious')")
    db.close()
    before = (tmp_path / "c.db").read_bytes()
    with pytest.raises(DecodeFailed):
        list(make("db", tmp_path)(iter(SAMPLES)))
    assert (tmp_path / "c.db").read_bytes() == before


RUN = """
import sys, tarmac, warnings
from stream.test_sample_cache_attacks import SAMPLES, make
from pathlib import Path
try:
    samples = list(make(sys.argv[1], Path(sys.argv[2]))(iter(SAMPLES)))
except tarmac.errors.TarmacError as error:
    print(type(error).__name__)
else:
    assert samples == SAMPLES
    print("fine")
"""


def in_a_process(kind, path):
    """Read a cache in a process, whose crash would not be a typed error."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, kind, str(path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout.strip()


@pytest.mark.parametrize("kind", ["db", "lmdb"])
@pytest.mark.parametrize("how", ["cut in half", "cut to a page", "random bytes", "a directory", "copied"])
def test_damaged_files_never_crash(kind, how, tmp_path):
    filled(kind, tmp_path)
    path = data_file(kind, tmp_path)
    size = path.stat().st_size
    if how.startswith("cut"):
        os.truncate(path, size // 2 if "half" in how else 4096)
    elif how == "copied":
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(b"\0" * 4096 if kind == "db" else content)
    else:
        path.unlink()
        path.mkdir() if how == "a directory" else path.write_bytes(os.urandom(size))
    rebuilt = kind == "lmdb" and how != "a directory"
    assert in_a_process(kind, tmp_path) == ("fine" if rebuilt else "DecodeFailed")


def test_a_symbolic_link_of_the_user_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    filled("db", tmp_path / "real")
    (tmp_path / "c.db").symlink_to(tmp_path / "real" / "c.db")
    assert list(make("db", tmp_path)(iter(()))) == SAMPLES


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_symbolic_link_of_another_user_is_not(tmp_path):
    (tmp_path / "c.db").symlink_to(tmp_path / "d.db")
    os.lchown(tmp_path / "c.db", 12345, 12345)
    with pytest.raises(UnsafeCodec, match=r"c\.db|lmdb"):
        filled("db", tmp_path)
    assert not (tmp_path / "d.db").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("kind", ["db", "lmdb"])
def test_files_of_other_users_raise(kind, tmp_path):
    filled(kind, tmp_path)
    os.chown(data_file(kind, tmp_path), 12345, 12345)
    with pytest.raises(UnsafeCodec, match=r"c\.db|lmdb"):
        list(make(kind, tmp_path)(iter(SAMPLES)))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=40)), min_size=1, max_size=4)
)
@example(changes=[(0.189814779616778, b"\0\0\0\x80")])
def test_any_change_of_an_sqlite_file_is_typed_or_without_effect(tmp_path_factory, changes):
    path = tmp_path_factory.mktemp("caches")
    cache = filled("db", path)
    content = bytearray((path / "c.db").read_bytes())
    for position, data in changes:
        start = int(position * (len(content) - len(data)))
        content[start : start + len(data)] = data
    (path / "c.db").write_bytes(content)
    with contextlib.suppress(TarmacError):
        assert list(cache(iter(SAMPLES))) == SAMPLES
