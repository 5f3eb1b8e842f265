"""Values are collected by the processes of a job, with the same result as by one."""

import pytest

import tarmac
from tarmac.errors import TarmacError
from tarmac.tools.sort import collect
from tarmac.tools.sort.sort_key import SortKey

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def small_ranges(tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(collect, "RANGE", 8)  # neither divides the samples of a shard nor their total


@pytest.fixture
def collected_here(monkeypatch):
    """The numbers of samples whose values this process has read."""
    counts, values = [], SortKey.values
    monkeypatch.setattr(SortKey, "values", lambda self, of: counts.append(len(of)) or values(self, of))
    return counts


def write_shards(tmp_path, bad=()):
    paths = [str(tmp_path / f"{number}.tar") for number in range(3)]
    for number, path in enumerate(paths):
        with tarmac.TarWriter(path) as writer:
            for row in range(11):
                sample = number * 11 + row
                fields = {"cls": b"x%d" % sample if sample in bad else b"%d" % (sample * 7 % 5)}
                if sample % 10 == 9:
                    fields = {"txt": b"no class"}
                writer.write({"__key__": f"{sample:03d}", **fields})
    return paths


def run(urls, directory, jobs, **options):
    """The bytes of the shards and the numbers of the report, or the error."""
    options = {"by": "cls", "type": "int", "missing": "skip", "max_samples": 9} | options
    try:
        report = tarmac.sort(urls, f"{directory}/{{i}}.tar", jobs=jobs, progress=False, **options)
    except TarmacError as error:
        return type(error), str(error)
    shards = {path.name: path.read_bytes() for path in directory.glob("*.tar")}
    return shards, report.read, report.written, report.failed, report.dropped, report.errors


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reverse": True},
        {"unique": "first"},
        {"unique": "error"},
        {"by": "key", "type": None},
        {"missing": "error"},
        {"slice": slice(3, 30, 2)},
    ],
    ids=str,
)
def test_the_same_shards_with_any_number_of_processes(options, tmp_path, collected_here):
    urls = write_shards(tmp_path)
    one = run(urls, tmp_path / "1", 1, **options)
    assert len(collected_here) == 1

    assert run(urls, tmp_path / "2", 2, **options) == one
    assert len(collected_here) == 1


@pytest.mark.parametrize(
    "options", [{}, {"on_error": "skip"}, {"on_error": "skip", "max_errors": 2}], ids=str
)
def test_the_same_errors_with_any_number_of_processes(options, tmp_path):
    urls = write_shards(tmp_path, bad={5, 16, 17, 31})

    results = [run(urls, tmp_path / str(jobs), jobs, **options) for jobs in (1, 2)]

    assert results[0] == results[1]
    assert ("x17" if "max_errors" in options else "x5") in str(results[0][-1])


def test_values_that_do_not_fit_into_memory(tmp_path, monkeypatch):
    urls = write_shards(tmp_path)
    expected = run(urls, tmp_path / "1", 1)
    replace = collect.replace
    monkeypatch.setattr(collect, "replace", lambda each, **_: replace(each, memory=300))
    monkeypatch.setattr("tarmac.tools.sort.verb.Runs", lambda path, _, reverse: collect.Runs(path, 300))

    assert run(urls, tmp_path / "2", 2) == expected


def test_a_naming_rule_that_cannot_be_sent_to_processes(tmp_path):
    urls = write_shards(tmp_path)

    result = run(urls, tmp_path / "2", 2, split_name=lambda name: tarmac.first_dot(name), max_samples=None)

    assert result[2] == 30


def test_a_damaged_shard_after_bad_samples(tmp_path):
    urls = write_shards(tmp_path, bad={5, 12})
    manifest = str(tmp_path / "all.json")
    tarmac.index(urls, manifest, progress=False)
    with open(urls[1], "r+b") as file:
        file.truncate(5000)

    results = [run(manifest, tmp_path / str(jobs), jobs, on_error="skip") for jobs in (1, 2)]

    assert results[0] == results[1]
    assert urls[1] in results[0][1]
