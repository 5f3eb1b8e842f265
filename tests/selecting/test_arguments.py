"""What users try: each argument has an effect, or an error says why not."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.data import link_rows

import tarmac
from cli.running import run
from selecting.tables import contents, manifest, parts, removed, rows, write
from tarmac.errors import BadCondition, JobMismatch, ObjectChanged, UsageError


@pytest.fixture
def links(tmp_path):
    return write(
        tmp_path / "links.parquet",
        URL=[f"http://a/{n}" for n in range(20)],
        TEXT=[f"text {n % 4}" for n in range(20)],
        WIDTH=list(range(0, 2000, 100)),
        LANGUAGE=["en", "de"] * 10,
    )


COMMAND = """
select in -o out --columns URL=link,TEXT,hash,aesthetic --dedup URL,TEXT --join scores.parquet --on hash --shuffle 5
--sample 0.9 --where "LENGTH(TEXT) > 5" --rows-per-file 30 --engine duckdb --min-size 200 --max-aspect 6 --lang en,de
--max-unsafe 0.9 --max-watermark 0.9 --min-similarity 0.1 --min-aesthetic 1 --max-text 100 --nulls keep --how left
--key URL --memory 1GiB --jobs 1 --tmp tmp --overwrite --stats --plot profile.png --storage retries=1
"""


def test_every_flag_is_an_argument(tmp_path, monkeypatch, capsys):
    """The same selection with all flags, and with all arguments; each of those that remove rows has removed some."""
    import shlex

    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "tmp").mkdir()
    every = link_rows(400, 0)
    every = pa.concat_tables([every, every.slice(0, 50)])
    every = every.append_column("hash", pa.array(range(len(every)), pa.int64()))
    pq.write_table(every, "in/a.parquet")
    scores = {"hash": list(range(0, 450, 3)), "aesthetic": [n % 10 for n in range(150)]}
    pq.write_table(pa.table(scores), "scores.parquet")
    status, out, err = run(capsys, *shlex.split(COMMAND))
    assert status == 0, err
    assert "domains:" not in out  # the column URL is called link
    assert (tmp_path / "profile.png").stat().st_size > 1000
    report = tarmac.select(
        "in", "py", columns={"URL": "link", "TEXT": "TEXT", "hash": "hash", "aesthetic": "aesthetic"},
        dedup=["URL", "TEXT"], join="scores.parquet", on="hash", how="left", shuffle=5, sample=0.9,
        where="LENGTH(TEXT) > 5", rows_per_file=30, min_size=200, max_aspect=6, lang=["en", "de"], max_unsafe=0.9,
        max_watermark=0.9, min_similarity=0.1, min_aesthetic=1, max_text=100, nulls="keep", key="URL", stats=True,
    )  # fmt: skip
    assert contents("out") == contents("py")
    assert [*manifest("out")["columns"]] == ["link", "TEXT", "hash", "aesthetic"]
    assert report.profile.rows == report.written == len(rows("out"))
    counts = removed("out")
    assert {name for name, count in counts.items() if count} == {
        "min_size", "max_aspect", "lang", "max_unsafe", "max_watermark", "min_similarity", "min_aesthetic",
        "sample", "dedup",
    }  # fmt: skip
    assert [len(pq.read_table(path)) for path in parts("out")[:-1]] == [30] * (len(parts("out")) - 1)


def test_the_key_decides_the_order(links, tmp_path):
    tarmac.select(links, tmp_path / "out", key="TEXT", shuffle=3)

    def position(row):
        return hashlib.md5(f"3/{row['TEXT']}".encode()).hexdigest(), row["URL"]

    results = rows(tmp_path / "out")
    assert results == sorted(results, key=position) != sorted(results, key=lambda row: row["URL"])


def test_threads_and_memory_are_those_asked_for(links, tmp_path, monkeypatch):
    import duckdb

    connect, seen = duckdb.connect, []
    monkeypatch.setattr(
        duckdb, "connect", lambda *each, config: seen.append(config) or connect(*each, config=config)
    )
    tarmac.select(links, tmp_path / "out", jobs=3, memory=1 << 30, tmp=tmp_path)
    assert (seen[0]["threads"], seen[0]["memory_limit"]) == (3, "512MiB")
    assert seen[0]["temp_directory"].startswith(f"{tmp_path}/tarmac-select-")


@pytest.mark.parametrize(
    "name", ["with space", 'quo"te', "back`tick", "größe", "file_index", "a,b", "semi;colon", " x"]
)
@pytest.mark.parametrize("extra", [{}, {"shuffle": 1}])
def test_columns_with_odd_names(name, extra, tmp_path):
    table = write(tmp_path / "t.parquet", **{"id": [1, 2, 3, 4], name: [5, 5, 7, 9], "other": [1, 1, 1, 1]})
    quoted = name.replace('"', '""')
    tarmac.select(table, tmp_path / "out", columns=["id"], where=f'"{quoted}" < 8', dedup=[name], **extra)
    assert {row["id"] for row in rows(tmp_path / "out")} in ({1, 3}, {2, 3})
    tarmac.select(table, tmp_path / "where", columns=["id"], where=f'"{quoted}" < 8')
    assert [row["id"] for row in rows(tmp_path / "where")] == [1, 2, 3]
    tarmac.select(table, tmp_path / "all", columns={name: "new"})
    assert [row["new"] for row in rows(tmp_path / "all")] == [5, 5, 7, 9]


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"shuffle": False},
        {"shuffle": "0"},
        {"sample": True},
        {"sample": -1},
        {"sample": float("nan")},
        {"sample": "10%"},
        {"columns": ""},
        {"columns": []},
        {"rows_per_file": -1},
        {"rows_per_file": 2.5},
        {"where": "count(*) > 3"},
        {"where": "row_number() over () > 3"},
        {"where": "WIDTH > 3) OR (WIDTH < 9"},
        {"where": "WIDTH > 3 ORDER BY 1"},
        {"where": "WIDTH > 3; DROP TABLE x"},
        {"where": "TEXT > 3"},
        {"where": 'LANGUAGE = "en"'},
        {"where": "WIDTH > 3 AN TEXT = 'x'"},
        {"plot": "x.gif", "stats": True},
    ],
)
def test_mistakes_are_errors_before_anything_is_written(options, links, tmp_path):
    with pytest.raises((UsageError, BadCondition)):
        tarmac.select(links, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists() or parts(tmp_path / "out") == []


def test_numbers_of_numpy(links, tmp_path):
    report = tarmac.select(
        links, tmp_path / "out", sample=np.int64(5), shuffle=np.int32(3), rows_per_file=np.int64(2)
    )
    assert (report.written, len(parts(tmp_path / "out"))) == (5, 3)
    again = tarmac.select(links, tmp_path / "out", sample=5, shuffle=3, rows_per_file=2)
    assert again.kept == 1


def test_a_condition_may_end_with_a_semicolon(links, tmp_path):
    assert tarmac.select(links, tmp_path / "out", where="WIDTH >= 1900;\n").written == 1


def test_a_condition_that_changes_is_an_error(tmp_path):
    table = tmp_path / "t.parquet"
    pq.write_table(link_rows(5000, 0), table)
    for number, extra in enumerate(({}, {"shuffle": 1}, {"dedup": "URL"})):
        output = tmp_path
        with pytest.raises(ObjectChanged, match="random"):
            for attempt in range(5):  # the numbers of rows may be equal by chance
                output = tmp_path / f"{number}-{attempt}"
                tarmac.select(table, output, where="random() < 0.5", **extra)
        assert not (output / "manifest.json").exists()


def test_an_output_in_the_directory_of_the_tables(links, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        report = tarmac.select(".", "out", where="WIDTH > 1000")
        assert (report.read, report.written) == (20, 9)
    with pytest.raises(UsageError, match="output"):
        tarmac.select("out", "out", where="WIDTH > 1500", overwrite=True)
    with pytest.raises(UsageError, match="output"):
        tarmac.select(["links.parquet", "out/part-00000.parquet"], tmp_path / "out", overwrite=True)
    assert len(rows("out")) == 9


def test_an_output_that_is_a_file(links, tmp_path):
    (tmp_path / "out").write_text("mine")
    for output in (tmp_path / "out", f"{tmp_path}/out/"):
        with pytest.raises(UsageError, match="it is a file"):
            tarmac.select(links, output)
    assert (tmp_path / "out").read_text() == "mine"


def test_statistics_are_of_the_selected_rows(links, tmp_path):
    for extra in (
        {"dedup": "TEXT"},
        {"sample": 3},
        {"dedup": "TEXT", "sample": 3, "shuffle": 1},
        {"sample": 0.5},
    ):
        report = tarmac.select(links, stats=True, where="WIDTH > 200", **extra)
        again = tarmac.select(links, tmp_path / str(extra), where="WIDTH > 200", **extra)
        assert report.profile.rows == again.written
        assert report.removed == again.removed
        assert (report.read, report.left_out) == (again.read, again.left_out)
        if "sample" in extra and "dedup" not in extra:
            widths = [row["WIDTH"] for row in rows(tmp_path / str(extra))]
            assert report.profile.columns["WIDTH"].quantiles["1"] == max(widths)
    with pytest.raises(UsageError):
        tarmac.select(links, stats=True, engine="spark")


def test_tables_without_rows(links, tmp_path):
    empty = tmp_path / "empty.parquet"
    pq.write_table(pq.read_table(links).slice(0, 0), empty)
    with pytest.raises(UsageError, match="no rows are left of 0"):
        tarmac.select(empty, tmp_path / "out")
    assert tarmac.select([empty, links], tmp_path / "out").written == 20
    assert tarmac.select(empty, stats=True, plot=tmp_path / "p.png").profile.rows == 0


def test_numbers_that_are_text(tmp_path):
    """A column with one bad cell is text: conditions say so, and filters by name compare its numbers."""
    (tmp_path / "a.csv").write_text(
        'url,width,height,zip\na,"1,024",900,007\nb,2000,900,010\nc,300,900,011\n'
    )
    with pytest.raises(BadCondition, match="compares text"):
        tarmac.select(tmp_path / "a.csv", tmp_path / "out", where="width > 1000")
    report = tarmac.select(tmp_path / "a.csv", tmp_path / "out", min_size=500)
    assert (report.removed[0]["removed"], report.removed[0]["unknown"]) == (2, 1)
    assert rows(tmp_path / "out") == [{"url": "b", "width": "2000", "height": 900, "zip": "010"}]


def test_columns_that_occur_twice(tmp_path):
    good = write(tmp_path / "a.parquet", url=["a"], n=[1])
    (tmp_path / "b.csv").write_text("url,n,n\nb,2,3\n")
    (tmp_path / "c.csv").write_text("url,n,N\nb,2,3\n")
    for tables in (["b.csv"], ["c.csv"], ["a.parquet", "b.csv"], ["a.parquet", "c.csv"]):
        with pytest.raises(UsageError, match=tables[-1]):
            tarmac.select([tmp_path / each for each in tables], tmp_path / "out")
    other = write(tmp_path / "other.parquet", url=["a"], N=[5], more=[7])
    tarmac.select(good, tmp_path / "joined", join=other, on="url", where="n = 1")
    assert rows(tmp_path / "joined") == [{"url": "a", "n": 1, "more": 7}]


def test_a_second_run_with_other_files_is_refused(links, tmp_path):
    tarmac.select(links, tmp_path / "out", rows_per_file=5)
    with pytest.raises(JobMismatch, match="rows_per_file"):
        tarmac.select(links, tmp_path / "out", rows_per_file=6)
