"""A job continues wherever its output is, and however it is spelt: its directory is none of its options."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

import tarmac
from harness.servers import required, seaweed_s3
from tarmac.errors import JobMismatch
from tarmac.storage import StorageOptions, list_objects, read_all, write_all
from tarmac.tools.jobs import finish, log, status
from tools.shards import make

EARLIER = Path(__file__).parents[1] / "tools" / "data" / "earlier-jobs.tar.gz"


def pack(inputs, output):
    folder = Path(inputs[0]).parent / "raw"
    if not folder.exists():
        tarmac.export(inputs, f"{folder}/", "dir")
    return tarmac.pack(str(folder), f"{output}x-{{i}}.tar", max_samples=4)


CALLS = {
    "by shard": lambda inputs, output: tarmac.copy(inputs, output),
    "numbered": lambda inputs, output: tarmac.copy(inputs, f"{output}x-{{i}}.tar", max_samples=3, index=True),
    "two splits": lambda inputs, output: tarmac.copy(
        inputs, f"{output}{{split}}/x-{{i}}.tar", split={"a": 0.5, "b": 0.5}
    ),
    "a manifest": lambda inputs, output: tarmac.copy(inputs, output, manifest=f"{output}m.json"),
    "sorted": lambda inputs, output: tarmac.sort(inputs, f"{output}x-{{i}}.tar", by="cls", max_samples=3),
    "mapped": lambda inputs, output: tarmac.map(inputs, output, command="echo new > sample.new"),
    "a stream": lambda inputs, output: tarmac.copy(
        [f"pipe:cat {url}" for url in inputs], f"{output}x-{{i}}.tar", max_samples=3
    ),
    "packed": pack,
    "exported": lambda inputs, output: tarmac.export(
        inputs, f"{output}x-{{i}}.jsonl", "jsonl", kinds={"txt": "text", "cls": "int", "json": "json"}
    ),
    "a directory": lambda inputs, output: tarmac.export(inputs, f"{output}all/", "dir"),
}  # fmt: skip


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make(tmp_path, 5, 4)


def written(folder):
    """Return all files but those of the job."""
    return [path for path in Path(folder).rglob("*") if path.is_file() and ".tarmac" not in path.parts]


def outputs(folder="out"):
    """Return the bytes of all files but manifests and indexes, which name shards and their times."""
    files = (path for path in written(folder) if path.suffix not in (".arrow", ".json"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def lose(folder="out"):
    """Delete an output, which the job then writes again."""
    min(path for path in written(folder) if path.suffix in (".tar", ".jsonl")).unlink()


@pytest.mark.parametrize("call", CALLS)
def test_other_spellings_are_the_same_job(inputs, tmp_path, monkeypatch, call):
    first, before = CALLS[call](inputs, "out/"), outputs()
    (tmp_path / "link").symlink_to(tmp_path)
    for spelling in ("./out/", f"{tmp_path}/out/", "link/out/"):
        report = CALLS[call](inputs, spelling)
        assert (report.done, report.kept, report.units) == (0, first.units, first.units)
    (tmp_path / "out" / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "out" / "deep")
    assert CALLS[call](inputs, "../").kept == first.units
    (tmp_path / "out" / "deep").rmdir()
    assert outputs(tmp_path / "out") == before


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_an_output_that_was_moved_is_continued(inputs, call, copied):
    first, before = CALLS[call](inputs, "out/"), outputs()
    (shutil.copytree if copied else shutil.move)("out", "moved")
    if call != "a directory":  # whose files were never lost
        lose("moved")
    report = CALLS[call](inputs, "moved/")
    assert (report.done, report.kept) == ((1, first.units - 1) if call != "a directory" else (0, first.units))
    assert outputs("moved") == before
    assert outputs("out") == (before if copied else {})


def test_jobs_of_one_directory_stay_apart(inputs):
    for name in ("x", "y"):
        tarmac.copy(inputs, f"out/{name}-{{i}}.tar", max_samples=3)
    shutil.move("out", "moved")
    for name in ("x", "y"):
        assert tarmac.copy(inputs, f"./moved/{name}-{{i}}.tar", max_samples=3).kept == 3
    assert [job.done for job in status("moved")] == [3, 3]


def test_another_option_is_still_another_job(inputs):
    tarmac.copy(inputs, "out/x-{i}.tar", max_samples=3)
    with pytest.raises(JobMismatch, match="options: max_samples 3 -> 2"):
        tarmac.copy(inputs, "./out/x-{i}.tar", max_samples=2)
    with pytest.raises(JobMismatch, match=r"manifest None -> 'm\.json'"):
        tarmac.copy(inputs, "./out/x-{i}.tar", max_samples=3, manifest="out/m.json")


def test_tasks_may_spell_the_output_differently(inputs, tmp_path):
    for number, output in enumerate(("out/", f"{tmp_path}/out/")):
        tarmac.copy(inputs, output, task=f"{number}/2")
    (job,) = status(tmp_path / "out")
    assert (job.units, job.done, job.missing) == (2, 2, 0)
    assert tarmac.copy(inputs, "./out/").kept == 2


def test_a_moved_job_is_finished_with_its_files(inputs):
    tarmac.copy(inputs, "out/", manifest="out/m.json")
    shutil.move("out", "moved")
    Path("moved/m.json").unlink()
    (result,) = finish("moved")
    assert result.written == ["moved/m.json"]
    assert len(tarmac.Dataset("moved/m.json")) == 9


def test_the_log_names_files_where_they_are(inputs):
    tarmac.copy(inputs, "out/")
    shutil.move("out", "moved")
    (entry,) = log("moved", "moved/in-0.tar")
    assert list(entry.details["outputs"]) == ["moved/in-0.tar"]


def test_overwriting_a_moved_job_removes_its_files(inputs):
    tarmac.copy(inputs, "out/x-{i}.tar", max_samples=3)
    shutil.move("out", "moved")
    report = tarmac.copy(inputs, "./moved/x-{i}.tar", max_samples=5, overwrite=True)
    assert report.removed_outputs == ["./moved/x-2.tar"]
    assert sorted(outputs("moved")) == ["x-0.tar", "x-1.tar"]


def as_earlier_version(job: Path, directory: str, pattern: str) -> None:
    """Turn a ledger into one of the version before, which recorded the output as it was spelt."""
    for path in [job / "job.json", *job.glob("*/*.json*")]:
        path.write_text(path.read_text().replace('"./', f'"{directory}'))
    head = json.loads((job / "job.json").read_text())
    head |= {"format": "tarmac-ledger-1", "options": head["options"] | {"pattern": pattern}}
    (job / "job.json").write_text(json.dumps(head) + "\n")


@pytest.mark.parametrize("spelling", ["out/", "./out/", "moved/"])
def test_a_job_of_the_version_before_is_continued(inputs, tmp_path, spelling):
    tarmac.copy(inputs, "out/x-{i}.tar", max_samples=3)
    before = outputs()
    as_earlier_version(tmp_path / "out/.tarmac/copy-x-_i_.tar.job", "out/", "out/x-{i}.tar")
    if spelling == "moved/":
        shutil.move("out", "moved")
    lose(spelling)
    for done in (1, 0):
        report = tarmac.copy(inputs, f"{spelling}x-{{i}}.tar", max_samples=3)
        assert (report.done, report.kept) == (done, 3 - done)
    assert outputs(spelling) == before
    assert [(job.done, job.missing) for job in status(spelling)] == [(3, 0)]


def test_a_job_of_the_first_version_is_continued(tmp_path, monkeypatch):
    with tarfile.open(EARLIER) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    shutil.move("each", "moved")
    Path("each.json").unlink()
    report = tarmac.copy(["in-0.tar", "in-1.tar"], "./moved/", manifest="each.json")
    assert (report.done, report.kept) == (0, 2)


def test_objects_that_were_copied_to_another_prefix(inputs):
    with required(seaweed_s3()) as server:
        server.make_bucket("one")
        storage = StorageOptions(config=server.config())
        tarmac.copy(inputs, "s3://one/a/x-{i}.tar", max_samples=3, storage=storage)
        for url, _ in list(list_objects("s3://one/a/", storage)):
            write_all(url.replace("one/a/", "one/b/"), read_all(url, storage), storage)
        report = tarmac.copy(inputs, "s3://one/b/x-{i}.tar", max_samples=3, storage=storage)
        assert (report.done, report.kept) == (0, 3)
