"""Hints of select."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tarmac
from harness.hints import follows, hinted
from selecting.tables import write
from tarmac.errors import UsageError
from tarmac.limits import GIB, MIB
from tarmac.selecting import ties
from tarmac.tools import workdir

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def links(tmp_path):
    return write(
        tmp_path / "links.parquet", URL=["a", "b", "c"], TEXT=["x", "y", "z"], quality=[0.1, 0.2, 0.9]
    )


@follows("`where`, with the name of your column.")
def test_columns_with_other_names(links, tmp_path):
    with hinted("`where`, with the name of your column."):
        tarmac.select(links, tmp_path / "out", min_aesthetic=0.5)
    assert tarmac.select(links, tmp_path / "out", where="quality >= 0.5").written == 1


@follows("one of {}.")
def test_columns_that_do_not_exist(links, tmp_path):
    with hinted("one of {}.", tarmac.errors.UsageError):
        tarmac.select(links, tmp_path / "out", columns="URL,caption")
    with hinted("one of {}.", tarmac.errors.BadCondition):
        tarmac.select(links, tmp_path / "out", where="score > 1")
    assert tarmac.select(links, tmp_path / "out", columns="URL,TEXT").written == 3


@follows(
    "`columns`, with those that all tables have: {}.",
    "`columns` without {}, or select from each group of tables by itself.",
)
def test_tables_with_different_columns(links, tmp_path):
    fewer = write(tmp_path / "fewer.parquet", URL=["d"], TEXT=["w"])
    other = write(tmp_path / "other.parquet", URL=["e"], TEXT=["v"], quality=["good"])
    with hinted("`columns`, with those that all tables have: {}."):
        tarmac.select([links, fewer], tmp_path / "out")
    with hinted("`columns` without {}, or select from each group of tables by itself."):
        tarmac.select([links, other], tmp_path / "out")
    assert tarmac.select([links, fewer, other], tmp_path / "out", columns="URL,TEXT").written == 5
    assert tarmac.select([other], tmp_path / "apart").written == 1


@follows("only columns that `dedup` names.")
def test_keys_of_duplicates(links, tmp_path):
    with hinted("only columns that `dedup` names."):
        tarmac.select(links, tmp_path / "out", dedup="URL", key="TEXT", shuffle=0)
    assert tarmac.select(links, tmp_path / "out", dedup="URL,TEXT", key="TEXT", shuffle=0).written == 3


@follows("columns that tell rows apart, such as URL.")
def test_keys_that_many_rows_share(tmp_path, monkeypatch):
    monkeypatch.setattr(ties, "MOST", 10)
    table = write(tmp_path / "t.parquet", URL=[str(n) for n in range(50)], lang=["en"] * 50)
    with hinted("columns that tell rows apart, such as URL."):
        tarmac.select(table, tmp_path / "out", key="lang", shuffle=0)
    assert tarmac.select(table, tmp_path / "out", key="URL", shuffle=0).written == 50


@follows("`stats` shows what the columns contain.")
def test_no_rows_left(links, tmp_path):
    with hinted("`stats` shows what the columns contain."):
        tarmac.select(links, tmp_path / "out", where="quality > 1")
    report = tarmac.select(links, stats=True)
    assert report.profile.columns["quality"].quantiles["1"] == 0.9


@follows("{}/, a directory.")
def test_a_table_as_output(links, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with hinted("{}/, a directory.", UsageError) as caught:
        tarmac.select(links, "selected.parquet")
    tarmac.select(links, caught.value.hint.partition(",")[0])
    assert (tmp_path / "selected" / "part-00000.parquet").exists()


@follows("tarmac show, for shards.")
def test_shards_are_not_tables(tmp_path):
    with tarmac.TarWriter(tmp_path / "x.tar") as shard:
        shard.write({"__key__": "a", "txt": "hello"})
    with hinted("tarmac show, for shards."):
        tarmac.select(tmp_path / "x.tar", tmp_path / "out")
    assert [sample.key for sample in tarmac.show(tmp_path / "x.tar")] == ["a"]


@pytest.mark.long
@follows("a larger `memory`, or fewer `jobs`.")
def test_too_little_memory(tmp_path):
    """A single list of numbers is larger than the memory."""
    table = tmp_path / "t.parquet"
    numbers = pa.array([list(range(12 << 20))], pa.list_(pa.int64()))
    pq.write_table(pa.table({"URL": ["a"], "numbers": numbers}), table)
    with hinted("a larger `memory`, or fewer `jobs`."):
        tarmac.select(table, tmp_path / "out", shuffle=0, memory=256 * MIB)
    assert tarmac.select(table, tmp_path / "out", shuffle=0, memory=2 * GIB, jobs=1).written == 1


def test_a_directory_for_working_files(links, tmp_path):
    with hinted(workdir.HINT):
        tarmac.select(links, tmp_path / "out", tmp=tmp_path / "missing")
    assert tarmac.select(links, tmp_path / "out", tmp=tmp_path).written == 3


@follows("single quotes, if it is text: '{}'.")
def test_text_in_double_quotes(links, tmp_path):
    with hinted("single quotes, if it is text: '{}'."):
        tarmac.select(links, tmp_path / "out", where='TEXT = "y"')
    assert tarmac.select(links, tmp_path / "out", where="TEXT = 'y'").written == 1


@follows("TRY_CAST(column AS DOUBLE), for numbers in a column of text; `stats` shows the types.")
def test_numbers_in_a_column_of_text(tmp_path):
    table = write(tmp_path / "t.parquet", URL=["a", "b", "c"], WIDTH=["100", "2000", "?"])
    with hinted("TRY_CAST(column AS DOUBLE), for numbers in a column of text; `stats` shows the types."):
        tarmac.select(table, tmp_path / "out", where="WIDTH > 1000")
    assert tarmac.select(table, stats=True).profile.columns["WIDTH"].type == "string"
    assert tarmac.select(table, tmp_path / "out", where="TRY_CAST(WIDTH AS DOUBLE) > 1000").written == 1


@follows("`sample`, for a random part of the rows.")
def test_random_conditions(tmp_path):
    table = write(tmp_path / "t.parquet", URL=[str(n) for n in range(3000)])
    with hinted("`sample`, for a random part of the rows."):
        for attempt in range(5):  # the numbers of rows may be equal by chance
            tarmac.select(table, tmp_path / f"random-{attempt}", where="random() < 0.5")
    assert 1000 < tarmac.select(table, tmp_path / "out", sample=0.5).written < 2000


@follows("`output`, or leave out `engine`.")
def test_statistics_of_another_engine(links, tmp_path):
    with hinted("`output`, or leave out `engine`."):
        tarmac.select(links, stats=True, engine="spark")
    assert tarmac.select(links, stats=True).profile.rows == 3
    assert tarmac.select(links, tmp_path / "out", stats=True).profile.rows == 3


@follows("a column of text or integers among them; or no `shuffle`.")
def test_duplicates_without_a_key(tmp_path):
    table = write(tmp_path / "t.parquet", URL=["a", "b", "b"], boxes=[[1.0], [1.0], [1.0]])
    with hinted("a column of text or integers among them; or no `shuffle`."):
        tarmac.select(table, tmp_path / "out", dedup="boxes", shuffle=0)
    assert tarmac.select(table, tmp_path / "out", dedup="boxes,URL", shuffle=0).written == 2
    assert tarmac.select(table, tmp_path / "other", dedup="boxes").written == 1
