"""Select rows: filters, conditions, duplicates, joins, samples, orders and files."""

from __future__ import annotations

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.data import link_rows

import tarmac
from selecting.tables import contents, manifest, parts, removed, rows, write
from tarmac.errors import BadCondition, DecodeFailed, JobMismatch, NotFound, UrlError, UsageError

NAN = float("nan")


@pytest.fixture
def links(tmp_path):
    return write(
        tmp_path / "links.parquet",
        URL=["http://a/1", "http://b/2", "http://a/1", "http://c/3", None, "http://a/9"],
        TEXT=["one", "two", "one", "three", "four", "nine"],
        WIDTH=[100, 2000, 100, 5, None, 0],
        HEIGHT=[200.0, 3000.0, 200.0, NAN, 10.0, 10.0],
        LANGUAGE=["en", "DE ", "en", None, "", "fr"],
        similarity=[0.3, 0.2, 0.3, 6016.0, None, 0.9],
        hash=[1, 2, 3, 4, 5, None],
    )


def test_without_arguments_all_rows_stay_in_their_order(links, tmp_path):
    report = tarmac.select(links, tmp_path / "out")

    assert [row["hash"] for row in rows(tmp_path / "out")] == [1, 2, 3, 4, 5, None]
    assert pq.read_schema(parts(tmp_path / "out")[0]).equals(pq.read_schema(links))
    assert (report.read, report.written, report.left_out) == (6, 6, 0)


def test_each_condition_counts_the_rows_that_it_is_the_first_to_remove(links, tmp_path):
    report = tarmac.select(links, tmp_path / "out", min_size=50, where=["hash <> 2", "TEXT = 'one'"])

    assert [row["hash"] for row in rows(tmp_path / "out")] == [1, 3]
    steps = manifest(tmp_path / "out")["rows"]["removed"]
    assert [(step["filter"], step["removed"], step.get("unknown", 0)) for step in steps] == [
        ("min_size", 3, 3),  # a side that is null, NaN or 0
        ("where", 1, 0),
        ("where", 0, 0),
    ]
    assert report.removed == steps
    assert report.left_out == 4
    assert (
        "min_size 50 (WIDTH, HEIGHT): removed 3 rows, 3 of them because the value is missing"
        in report.remarks
    )


def test_missing_values_can_be_kept(links, tmp_path):
    tarmac.select(links, tmp_path / "out", min_size=150, nulls="keep")

    assert [row["hash"] for row in rows(tmp_path / "out")] == [2, 4, 5, None]


def test_a_condition_that_is_neither_true_nor_false_removes_the_row(links, tmp_path):
    tarmac.select(links, tmp_path / "out", where="hash > 3")

    assert [row["hash"] for row in rows(tmp_path / "out")] == [4, 5]
    assert manifest(tmp_path / "out")["rows"]["removed"][0] == {
        "filter": "where",
        "value": "hash > 3",
        "removed": 4,
        "unknown": 1,
    }


def test_languages_and_scores(links, tmp_path):
    tarmac.select(links, tmp_path / "a", lang="de,FR")
    assert [row["hash"] for row in rows(tmp_path / "a")] == [2, None]
    assert manifest(tmp_path / "a")["rows"]["removed"][0]["unknown"] == 2

    tarmac.select(links, tmp_path / "b", min_similarity=0.28)  # 6016 is no similarity
    assert [row["hash"] for row in rows(tmp_path / "b")] == [1, 3, None]


def test_swapped_sizes_make_no_difference(tmp_path):
    sizes = {"a": [300, 900, 2000], "b": [900, 100, 2100]}
    one = write(tmp_path / "one.parquet", url=["1", "2", "3"], width=sizes["a"], height=sizes["b"])
    other = write(tmp_path / "other.parquet", url=["1", "2", "3"], width=sizes["b"], height=sizes["a"])
    for number, table in enumerate((one, other)):
        tarmac.select(table, tmp_path / str(number), min_size=200, max_aspect=3)
        assert [row["url"] for row in rows(tmp_path / str(number))] == ["1", "3"]


SPELLINGS = {
    "laion": ("WIDTH", "HEIGHT", "LANGUAGE", "punsafe", "pwatermark", "similarity", "aesthetic", "TEXT"),
    "datacomp": (
        "original_width", "original_height", "lang", "nsfw_score", "watermark_score",
        "clip_b32_similarity_score", "aesthetic_score", "text",
    ),
    "coyo": (
        "width", "height", "language", "nsfw_score_opennsfw2", "watermark_score",
        "clip_similarity_vitb32", "aesthetic_score_laion_v2", "text",
    ),
}  # fmt: skip


@pytest.mark.parametrize("names", SPELLINGS.values(), ids=SPELLINGS)
def test_filters_know_the_names_of_columns(names, tmp_path):
    good = (1200, 1024, "en", 0.1, 0.2, 0.3, 6.0, "short")
    bad = (1000, 400, "de", 0.9, 0.9, 0.1, 3.0, "a long caption")
    values = [good, *((*good[:n], bad[n], *good[n + 1 :]) for n in range(8))]
    table = write(
        tmp_path / "t.parquet", id=list(range(9)), **dict(zip(names, zip(*values, strict=True), strict=True))
    )
    report = tarmac.select(
        table, tmp_path / "out", min_size=1001, max_aspect=2, lang="en", max_unsafe=0.5,
        max_watermark=0.8, min_similarity=0.28, min_aesthetic=5, max_text=10,
    )  # fmt: skip

    assert [row["id"] for row in rows(tmp_path / "out")] == [0]
    assert sum(removed(tmp_path / "out").values()) == 8
    matched = {name for step in report.removed for name in step["columns"]}
    assert matched == {*names}


def test_sizes_that_are_text_or_floats_are_numbers(tmp_path):
    table = write(
        tmp_path / "t.parquet", url=["a", "b", "c"], width=["100", "x", "300.0"], height=[1e3, 1e3, 1e3]
    )
    tarmac.select(table, tmp_path / "out", min_size=200)

    assert [row["url"] for row in rows(tmp_path / "out")] == ["c"]


def test_duplicates(links, tmp_path):
    tarmac.select(links, tmp_path / "kept", dedup="URL,TEXT")
    assert [row["hash"] for row in rows(tmp_path / "kept")] == [1, 2, 4, 5, None]
    assert removed(tmp_path / "kept") == {"dedup": 1}

    tarmac.select(links, tmp_path / "shuffled", dedup=["URL", "TEXT"], shuffle=3)
    assert {row["hash"] for row in rows(tmp_path / "shuffled")} == {1, 2, 4, 5, None}
    assert removed(tmp_path / "shuffled") == {"dedup": 1}


def test_columns_are_selected_and_renamed(links, tmp_path):
    tarmac.select(links, tmp_path / "out", columns={"url": "link", "HASH": "id"}, dedup="URL,TEXT", shuffle=1)

    table = pq.read_table(parts(tmp_path / "out")[0])
    assert table.column_names == ["link", "id"]
    assert len(table) == 5


def test_joins(links, tmp_path):
    scores = write(
        tmp_path / "scores.parquet",
        hash=[1, 2, 2, 4, None],
        punsafe=[0.1, 0.2, 0.9, None, 0.3],
        WIDTH=[200, 1, 1, 1, 1],
        HEIGHT=[100, 1, 1, 1, 1],
    )
    report = tarmac.select(links, tmp_path / "inner", join=scores, on="hash")
    assert [(row["hash"], row["WIDTH"], row["punsafe"]) for row in rows(tmp_path / "inner")] == [
        (1, 100, 0.1),
        (2, 2000, 0.2),
        (4, 5, None),
    ]
    assert removed(tmp_path / "inner") == {"join": 3}
    assert report.dirt == {"swapped_sizes": 1, "repeated_keys": 1}

    tarmac.select(links, tmp_path / "left", join=scores, on="hash", how="left", max_unsafe=0.5)
    assert [row["hash"] for row in rows(tmp_path / "left")] == [1, 2]
    assert manifest(tmp_path / "left")["rows"]["removed"][0]["unknown"] == 4


def test_a_sample_is_the_beginning_of_the_shuffled_rows(tmp_path):
    table = tmp_path / "t.parquet"
    pq.write_table(link_rows(2000, 0), table)
    tarmac.select(table, tmp_path / "all", shuffle=5)
    tarmac.select(table, tmp_path / "some", shuffle=5, sample=150)
    tarmac.select(table, tmp_path / "share", shuffle=5, sample=0.1)

    everything = rows(tmp_path / "all")
    assert rows(tmp_path / "some") == everything[:150]
    share = rows(tmp_path / "share")
    assert share == everything[: len(share)]
    assert 140 < len(share) < 260
    assert removed(tmp_path / "some") == {"sample": 1850}
    assert removed(tmp_path / "share") == {"sample": 2000 - len(share)}


def test_a_sample_in_the_order_of_the_tables(tmp_path):
    table = tmp_path / "t.parquet"
    pq.write_table(link_rows(500, 0), table)
    tarmac.select(table, tmp_path / "some", sample=50)
    tarmac.select(table, tmp_path / "shuffled", sample=50, shuffle=0)

    some, order = rows(tmp_path / "some"), [row["URL"] for row in pq.read_table(table).to_pylist()]
    assert some == sorted(some, key=lambda row: order.index(row["URL"]))
    assert sorted(map(str, some)) == sorted(map(str, rows(tmp_path / "shuffled")))


def test_seeds_differ_and_files_have_exact_numbers_of_rows(tmp_path):
    table = tmp_path / "t.parquet"
    pq.write_table(link_rows(1000, 0), table)
    for seed in (1, 2):
        tarmac.select(table, tmp_path / str(seed), shuffle=seed, rows_per_file=300)
        assert [len(pq.read_table(path)) for path in parts(tmp_path / str(seed))] == [300, 300, 300, 100]
    one, two = (rows(tmp_path / str(seed)) for seed in (1, 2))
    assert one != two
    assert sorted(map(str, one)) == sorted(map(str, two))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_formats(kind, suffix, tmp_path):
    texts = {
        "csv": b'URL,TEXT,WIDTH\nhttp://a,"x, y",100\nhttp://b,,2000\n',
        "tsv": b"URL\tTEXT\tWIDTH\nhttp://a\tx, y\t100\nhttp://b\t\t2000\n",
        "jsonl": b'{"URL": "http://a", "TEXT": "x, y", "WIDTH": 100}\n\n{"URL": "http://b", "WIDTH": 2000}\n',
    }
    path = tmp_path / f"t.{kind}{suffix}"
    if kind == "parquet":
        write(tmp_path / "plain", URL=["http://a", "http://b"], TEXT=["x, y", None], WIDTH=[100, 2000])
    content = (tmp_path / "plain").read_bytes() if kind == "parquet" else texts[kind]
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".zst": zstd}[suffix](content))
    tarmac.select(path, tmp_path / "out", where="WIDTH >= 100")

    assert rows(tmp_path / "out") == [
        {"URL": "http://a", "TEXT": "x, y", "WIDTH": 100},
        {"URL": "http://b", "TEXT": None, "WIDTH": 2000},
    ]


def zstd(content: bytes) -> bytes:
    return pa.compress(content, "zstd", asbytes=True)


def test_dirt_is_repaired_or_left_out_and_counted(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    long = b"x" * 60_000
    (folder / "a.csv").write_bytes(
        b"URL,TEXT,W\nhttp://a,bad \xff\xfe,1\nragged,line\nhttp://b," + long + b",2.5\n"
    )
    (folder / "b.jsonl").write_bytes(b'{"URL": "http://c", "TEXT": "\xff", "W": 3}\nnot json\n[1]\n')
    (folder / "c.parquet").write_bytes(b"")
    (folder / "d.csv").write_bytes(b"URL,TEXT,W\n")
    bad = pa.array([b"http://d", b"http://\xff"]).view(pa.string())
    pq.write_table(pa.table({"URL": bad, "TEXT": ["d", "e"], "W": [4, None]}), folder / "e.parquet")
    for number, seed in enumerate((None, 0)):
        report = tarmac.select(folder, tmp_path / str(number), shuffle=seed)

        results = sorted(rows(tmp_path / str(number)), key=lambda row: row["W"] or 9)
        assert [row["W"] for row in results] == [1, 2.5, 3, 4, None]
        assert results[0]["TEXT"] == "bad \ufffd\ufffd"
        assert len(results[1]["TEXT"]) == 60_000
        assert results[4]["URL"] == "http://\ufffd"
        assert report.dirt == {"empty_tables": 1, "unreadable_rows": 3, "repaired_values": 3}
        assert removed(tmp_path / str(number)) == {"unreadable": 3}
        assert (report.read, report.written, report.dropped) == (8, 5, 3)


def test_numbers_of_tables_may_have_different_types(tmp_path):
    write(tmp_path / "a.parquet", u=["a"], w=pa.array([1], pa.int32()), n=pa.nulls(1))
    write(tmp_path / "b.parquet", w=[2.5], u=["b"], n=["x"])
    tarmac.select([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "out")

    assert rows(tmp_path / "out") == [{"u": "a", "w": 1.0, "n": None}, {"u": "b", "w": 2.5, "n": "x"}]


def test_tables_without_a_common_column(tmp_path):
    write(tmp_path / "a.parquet", u=["a"])
    write(tmp_path / "b.parquet", v=["b"])
    with pytest.raises(UsageError, match="no column 'u'") as caught:
        tarmac.select([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "out")
    assert caught.value.hint is None


def test_other_types_pass_unchanged(tmp_path):
    values = {
        "u": ["a", "a"],
        "boxes": [[[0.5]], None],
        "facts": [{"a": 1, "b": "x"}, None],
        "n": pa.array([1, 2], pa.uint64()),
        "t": pa.array([1, 2], pa.timestamp("us", tz="UTC")),
        "d": pa.array([1, 2], pa.date32()),
        "b": [b"\xff", b""],
        "f": [True, None],
    }
    table = write(tmp_path / "t.parquet", **values)
    for number, options in enumerate(({}, {"shuffle": 1, "key": "u"})):
        tarmac.select(table, tmp_path / str(number), **options)
        assert rows(tmp_path / str(number)) == pq.read_table(table).to_pylist()


def test_running_again_does_nothing_and_another_selection_is_refused(links, tmp_path):
    tarmac.select(links, tmp_path / "out", min_size=50, shuffle=1)
    before = contents(tmp_path / "out"), manifest(tmp_path / "out")
    again = tarmac.select(links, tmp_path / "out", min_size=50, shuffle=1)
    assert (again.kept, again.done) == (1, 0)
    assert again.removed
    with pytest.raises(JobMismatch, match="min_size 50 -> 60"):
        tarmac.select(links, tmp_path / "out", min_size=60, shuffle=1)
    assert (contents(tmp_path / "out"), manifest(tmp_path / "out")) == before

    tarmac.select(links, tmp_path / "out", rows_per_file=2, overwrite=True)
    assert len(parts(tmp_path / "out")) == 3
    tarmac.select(links, tmp_path / "out", overwrite=True)
    assert len(parts(tmp_path / "out")) == 1


def test_changed_tables_are_refused(links, tmp_path):
    tarmac.select(links, tmp_path / "out")
    write(tmp_path / "links.parquet", URL=["http://new"], TEXT=["x"])
    with pytest.raises(JobMismatch, match=r"links\.parquet"):
        tarmac.select(links, tmp_path / "out")


def test_files_of_others_are_not_replaced(links, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-00007.parquet").write_bytes(b"mine")
    with pytest.raises(UsageError, match="was not written by this job"):
        tarmac.select(links, tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"where": "WIDHT > 3"}, BadCondition),
        ({"where": "WIDTH >> > 3"}, BadCondition),
        ({"where": "WIDTH"}, UsageError),
        ({"where": " "}, UsageError),
        ({"columns": "URL,TXT"}, UsageError),
        ({"columns": {"URL": "a", "TEXT": "A"}}, UsageError),
        ({"dedup": "link"}, UsageError),
        ({"max_unsafe": 0.5}, UsageError),
        ({"max_watermark": 3}, UsageError),
        ({"sample": 0}, UsageError),
        ({"sample": 1.5}, UsageError),
        ({"key": "HEIGHT", "shuffle": 1}, UsageError),
        ({"key": "TEXT", "dedup": "URL", "shuffle": 1}, UsageError),
        ({"on": "hash"}, UsageError),
        ({"nulls": "ignore"}, UsageError),
        ({"engine": "dask"}, UsageError),
        ({"memory": 1000}, UsageError),
        ({"rows_per_file": 0}, UsageError),
        ({"jobs": 0}, UsageError),
        ({"lang": ","}, UsageError),
        ({"where": "hash > 100"}, UsageError),
        ({"where": 3}, UsageError),
        ({"where": ["WIDTH > 3", 3]}, UsageError),
        ({"columns": 3}, UsageError),
        ({"columns": ["URL", 3]}, UsageError),
        ({"columns": {"URL": 3}}, UsageError),
        ({"dedup": 3}, UsageError),
        ({"key": 3, "shuffle": 1}, UsageError),
        ({"lang": ["en", None]}, UsageError),
        ({"min_size": "large"}, UsageError),
        ({"max_unsafe": NAN}, UsageError),
        ({"memory": "2GiB"}, UsageError),
        ({"jobs": "2"}, UsageError),
        ({"engine": None}, UsageError),
        ({"overwrite": "yes"}, UsageError),
    ],
)
def test_errors(options, error, links, tmp_path):
    with pytest.raises(error):
        tarmac.select(links, tmp_path / "out", **options)
    assert parts(tmp_path / "out") == []


def test_a_position_in_a_condition_of_several_lines(links, tmp_path):
    with pytest.raises(BadCondition, match="character 26"):
        tarmac.select(links, tmp_path / "out", where="HEIGHT > 3 -- tall\n  AND WIDHT > 3"[:25] + "WIDHT > 3")
    with pytest.raises(BadCondition, match="did you mean WIDTH"):
        tarmac.select(links, tmp_path / "out", where="HEIGHT > 3\n  AND WIDHT > 3")


def test_tables_that_do_not_belong_together(tmp_path):
    one = write(tmp_path / "a.parquet", u=["a"], w=[1])
    fewer = write(tmp_path / "b.parquet", u=["a"])
    other = write(tmp_path / "c.parquet", u=["a"], w=["x"])
    for more in (fewer, other):
        with pytest.raises(UsageError, match=more[-9:]):
            tarmac.select([one, more], tmp_path / "out")
    for name in ("missing.parquet", "missing"):
        with pytest.raises(NotFound, match=name):
            tarmac.select(tmp_path / name, tmp_path / "out")
    (tmp_path / "folder").mkdir()
    with pytest.raises(NotFound):
        tarmac.select(tmp_path / "folder", tmp_path / "out")
    (tmp_path / "x.tar").write_bytes(b"a shard")
    with pytest.raises(UrlError, match="extension"):
        tarmac.select(tmp_path / "x.tar", tmp_path / "out")
    (tmp_path / "not.parquet").write_bytes(b"PAR1, not really")
    with pytest.raises(DecodeFailed, match=r"not\.parquet"):
        tarmac.select(tmp_path / "not.parquet", tmp_path / "out")
    with pytest.raises(UsageError):
        tarmac.select(one)


def test_statistics_and_their_picture(links, tmp_path):
    from PIL import Image

    report = tarmac.select(links, stats=True, plot=tmp_path / "p.png", where="hash IS NOT NULL")
    profile = report.profile
    assert (profile.rows, report.read, report.written) == (5, 6, 0)
    assert profile.columns["URL"].nulls == 1
    assert profile.columns["WIDTH"].quantiles["1"] == 2000
    assert profile.columns["LANGUAGE"].top == {"en": 2, "": 1, "DE ": 1}
    assert profile.domains == {"a": 2, "b": 1, "c": 1}
    assert "domains:" in str(profile)
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.size[0] > 1000

    report = tarmac.select(links, tmp_path / "out", stats=True, dedup="URL,TEXT")
    assert report.profile.rows == report.written == 5
    assert report.to_dict()["profile"]["rows"] == 5
    with pytest.raises(UsageError):
        tarmac.select(links, plot=tmp_path / "p.gif")
