"""Inputs that change under the same name, size and time are refused by name; copies and touched files are not."""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path

import pytest

import tarmac
from harness.servers import required, seaweed_s3
from tarmac.errors import JobMismatch, TarmacError, TransformFailed
from tarmac.storage import StorageOptions, WriteOptions, write_all
from tarmac.tools.content import Content
from tools.shards import files, make

BLOCK = 512


def copy(folder, **options):
    return tarmac.copy(f"{folder}/in-*.tar", f"{folder}/out/x-{{i}}.tar", max_samples=5, jobs=1, **options)


def shuffled(folder):
    return copy(folder, shuffle=True, seed=1)


def mapped(folder):
    return tarmac.map(f"{folder}/in-*.tar", f"{folder}/out/", dict, jobs=1)


def sorted_by_class(folder):
    return tarmac.sort(f"{folder}/in-*.tar", f"{folder}/out/x-{{i}}.tar", by="cls", max_samples=5, jobs=1)


def joined(folder):
    return tarmac.join(
        f"{folder}/other-*.tar", f"{folder}/in-*.tar", f"{folder}/out/", prefix="b.", jobs=1, on_error="skip"
    )


def packed(folder):
    return tarmac.pack(f"{folder}/raw", f"{folder}/out/x-{{i}}.tar", max_samples=5, jobs=1)


def exported(folder):
    return tarmac.export(f"{folder}/in-*.tar", f"{folder}/out/x-{{i}}.jsonl", max_samples=5, jobs=1)


READING_SHARDS = (copy, shuffled, mapped, sorted_by_class, joined, exported)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    make(tmp_path, 6, 6, 6)
    make(tmp_path, 6, 6, 6, name="other-{}.tar")
    for number in range(15):
        path = tmp_path / "raw" / f"{number:02d}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"text %02d " % number * 4)
    return tmp_path


def change(path: Path, position: int) -> None:
    """Flip a bit, and restore the modification time."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(position)
        (value,) = file.read(1)
        file.seek(position)
        file.write(bytes([value ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def position_in(path: Path, where: str, rng: random.Random) -> int:
    """Return a position in a header, in a key, or in the bytes of a field."""
    headers, start, data = [], 0, path.read_bytes()
    while data[start]:
        size = int(data[start + 124 : start + 135], 8)
        headers.append((start, size))
        start += BLOCK + (size + BLOCK - 1) // BLOCK * BLOCK
    start, size = rng.choice(headers)
    if where == "payload":
        return start + BLOCK + rng.randrange(size)
    return start + (rng.randrange(4) if where == "key" else rng.randrange(100, 150))


WAYS = [
    (verb, where, index)
    for verb in READING_SHARDS
    for where in ("header", "key", "payload")
    for index in (False, True)
]


@pytest.mark.parametrize(
    ("verb", "where", "index"), WAYS, ids=[f"{v.__name__}-{w}-{'index' if i else 'none'}" for v, w, i in WAYS]
)
def test_a_changed_shard_is_refused_by_name(folder, verb, where, index):
    rng = random.Random(f"{verb.__name__} {where} {index}")
    if index:
        tarmac.index(f"{folder}/in-*.tar")
    assert verb(folder).done
    sorted((folder / "out").glob("x-*" if verb not in (mapped, joined) else "*"))[-1].unlink()
    path = folder / f"in-{rng.randrange(2)}.tar"
    change(path, position_in(path, where, rng))
    before = files(folder / "out")
    with pytest.raises(JobMismatch, match=path.name):
        verb(folder)
    assert files(folder / "out") == before


@pytest.mark.parametrize("verb", READING_SHARDS)
@pytest.mark.parametrize("where", ["key", "payload"])
def test_a_changed_shard_is_refused_when_its_index_is_built_again(folder, verb, where):
    assert verb(folder).done
    path = folder / "in-1.tar"
    change(path, position_in(path, where, random.Random(3)))
    shutil.rmtree(folder / "home")
    with pytest.raises(TarmacError, match=path.name):
        verb(folder)


@pytest.mark.parametrize("number", range(4))
def test_a_changed_file_is_refused_by_name(folder, number):
    assert packed(folder).done == 3
    (folder / "out/x-0.tar").unlink()
    path = folder / f"raw/{3 * number:02d}.txt"
    change(path, number)
    with pytest.raises(JobMismatch, match=path.name):
        packed(folder)


def test_of_many_files_the_changed_one_is_named(folder):
    for number in range(100):
        (folder / "raw" / f"more-{number}.txt").write_bytes(b"%d" % number)

    def run():
        return tarmac.pack(f"{folder}/raw", f"{folder}/out/x.tar", jobs=1)

    run()
    change(folder / "raw/more-7.txt", 0)
    with pytest.raises(JobMismatch, match=r"more-7\.txt\."):
        run()


@pytest.mark.parametrize("by", ["csv", "jsonl"])
def test_a_changed_table_is_refused_by_name(folder, by):
    lines = {"csv": "key,txt\na,one\nb,two\n", "jsonl": '{"key":"a","txt":"one"}\n{"key":"b","txt":"two"}\n'}
    table = folder / f"t.{by}"
    table.write_text(lines[by])

    def run():
        return tarmac.pack(str(table), f"{folder}/out/x.tar", key="key", jobs=1)

    run()
    os.utime(table)
    assert run().kept == 1
    change(table, table.read_text().index("two"))
    with pytest.raises(JobMismatch, match=table.name):
        run()


def touch(path):
    os.utime(path)


def change_mode(path):
    path.chmod(0o600)


def copy_over(path):
    other = path.with_name("aside")
    shutil.copy2(path, other)
    path.unlink()
    shutil.copy2(other, path)
    other.unlink()


def copy_without_time(path):
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


def link(path):
    (path.parent.parent / "links").mkdir(exist_ok=True)
    os.link(path, path.parent.parent / "links" / f"{path.parent.name}-{path.name}")


def rename_over(path):
    other = path.with_name("aside")
    shutil.copy2(path, other)
    other.rename(path)


@pytest.mark.parametrize("verb", [*READING_SHARDS, packed])
@pytest.mark.parametrize("harmless", [touch, change_mode, copy_over, copy_without_time, link, rename_over])
def test_the_same_content_is_accepted_and_nothing_is_done_again(folder, verb, harmless, monkeypatch):
    assert verb(folder).done
    before = files(folder / "out")
    for path in [*folder.glob("*.tar"), *(folder / "raw").glob("0*.txt")]:
        harmless(path)
    report = verb(folder)
    assert (report.done, report.kept) == (0, report.units)
    assert files(folder / "out") == before
    monkeypatch.setattr(Content, "over", None)  # the new status was recorded, so nothing is read again
    assert verb(folder).kept == report.units


def test_a_dry_run_verifies_and_records_nothing(folder):
    copy(folder)
    os.utime(folder / "in-0.tar")
    (ledger,) = (folder / "out/.tarmac").glob("*.job")

    def content():
        return {path: path.read_bytes() for path in ledger.rglob("*") if path.is_file()}

    before = content()
    assert copy(folder, dry_run=True).kept == 4
    assert content() == before


def test_moved_inputs_are_recognised(folder):
    copy(folder)
    (folder / "elsewhere").mkdir()
    for path in folder.glob("in-*.tar"):
        path.rename(folder / "elsewhere" / path.name)
    output = f"{folder}/out/x-{{i}}.tar"
    assert tarmac.copy(f"{folder}/elsewhere/in-*.tar", output, max_samples=5, jobs=1).kept == 4


def test_the_digest_depends_on_names_positions_and_bytes_but_not_on_batches():
    samples = [{"__key__": str(n), "__url__": "u", "a": b"%d" % n, "b": b"x"} for n in range(9)]

    def digest(*parts):
        state = (0, 0)
        for part in parts:
            content = Content(*state)
            for sample in part:
                content.add(sample)
            state = content.value, content.position
        return state[0]

    whole = digest(samples)
    assert digest(samples[:4], samples[4:]) == digest(*([each] for each in samples)) == whole
    assert digest([each | {"__url__": "v", "a": memoryview(each["a"])} for each in samples]) == whole
    others = [
        samples[::-1],
        [*samples[:-1], samples[-1] | {"a": b"9"}],
        [*samples[:-1], samples[-1] | {"__key__": "x"}],
        [*samples[:-1], {"__key__": "8", "a": b"x", "b": b"8"}],
        samples[:-1],
    ]
    assert len({whole, *map(digest, others)}) == 6


@pytest.mark.parametrize(
    "changes",
    [{}, {3: {"c": b"x"}}, {8: {"__key__": "\udcff"}}, {0: {"__key__": "é", "": b""}}],
    ids=["uniform", "another field", "not UTF-8", "the first"],
)
def test_samples_that_are_digested_together_have_the_digest_of_each(changes):
    samples = [{"__key__": str(n), "__url__": "u", "a": b"%d" % n} | changes.get(n, {}) for n in range(9)]
    one_by_one, together = Content(5, 2), Content(5, 2)
    for sample in samples:
        one_by_one.add(sample)
    together.add_all(samples[:5])
    together.add_all(samples[5:])
    assert (together.value, together.position) == (one_by_one.value, one_by_one.position)


@pytest.fixture(scope="module")
def store():
    with required(seaweed_s3()) as server:
        server.make_bucket("inputs")
        yield StorageOptions(config=server.config())


@pytest.mark.processes
def test_an_object_with_other_bytes_is_refused_and_one_with_the_same_is_not(store, tmp_path):
    base, storage = "s3://inputs", store
    (url,) = make(tmp_path, 9)
    data = Path(url).read_bytes()
    write_all(f"{base}/in-0.tar", data, storage)
    output = f"{tmp_path}/out/x-{{i}}.tar"

    def run():
        return tarmac.copy(f"{base}/in-0.tar", output, max_samples=4, jobs=1, storage=storage)

    assert run().done == 3
    replace = WriteOptions(overwrite=True)
    write_all(f"{base}/in-0.tar", data, storage, replace)
    assert run().kept == 3
    changed = bytearray(data)
    changed[data.index(b"text 3")] ^= 1
    write_all(f"{base}/in-0.tar", bytes(changed), storage, replace)
    with pytest.raises(JobMismatch, match=r"in-0\.tar"):
        run()


FUNCTION = """
class Double:
    {version}
    def __call__(self, sample):
        return sample {code}
double = Double()
"""


def test_a_changed_function_or_version_is_refused_in_words(folder):
    path = folder / "double.py"

    def run(version="", code=""):
        path.write_text(FUNCTION.format(version=version, code=code))
        for name in [name for name in sys.modules if name.startswith("tarmac_map_")]:
            del sys.modules[name]
        return tarmac.map(f"{folder}/in-0.tar", f"{folder}/out/", f"{path}:double", jobs=1)

    run('version = "1"')
    assert run('version = "1"').kept == 1
    with pytest.raises(JobMismatch, match=r"the function .*double\.py:double has another version, 1 -> 2"):
        run('version = "2"')
    with pytest.raises(JobMismatch, match=r"the function .*double\.py:double has changed\."):
        run('version = "1"', "| {'new': b'1'}")


def test_an_input_that_waits_must_be_the_one_that_the_job_began_with(folder, monkeypatch):
    """Its outputs would be of other inputs than those that are written."""
    monkeypatch.chdir(folder)
    (folder / "f.py").write_text(
        "import os\n"
        "def f(sample):\n"
        "    if sample['__url__'].endswith('in-1.tar') and not os.path.exists('open'):\n"
        "        raise ValueError('not yet')\n"
        "    return sample\n"
    )
    with pytest.raises(TransformFailed):
        tarmac.map(["in-0.tar", "in-1.tar"], "waiting/", "f.py:f", jobs=1)
    (folder / "open").touch()
    before, status = (folder / "in-1.tar").read_bytes(), os.stat(folder / "in-1.tar")
    (folder / "in-1.tar").write_bytes(before.replace(b"text", b"TEXT"))
    os.utime(folder / "in-1.tar", ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    with pytest.raises(JobMismatch, match=r"in-1\.tar have changed since the job began: .*in-1\.tar"):
        tarmac.map(["in-0.tar", "in-1.tar"], "waiting/", "f.py:f", jobs=1)
    assert not (folder / "waiting" / "in-1.tar").exists()
    (folder / "in-1.tar").write_bytes(before)
    os.utime(folder / "in-1.tar", ns=(status.st_atime_ns, status.st_mtime_ns))
    report = tarmac.map(["in-0.tar", "in-1.tar"], "waiting/", "f.py:f", jobs=1)
    assert (report.done, report.kept) == (1, 1)
