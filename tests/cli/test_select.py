"""`tarmac select`."""

from __future__ import annotations

import json
import sys

import pytest

import tarmac
from cli.running import run
from selecting.tables import rows, write
from tarmac.extras import MissingExtra


@pytest.fixture
def links(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write(
        tmp_path / "links.parquet", URL=["http://a/1", "http://b/2"], TEXT=["x", "y"], WIDTH=[10, 2000]
    )


def test_rows_are_written_and_counted(links, capsys):
    status, out, err = run(
        capsys,
        "select",
        links,
        "-o",
        "out",
        "--where",
        "WIDTH > 5",
        "--where",
        "WIDTH > 100",
        "--shuffle",
        "1",
    )
    assert (status, out) == (0, "")
    assert "where WIDTH > 100: removed 1 row" in err
    assert [row["WIDTH"] for row in rows("out")] == [2000]

    status, out, _ = run(
        capsys,
        "select",
        links,
        "-o",
        "out",
        "--where",
        "WIDTH > 5",
        "--where",
        "WIDTH > 100",
        "--shuffle",
        "1",
        "--json",
    )
    assert json.loads(out)["kept"] == 1


def test_names_and_samples(links, capsys):
    status, _, err = run(
        capsys,
        "select",
        links,
        "-o",
        "out",
        "--columns",
        "URL=url,TEXT",
        "--sample",
        "0.999",
        "--memory",
        "1GiB",
    )
    assert status == 0, err
    assert [*rows("out")[0]] == ["url", "TEXT"]


def test_statistics_need_no_output(links, capsys):
    status, out, err = run(capsys, "select", links, "--stats")
    assert status == 0
    assert "domains:" in out
    assert "2 rows, 2 selected" in err
    status, out, _ = run(capsys, "select", links, "--stats", "--json")
    assert json.loads(out)["profile"]["rows"] == 2


def test_errors_are_one_line_with_flags(links, capsys):
    status, _, err = run(capsys, "select", links)
    assert (status, "--output" in err) == (2, True)
    status, _, err = run(capsys, "select", links, "-o", "out", "--columns", "URI")
    assert (status, "did you mean URL" in err) == (2, True)


def test_without_duckdb(links, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtra, match=r"tarmac-data\[select\]"):
        tarmac.select(links, "out")
