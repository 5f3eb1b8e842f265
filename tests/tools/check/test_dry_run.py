"""A dry run checks and reports, and writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import tarmac
from cli.running import numbers
from harness.shards import plain
from tarmac.cli import main
from tools.shards import make


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(tmp_path, 3)
    Path("cut.tar").write_bytes(plain([("a.txt", b"1"), ("b.txt", b"2")])[:1400])
    return tmp_path


def tree() -> list[str]:
    return sorted(map(str, Path().rglob("*")))


def contents(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_no_copies_and_no_ledgers():
    before = tree()
    report = tarmac.check("*.tar", repair="clean/", losses="lost", ledger="ledger", dry_run=True, jobs=1)
    assert tree() == before
    assert [shard.url for shard in report.bad] == ["cut.tar"]
    assert report.notes == {"to_repair": 1}
    assert "1 to repair" in str(report)
    assert (report.outputs, report.exit_status) == ([], 1)


def test_an_existing_ledger_is_read_and_not_written():
    tarmac.check("in-0.tar", ledger="ledger", jobs=1)
    before = contents("ledger")
    report = tarmac.check("*.tar", ledger="ledger", dry_run=True, jobs=1)
    assert (report.kept, report.done) == (1, 1)
    assert contents("ledger") == before


def test_the_command(capsys):
    before = tree()
    with pytest.raises(SystemExit) as done:
        main(["check", "*.tar", "--repair", "-o", "clean/", "--dry-run", "-j", "1"])
    assert done.value.code == 1
    assert numbers(capsys.readouterr().err.splitlines()[-1]) == [2, 3, 1, 1]
    assert tree() == before
