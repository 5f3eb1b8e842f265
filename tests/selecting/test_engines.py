"""DuckDB and Spark write the same bytes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.data import link_rows

import tarmac
from harness import required, rounds
from harness.clusters import spark_cluster
from harness.memory import peak, reset_peak
from selecting.tables import contents, digest, digests, manifest, removed, rows, write
from tarmac.errors import BadCondition, EngineError, UsageError
from tarmac.jobs.engines import make_engine

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.filterwarnings("ignore::ResourceWarning")]
GIGABYTE = 1 << 30
PAGE = Path(__file__).parents[2] / "docs" / "select.md"


@pytest.fixture(scope="module")
def spark():
    """The active session of the program, which is faster than one for each test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        with make_engine("spark", 2).context():
            yield "spark"


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Three tables of links, some of which occur again, with scores in another table."""
    folder = tmp_path_factory.mktemp("tables")
    every = link_rows(3000, 1)
    every = pa.concat_tables([every, every.slice(0, 200)])
    every = every.append_column("hash", pa.array(range(len(every)), pa.int64()))
    boxes = [[0.1 * n] if n % 3 else None for n in range(len(every))]
    every = every.append_column("boxes", pa.array(boxes, pa.list_(pa.float64())))
    for number in range(3):
        part = every.slice(number * 1100, 1100)
        if number == 1:  # float sizes, and columns in another order
            part = part.set_column(4, "WIDTH", part["WIDTH"].cast(pa.float64())).select(
                part.column_names[::-1]
            )
        pq.write_table(part, folder / f"t{number}.parquet")
    scores = {"HASH": [*range(0, 4000, 2), 10], "aesthetic": [n % 10 / 1.0 for n in range(2000)] + [None]}
    pq.write_table(pa.table(scores), folder / "scores.parquet")
    return folder


SELECTIONS = {
    "shuffled": {"shuffle": 3, "min_size": 300, "max_unsafe": 0.8, "where": "LANGUAGE <> 'fr'"},
    "duplicates": {"shuffle": 3, "dedup": "URL,TEXT", "sample": 500, "rows_per_file": 77},
    "in order": {"dedup": "URL,TEXT", "max_aspect": 2.5, "lang": "en,de"},
    "a sample in order": {"sample": 100},
    "a share": {"sample": 0.2, "shuffle": 1, "columns": {"URL": "link", "WIDTH": "w"}},
    "joined": {"join": "scores.parquet", "on": "hash", "min_aesthetic": 5, "shuffle": 0},
    "left": {"join": "scores.parquet", "on": "hash", "how": "left", "min_aesthetic": 5, "nulls": "keep"},
    "by a key": {"key": "LANGUAGE", "shuffle": 9},
}


@pytest.mark.parametrize("options", SELECTIONS.values(), ids=SELECTIONS)
def test_the_same_rows_in_the_same_order(options, spark, tables, tmp_path):
    names = sorted(tables.glob("t*.parquet"))
    if "join" in options:
        options = options | {"join": tables / options["join"]}
    for engine in ("duckdb", spark):
        tarmac.select(names, tmp_path / engine, engine=engine, **options)
    one, other = (manifest(tmp_path / engine) for engine in ("duckdb", spark))
    assert one == other
    assert contents(tmp_path / "duckdb") == contents(tmp_path / spark)
    assert removed(tmp_path / spark) == removed(tmp_path / "duckdb")


def test_dirt(spark, tmp_path):
    (tmp_path / "a.csv").write_bytes(
        b'URL,TEXT,W\nhttp://a,bad \xff\xfe,1\nragged,line\nhttp://b,"it\'s",nan\n'
    )
    bad = pa.array([b"http://d", b"http://\xff\xe2\x28\xa1"]).view(pa.string())
    pq.write_table(pa.table({"URL": bad, "TEXT": ["\\", None], "W": [4, None]}), tmp_path / "b.parquet")
    for engine in ("duckdb", spark):
        tarmac.select(
            [tmp_path / "a.csv", tmp_path / "b.parquet"], tmp_path / engine, engine=engine, shuffle=1
        )
    assert contents(tmp_path / "duckdb") == contents(tmp_path / spark)
    assert manifest(tmp_path / spark)["dirt"] == {"unreadable_rows": 1, "repaired_values": 2}
    assert len(rows(tmp_path / spark)) == 4


def test_errors_of_spark(spark, tables, tmp_path):
    table = tables / "t0.parquet"
    with pytest.raises(BadCondition, match="did you mean WIDTH"):
        tarmac.select(table, tmp_path / "out", engine=spark, where="HEIGHT > 1 AND WIDHT > 3")
    with pytest.raises(BadCondition, match="character 9"):
        tarmac.select(table, tmp_path / "out", engine=spark, where="WIDTH > > 3")
    with pytest.raises(UsageError):
        tarmac.select(table, tmp_path / "out", engine=spark, where="WIDTH")
    for where in ("count(*) > 3", "WIDTH > 3) OR (WIDTH < 9"):
        with pytest.raises(BadCondition):
            tarmac.select(table, tmp_path / "out", engine=spark, where=where)
    with pytest.raises(EngineError):
        tarmac.select(table, tmp_path / "out", engine=spark, where="raise_error('no') IS NULL")


def test_files_with_odd_names(spark, tmp_path):
    """Engines would read names as patterns or ignore them, and take values from the names of directories."""
    folder = tmp_path / "LANGUAGE=xx" / "größe [1] {a,b}?"
    folder.mkdir(parents=True)
    for number, name in enumerate(("a*.parquet", "../_b.parquet", "c 100%.parquet", "d\\.parquet")):
        write(folder / name, URL=[str(number)], LANGUAGE=["en"])
    (folder / "e.csv").write_text("URL,LANGUAGE\nlink,en\n")
    for engine in ("duckdb", spark):
        for extra in ({}, {"shuffle": 1}):
            output = tmp_path / f"out {engine} [{len(extra)}]"
            tarmac.select([folder, folder.parent / "_b.parquet"], output, engine=engine, **extra)
            assert sorted(row["URL"] for row in rows(output)) == ["0", "1", "2", "3", "link"]
            assert {row["LANGUAGE"] for row in rows(output)} == {"en"}


def test_the_session_of_another_cluster_is_not_used(spark, tables, tmp_path):
    """The program has a session on this machine, and asks for a cluster."""
    with pytest.raises(UsageError, match="local"):
        tarmac.select(tables / "t0.parquet", tmp_path / "out", engine="spark://127.0.0.1:7077")


def test_another_engine_continues(spark, tables, tmp_path):
    table = tables / "t0.parquet"
    tarmac.select(table, tmp_path / "out", shuffle=1)
    assert tarmac.select(table, tmp_path / "out", shuffle=1, engine=spark).kept == 1


def test_the_program_for_spark_that_one_command_replaces(spark, tmp_path, monkeypatch):
    """The program of docs/select.md and the command below it keep the same rows."""
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import rand

    blocks = re.findall(r"```(python|bash)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (_, tables), (_, program), (kind, command), *_ = blocks
    assert "orderBy(rand())" in program
    assert (kind, command[:14]) == ("bash", "tarmac select ")
    monkeypatch.chdir(tmp_path)
    exec(tables, {})
    subprocess.run([sys.executable, "-m", *shlex.split(command)], check=True, capture_output=True)
    Path("laion2B_big").rename("of tarmac")
    exec(
        program.replace('"laion2B', f'"{tmp_path}/laion2B'),
        {"spark": SparkSession.getActiveSession(), "rand": rand},
    )
    expected = pq.read_table("laion2B_big").to_pylist()
    assert len(expected) == 369
    assert sorted(map(str, rows("of tarmac"))) == sorted(map(str, expected))
    assert rows("of tarmac") != sorted(expected, key=lambda row: int(row["TEXT"].split()[1]))


@pytest.mark.heavy
def test_a_million_rows(spark, tmp_path, capsys):
    """Ten million in `make torture`: shuffled in less memory than is promised, and in the same order by Spark."""
    count = min(rounds(1_000_000), 10_000_000)
    for number in range(10):
        pq.write_table(link_rows(count // 10, number), tmp_path / f"t{number}.parquet")
    again = pq.read_table(tmp_path / "t3.parquet").slice(0, count // 100)
    pq.write_table(again, tmp_path / "t10.parquet")
    names = sorted(tmp_path.glob("t*.parquet"))
    options = {"shuffle": 7, "dedup": "URL,TEXT", "rows_per_file": 300_000}
    begin = reset_peak()
    tarmac.select(names, tmp_path / "duckdb", memory=GIGABYTE, **options)
    used = peak() - begin
    with capsys.disabled():
        print(f"\n{count:,} rows: {used >> 20} MiB more than before, of 1,024")
    assert used < GIGABYTE
    tarmac.select(names[::-1], tmp_path / "spark", engine=spark, **options)
    ours, theirs = digests(tmp_path / "duckdb"), digests(tmp_path / "spark")
    with capsys.disabled():
        for engine, files in (("DuckDB", ours), ("Spark", theirs)):
            print(f"{engine}: {len(files)} files, SHA-256 {digest(*files.values())}")
    assert ours == theirs
    facts = manifest(tmp_path / "spark")
    assert (facts["rows"]["in"], facts["rows"]["out"]) == (count + count // 100, count)
    assert [step["removed"] for step in facts["rows"]["removed"]] == [count // 100]
    assert [file["rows"] for file in facts["files"]] == [300_000] * (count // 300_000) + [100_000]


@pytest.mark.heavy
def test_a_cluster(tables, tmp_path, monkeypatch):
    """A real master and worker: the session of the other tests must not be active, so it runs in a process."""
    where = "URL RLIKE '^https:'"  # which DuckDB does not understand
    code = (
        "import sys, tarmac as t; t.select(*sys.argv[1:3], engine=sys.argv[3], where=sys.argv[4], shuffle=1)"
    )
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    table = str(tables / "t0.parquet")
    with required(spark_cluster()) as address:
        command = [sys.executable, "-c", code, table, str(tmp_path / "spark"), address, where]
        subprocess.run(command, check=True, capture_output=True)
    tarmac.select(table, tmp_path / "duckdb", shuffle=1)
    assert contents(tmp_path / "duckdb") == contents(tmp_path / "spark")
