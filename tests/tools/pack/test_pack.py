"""Pack: every sample once, the same bytes each time, whatever happens in between."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import subprocess

import pytest

import tarmac
from harness import required, rounds
from harness.crash import Forked, survive
from harness.faultfs import Fault, faulty
from harness.servers import seaweed_s3
from tarmac.errors import (
    BadName,
    ErrorBudgetExceeded,
    JobMismatch,
    MissingField,
    NotFound,
    ObjectChanged,
    TarmacError,
    UrlError,
    UsageError,
    WriteError,
)
from tarmac.storage import StorageOptions, open_write
from tarmac.tools.output import Output
from tarmac.tools.pack.job import PackJob, PackOptions
from tools.pack.trees import source, write_tree

NAME = "out/x-{i:03d}.tar"


def pack(sources, folder, name=NAME, **options):
    """Pack in one process, 9 samples a shard."""
    return tarmac.pack(
        sources, str(folder / name), **({"max_samples": 9, "jobs": 1, "progress": False} | options)
    )


@pytest.fixture
def tree(tmp_path):
    rng = random.Random(3)
    files = {}
    for number in range(100):
        files[f"d{number % 7}/{number:03d}.txt"] = f"text {number}".encode()
        files[f"d{number % 7}/{number:03d}.bin"] = rng.randbytes(rng.randrange(3000))
    return write_tree(tmp_path / "tree", files)


def shards(folder):
    return sorted(path for path in folder.rglob("*.tar"))


def digest(folder):
    result = hashlib.sha256()
    for path in shards(folder):
        result.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return result.hexdigest()


def samples(folder):
    """Return all samples of all shards, in order."""
    result = []
    for path in shards(folder):
        result += [{k: v for k, v in s.items() if k != "__url__"} for s in tarmac.read(str(path))]
    return result


def keys(folder):
    return [sample["__key__"] for sample in samples(folder)]


def assert_complete(tree, folder):
    packed = samples(folder)
    names = {f"{sample['__key__']}.{name}": value for sample in packed for name, value in sample.items()}
    files = {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*.*")}
    assert {name: names[name] for name in files} == files
    assert len(packed) == 100


def test_a_tree(tree, tmp_path):
    packed = pack(tree, tmp_path)
    assert (packed.units, packed.read, packed.written, packed.failed) == (12, 100, 100, 0)
    assert packed.bytes == sum(path.stat().st_size for path in tree.rglob("*.*"))
    assert_complete(tree, tmp_path / "out")
    assert keys(tmp_path / "out") == sorted(keys(tmp_path / "out"))
    listed = subprocess.run(
        ["tar", "tf", tmp_path / "out/x-000.tar"], check=True, capture_output=True, text=True
    ).stdout.split()
    assert listed[:4] == ["d0/000.bin", "d0/000.txt", "d0/007.bin", "d0/007.txt"]
    assert len(listed) == 18


def test_the_same_bytes_for_any_number_of_processes(tree, tmp_path):
    for jobs in (1, 2, 3):
        pack(tree, tmp_path, f"{jobs}/x-{{i}}.tar", jobs=jobs)
    assert digest(tmp_path / "1") == digest(tmp_path / "2") == digest(tmp_path / "3")


def test_resume(tree, tmp_path):
    pack(tree, tmp_path)
    before = digest(tmp_path / "out")
    again = pack(tree, tmp_path)
    assert (again.done, again.kept) == (0, 12)
    assert "nothing to do" in str(again)
    (tmp_path / "out/x-003.tar").unlink()
    (tmp_path / "out/x-005.tar").write_bytes(b"cut")
    again = pack(tree, tmp_path)
    assert (again.done, again.kept) == (2, 10)
    assert digest(tmp_path / "out") == before


def test_changed_inputs_and_options_are_errors(tree, tmp_path):
    pack(tree, tmp_path)
    before = (tree / "d3/003.txt").read_bytes()
    os.utime(tree / "d3/003.txt", ns=(7, 7))
    assert pack(tree, tmp_path).kept == 12
    (tree / "d3/003.txt").write_bytes(before[::-1] + b"?")
    with pytest.raises(JobMismatch, match=r"x-00\d\.tar.*003\.txt"):
        pack(tree, tmp_path)
    (tree / "d3/003.txt").write_bytes(before)
    (tree / "d6/999.txt").write_bytes(b"new")
    with pytest.raises(JobMismatch, match="samples 100 -> 101"):
        pack(tree, tmp_path)
    (tree / "d6/999.txt").unlink()
    with pytest.raises(JobMismatch, match="max_samples 9 -> 8"):
        pack(tree, tmp_path, max_samples=8)
    pack(tree, tmp_path, max_samples=8, overwrite=True)


def test_existing_files_are_not_replaced(tree, tmp_path):
    write_tree(tmp_path, {"out/x-005.tar": b"precious"})
    with pytest.raises(UsageError, match="x-005"):
        pack(tree, tmp_path)
    assert [path.name for path in shards(tmp_path)] == ["x-005.tar"]


def test_sizes(tree, tmp_path):
    pack(tree, tmp_path, max_samples=None, max_bytes=20_000)
    for path in shards(tmp_path / "out"):
        sizes = [sum(map(len, fields(s))) for s in tarmac.read(str(path))]
        assert sum(sizes) <= 20_000
    assert_complete(tree, tmp_path / "out")
    assert pack(tree, tmp_path, "b/x-{i}.tar", max_samples=None).units == 1  # 10,000 samples
    assert pack(tree, tmp_path, "c/x.tar", max_samples=None).units == 1
    with pytest.raises(UsageError, match=r"d/x\.tar"):
        pack(tree, tmp_path, "d/x.tar")


def fields(sample):
    return [value for name, value in sample.items() if name[:2] != "__"]


def test_shuffle(tree, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        pack(tree, tmp_path, f"{name}/x-{{i}}.tar", shuffle=True, seed=seed)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")
    assert keys(tmp_path / "a") != sorted(keys(tmp_path / "a"))
    assert_complete(tree, tmp_path / "a")
    with pytest.raises(JobMismatch, match="seed 1 -> 2"):
        pack(tree, tmp_path, "a/x-{i}.tar", shuffle=True, seed=2)


def test_splits_are_those_of_a_dataset(tree, tmp_path):
    shares = {"train": 0.7, "val": 0.3}
    packed = pack(tree, tmp_path, "p/{split}-{i}.tar", split=shares)
    pack(tree, tmp_path, "all/x-{i}.tar", index=True)
    split = tarmac.Dataset([str(path) for path in shards(tmp_path / "all")]).split(train=0.7, val=0.3)
    written = {"train": [], "val": []}
    for path in shards(tmp_path / "p"):
        written[path.name.partition("-")[0]] += [s["__key__"] for s in tarmac.read(str(path))]
    assert sorted(written["train"]) == sorted(s["__key__"] for s in split.train)
    assert sorted(written["val"]) == sorted(s["__key__"] for s in split.val)
    assert (packed.read, packed.left_out, packed.skipped) == (100, 0, {})
    for name, options in ((NAME, {"split": shares}), ("x/{split}-{i}.tar", {})):
        with pytest.raises(UsageError, match=r"\{split\}"):
            pack(tree, tmp_path, name, **options)
    job = pack(tree, tmp_path, "v/x-{i}.tar", split=shares, only="val")
    assert (job.read, job.left_out, job.written) == (100, len(written["train"]), len(written["val"]))
    assert sorted(keys(tmp_path / "v")) == sorted(written["val"])


def test_tasks_write_together_what_one_job_writes(tree, tmp_path):
    pack(tree, tmp_path, "one/x-{i}.tar")
    # Alone, the first task also does what the others would.
    done = [pack(tree, tmp_path, "three/x-{i}.tar", task=(number, 3)).done for number in (2, 0, 1)]
    assert done == [12, 0, 0]
    assert digest(tmp_path / "one") == digest(tmp_path / "three")
    with pytest.raises(UsageError, match="`task`"):
        pack(tree, tmp_path, task=(2, 2))
    with pytest.raises(UsageError, match="`task`"):
        tarmac.pack(tree, "-", task=(0, 2))


def test_required_fields(tree, tmp_path):
    (tree / "d1/001.bin").unlink()
    with pytest.raises(MissingField, match=r'sample "d1/001".* bin'):
        pack(tree, tmp_path, require=["bin", "TXT"])
    assert shards(tmp_path) == []
    options = {"require": ["bin", "TXT"], "on_error": "skip"}
    job = pack(tree, tmp_path, **options)
    assert (job.read, job.written, job.failed, job.ok) == (100, 99, 1, False)
    assert "d1/001" in job.errors[0]
    assert "d1/001" not in keys(tmp_path / "out")
    assert pack(tree, tmp_path, **options).failed == 1  # reported again


def test_a_file_that_cannot_be_read(tree, tmp_path):
    """Its shard is not published; with "skip" it is counted."""
    os.symlink("nothing", tree / "d0/500.txt")
    with pytest.raises(NotFound, match=r"500\.txt"):
        pack(tree, tmp_path)
    done = {path.name for path in shards(tmp_path / "out")}
    assert done == {"x-000.tar"}
    assert not list((tmp_path / "out").glob(".x*"))
    job = pack(tree, tmp_path, on_error="skip")
    assert (job.written, job.failed, job.kept) == (100, 1, 1)
    with pytest.raises(ErrorBudgetExceeded):
        pack(tree, tmp_path, "n/x-{i}.tar", max_errors=0, on_error="skip")


def job(tree, folder, options=None, **more):
    return PackJob(
        [source(tree, **more)], Output(str(folder / NAME), max_samples=9), options or PackOptions()
    )


def test_a_file_that_changes_after_planning(tree, tmp_path):
    task = job(tree, tmp_path, needs_sizes=True)
    units = list(task.plan())
    (tree / "d0/000.txt").write_bytes(b"other")
    with pytest.raises(ObjectChanged, match=r"000\.txt"):
        task.run(units[0])
    assert shards(tmp_path) == []
    assert task.run(units[1]).written == 9


def test_files_whose_stat_is_recorded_when_they_are_read(tree, tmp_path):
    """The ledger records what was read, so later changes are noticed."""
    task = job(tree, tmp_path, PackOptions(on_error="skip"))
    units = list(task.plan())
    (tree / "d0/000.txt").write_bytes(b"other")
    (tree / "d3/003.txt").unlink()
    outcomes = [task.run(unit) for unit in units]
    assert [outcome.inputs for outcome in outcomes] == [task.inputs(unit) for unit in units]
    assert sum(outcome.failed for outcome in outcomes) == 1
    os.utime(tree / "d0/000.txt", ns=(7, 7))
    (tree / "d3/003.txt").write_bytes(b"again")
    changed = [outcome.inputs != task.inputs(unit) for outcome, unit in zip(outcomes, units, strict=True)]
    assert sum(changed) == len({units_of(units, "d0/000"), units_of(units, "d3/003")})


def units_of(units, key):
    """Return the number of the unit of a sample."""
    return next(number for number, unit in enumerate(units) if key in {row[1] for row in unit.content[1]})


def test_names_that_do_not_read_back(tmp_path):
    tree = write_tree(
        tmp_path / "tree", {"a.txt": b"", "b\tc.txt": b"", "d.TXT": b"", "d.txt": b"", "__m__/e.txt": b""}
    )
    with pytest.raises(TarmacError):
        pack(tree, tmp_path)
    job = pack(tree, tmp_path, on_error="skip")
    assert (job.written, job.failed) == (1, 3)
    assert keys(tmp_path / "out") == ["a"]


def test_several_sources(tmp_path):
    one, two = (
        write_tree(tmp_path / "1", {"a.txt": b"1", "b.txt": b"2"}),
        write_tree(tmp_path / "2", {"c.txt": b"3"}),
    )
    write_tree(tmp_path, {"t.csv": b"txt\nx\ny\n"})
    pack([one, two, tmp_path / "t.csv"], tmp_path, max_samples=2)
    assert keys(tmp_path / "out") == ["a", "b", "c", "000000003", "000000004"]
    write_tree(two, {"a.txt": b"again"})
    with pytest.raises(BadName, match='sample "a"'):
        pack([one, two], tmp_path, "n/x-{i}.tar")
    pack([one, two], tmp_path, "n/x-{i}.tar", rekey="{i:03d}")
    assert keys(tmp_path / "n") == ["000", "001", "002", "003"]


def test_two_lists_of_classes_in_one_directory(tmp_path):
    """Each dataset has its own, and the report names it."""
    for name, classes in (("a", ["cat", "dog"]), ("b-x", ["emu"]), ("c.tar", ["fox"])):
        tree = write_tree(tmp_path / f"{name}-in", {f"{each}/1.jpg": b"J" for each in classes})
        pattern = f"out/{name}" if name.endswith(".tar") else f"out/{name}-{{i:03d}}.tar"
        listed = tmp_path / f"out/{name.removesuffix('.tar')}.classes.txt"
        for _ in range(2):
            report = pack(tree, tmp_path, pattern, format="imagefolder")
            assert any(str(listed) in remark for remark in report.remarks)
            assert listed.read_text().split() == classes


def test_classes(tmp_path):
    tree = write_tree(tmp_path / "tree", {"dog/1.jpg": b"D", "cat/1.jpg": b"C"})
    report = pack(tree, tmp_path, format="imagefolder")
    assert any("out/x.classes.txt" in remark for remark in report.remarks)
    assert samples(tmp_path / "out") == [
        {"__key__": "cat/1", "cls": b"0", "jpg": b"C"}, {"__key__": "dog/1", "cls": b"1", "jpg": b"D"},
    ]  # fmt: skip
    assert (tmp_path / "out/x.classes.txt").read_text() == "cat\ndog\n"
    pack(tree, tmp_path, "out/{split}/y-{i}.tar", format="imagefolder", split={"a": 1})
    assert (tmp_path / "out/classes.txt").read_text() == "cat\ndog\n"
    write_tree(tmp_path, {"out/z.classes.txt": b"others\n"})
    pack(tree, tmp_path, "out/z-{i}.tar", format="imagefolder")  # one list for the directory is enough
    assert (tmp_path / "out/z.classes.txt").read_text() == "others\n"
    (tmp_path / "out/classes.txt").unlink()
    with pytest.raises(UsageError, match=r"z\.classes\.txt"):
        pack(tree, tmp_path, "out/z-{i:02d}.tar", format="imagefolder")
    with pytest.raises(UsageError, match="folders"):
        pack(
            [tree, write_tree(tmp_path / "t2", {"emu/2.jpg": b""})],
            tmp_path,
            "n/x-{i}.tar",
            format="imagefolder",
        )


def test_output_inside_of_the_source(tree, tmp_path, monkeypatch):
    for name in ("tree/x-{i}.tar", "tree/out/x-{i}.tar"):
        with pytest.raises(UsageError, match="inside"):
            pack(tree, tmp_path, name)
    monkeypatch.chdir(tree)
    with pytest.raises(UsageError, match="inside"):
        tarmac.pack(".", "x-{i}.tar")


def test_nothing_to_pack(tmp_path):
    write_tree(tmp_path / "tree", {".DS_Store": b"", "README": b""})
    with pytest.raises(UrlError, match=r"tree: .*\b1 "):
        pack(tmp_path / "tree", tmp_path)
    with pytest.raises(UsageError, match="out/"):  # sources are not shards, whose names could be kept
        tarmac.pack(tmp_path / "tree", f"{tmp_path}/out/{{name}}.tar")
    with pytest.raises(UsageError, match="`sources`"):
        pack([], tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("require", "jpg"),
        ("columns", "txt"),
        ("files", "jpg"),
        ("task", (1, 1)),
        ("on_error", "ignore"),
        ("jobs", 0),
    ],
)
def test_invalid_arguments(tree, tmp_path, name, value):
    with pytest.raises(UsageError) as caught:
        pack(tree, tmp_path, **{name: value})
    assert caught.value.field == name


def test_post_cmd_index_manifest_and_compression(tree, tmp_path):
    manifest = str(tmp_path / "all.json")
    pack(tree, tmp_path, manifest=manifest, post_cmd=f"cat {{path}} >> {tmp_path}/all")
    assert len(list(tarmac.Dataset(manifest))) == 100
    assert (tmp_path / "all").stat().st_size == sum(path.stat().st_size for path in shards(tmp_path / "out"))
    pack(tree, tmp_path, "gz/x-{i}.tar.gz")
    assert len([s for path in (tmp_path / "gz").glob("x*") for s in tarmac.read(str(path))]) == 100


def test_dry_run(tree, tmp_path):
    assert pack(tree, tmp_path, dry_run=True).units == 12
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("jobs", [1, 2])
def test_killed_and_resumed(tree, tmp_path, jobs):
    """However often it is killed, in the end every sample is there once."""
    pack(tree, tmp_path, "complete/x-{i:03d}.tar", max_samples=3)
    wanted = digest(tmp_path / "complete")

    def work():
        pack(tree, tmp_path, max_samples=3, jobs=jobs)

    def check():
        for path in shards(tmp_path / "out") if (tmp_path / "out").exists() else []:
            assert path.read_bytes() == (tmp_path / "complete" / path.name).read_bytes()
        if (tmp_path / "out").exists() and len(shards(tmp_path / "out")) == 34:
            work()
            assert digest(tmp_path / "out") == wanted
            for path in shards(tmp_path / "out"):
                path.unlink()
            shutil.rmtree(tmp_path / "out/.tarmac")

    survive(rounds(5), lambda seed: Forked(work).crash(seed, 0.08), check)
    work()
    assert digest(tmp_path / "out") == wanted
    assert_complete(tree, tmp_path / "out")
    assert not list((tmp_path / "out").glob(".x*"))


def test_a_full_disk_and_resumed(tree, tmp_path):
    pack(tree, tmp_path, "complete/x-{i:03d}.tar")
    rng = random.Random(5)
    failures = 0
    for _ in range(rounds(10)):
        fault = Fault(rng.randrange(1, 30), errno.ENOSPC, ("write", "fsync"))
        try:
            with faulty(fault):
                pack(tree, tmp_path)
        except WriteError:
            failures += 1
    pack(tree, tmp_path)
    assert failures
    assert digest(tmp_path / "out") == digest(tmp_path / "complete")


@pytest.fixture(scope="module")
def s3():
    with required(seaweed_s3()) as server:
        server.make_bucket("data")
        yield server


def test_from_a_bucket_to_a_bucket(s3, tmp_path):
    storage = StorageOptions(config=s3.config(), backoff=0.01, retries=3)
    for number in range(5):
        sink = open_write(f"s3://data/in/d/{number}.txt", storage)
        sink.write(b"%d" % number)
        sink.commit()
    table = open_write("s3://data/in/t.csv", storage)
    table.write(b"@txt,cls\nd/1.txt,1\nd/4.txt,4\n")
    table.commit()
    output = "s3://data/out/x-{i}.tar"
    for jobs, done in ((1, 3), (2, 0)):
        job = tarmac.pack("s3://data/in/d/", output, max_samples=2, jobs=jobs, storage=storage)
        assert (job.done, job.written) == (done, 5)
    packed = tarmac.read([f"s3://data/out/x-{n}.tar" for n in range(3)], storage=storage)
    assert [(s["__key__"], s["txt"]) for s in packed] == [(str(n), b"%d" % n) for n in range(5)]
    pack("s3://data/in/t.csv", tmp_path, storage=storage)
    assert samples(tmp_path / "out")[1] == {"__key__": "000000001", "cls": b"4", "txt": b"4"}


def test_a_file_that_was_missing_is_packed_by_a_retry(tmp_path):
    write_tree(tmp_path, {"t.csv": b"key,path\na,a.txt\nb,b.txt\n", "a.txt": b"A"})

    def run(**options):
        return pack(tmp_path / "t.csv", tmp_path, files=["path"], on_error="skip", **options)

    assert run().failed == 1
    write_tree(tmp_path, {"b.txt": b"B"})
    with pytest.raises(JobMismatch, match='`retry` "failed"'):
        run()
    assert run(retry="failed").written == 2
    assert keys(tmp_path / "out") == ["a", "b"]
