"""Every verb returns a report with the same core, and every result can be read in a console and a notebook."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tarmac
from harness.shards import plain
from tools.shards import make


def same(sample):
    return sample


VERBS = {
    "pack": lambda: tarmac.pack("files", "out.tar", jobs=1),
    "copy": lambda: tarmac.copy("in-0.tar", "out.tar", jobs=1),
    "sort": lambda: tarmac.sort("in-0.tar", "out.tar", jobs=1),
    "map": lambda: tarmac.map("in-0.tar", "out.tar", same, jobs=1),
    "join": lambda: tarmac.join("in-0.tar", "in-0.tar", "out.tar", replace=True, jobs=1),
    "export": lambda: tarmac.export("in-0.tar", "out.jsonl", jobs=1),
    "index": lambda: tarmac.index("in-0.tar", "out.json", jobs=1),
    "check": lambda: tarmac.check("in-0.tar", jobs=1),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(tmp_path, 3)
    Path("files").mkdir()
    for number in range(3):
        Path(f"files/{number}.txt").write_text("1")


@pytest.mark.parametrize("verb", VERBS)
def test_the_core(verb):
    report = VERBS[verb]()
    assert isinstance(report, tarmac.Report)
    assert (report.verb, report.ok, report.exit_status) == (verb, True, 0)
    assert (report.units, report.done, report.kept, report.read, report.failed) == (1, 1, 0, 3, 0)
    facts = json.loads(json.dumps(report.to_dict()))
    assert facts.items() >= {"verb": verb, "units": 1, "done": 1, "kept": 0, "read": 3}.items()
    assert str(report).startswith(f"{verb}: ")
    assert "\n" not in str(report)
    assert "<table>" in report._repr_html_()


def test_what_a_dry_run_says():
    assert str(tarmac.copy("in-0.tar", "out.tar", dry_run=True)) == "copy: 1 to do"
    assert str(tarmac.index("in-0.tar", dry_run=True)) == "index: 1 to do, 0 up to date"


def test_the_exit_status_of_a_check(tmp_path):
    Path("cut.tar").write_bytes(plain([("a.txt", b"1"), ("b.txt", b"2")])[:1400])
    assert tarmac.check("cut.tar", jobs=1).exit_status == 1
    assert tarmac.check(["in-0.tar", "absent.tar"], jobs=1).exit_status == 3
    assert tarmac.check(["cut.tar", "absent.tar"], jobs=1).exit_status == 1
    assert tarmac.check("cut.tar", repair="clean/", jobs=1).exit_status == 1
    assert tarmac.check(["in-0.tar"] * 2, duplicates=True, jobs=1).exit_status == 1


def test_other_results():
    audit = tarmac.audit("in-0.tar", batch_size=2)
    assert repr(audit).startswith("<EpochAudit: samples 3, epoch 0, ")
    assert "batch_size" in audit._repr_html_()
    (view,) = tarmac.show("in-0.tar", 1)
    assert "text 0 of 0" in view._repr_html_()
    assert "<table>" in tarmac.stats("in-0.tar")._repr_html_()
