"""Missing indexes are built by the processes of a job, with the same result as by one."""

import pytest

import tarmac
from tarmac.errors import ArchiveError
from tarmac.indexing import build

pytestmark = pytest.mark.processes


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(build, "WORTHWHILE", 1)
    paths = [str(tmp_path / f"{number}.tar") for number in range(4)]
    for number, path in enumerate(paths):
        with tarmac.TarWriter(path) as writer:
            for sample in range(9):
                writer.write({"__key__": f"{number}{sample}", "cls": (sample * 7 + number) % 11})
    return paths


@pytest.fixture
def indexed_here(monkeypatch):
    """The shards that this process has indexed itself."""
    urls, index_shard = [], build.index_shard
    monkeypatch.setattr(
        build, "index_shard", lambda url, *args: urls.append(str(url)) or index_shard(url, *args)
    )
    return urls


VERBS = {
    "sort": lambda urls, output, jobs: tarmac.sort(
        urls, output, by="cls", max_samples=10, jobs=jobs, progress=False
    ),
    "copy": lambda urls, output, jobs: tarmac.copy(
        urls, output, shuffle=True, seed=1, max_samples=10, jobs=jobs, progress=False
    ),
}


@pytest.mark.parametrize("verb", ["sort", "copy"])
def test_the_processes_of_a_verb_index(verb, shards, indexed_here, tmp_path, monkeypatch):
    results = []
    for jobs in (1, 2, 3):
        monkeypatch.setenv("TARMAC_HOME", str(tmp_path / f"home-{jobs}"))
        indexed_here.clear()
        VERBS[verb](shards, f"{tmp_path}/{jobs}/{{i:03d}}.tar", jobs)
        assert indexed_here == (shards if jobs == 1 else [])
        assert not list(tmp_path.glob("*.arrow"))  # inputs may belong to others
        results.append({path.name: path.read_bytes() for path in (tmp_path / str(jobs)).glob("*.tar")})

    assert len(results[0]) == 4
    assert results[0] == results[1] == results[2]


def test_an_error_is_that_of_the_first_bad_shard(shards, tmp_path):
    for path in shards[1:3]:
        with open(path, "r+b") as file:
            file.truncate(700)
    messages = set()
    for jobs in (1, 2):
        with pytest.raises(ArchiveError) as error:
            tarmac.sort(shards, f"{tmp_path}/{jobs}/{{i:03d}}.tar", jobs=jobs, progress=False)
        messages.add(str(error.value))

    assert len(messages) == 1
    assert shards[1] in messages.pop()


def test_a_naming_rule_that_cannot_be_sent_to_processes(shards, tmp_path):
    def rule(name):
        return tarmac.first_dot(name)

    report = tarmac.sort(shards, str(tmp_path / "out.tar"), jobs=2, split_name=rule, progress=False)

    assert report.written == 36


def test_few_bytes_are_not_worth_a_process(shards, indexed_here, tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    counted, index_shard = [], build.index_shard
    monkeypatch.setattr(
        build, "index_shard", lambda url, *args: counted.append(url) or index_shard(url, *args)
    )
    tarmac.sort(shards, str(tmp_path / "out.tar"), jobs=2, progress=False)

    assert len(counted) == 4
