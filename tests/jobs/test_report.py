"""The report of a verb: one line for people, a table for notebooks, JSON for programs."""

from __future__ import annotations

import json

import tarmac
from tarmac.jobs.task import Outcome


def test_outcomes_add_up():
    report = tarmac.Report("copy", units=2, done=2)
    for number in range(2):
        outcome = Outcome(10, 8, 1, 1, bytes=100, outputs={f"{number}.tar": 100}, errors=[f"e{number}"])
        report.add(outcome)
        report.outcomes.append(outcome)
    assert (report.read, report.written, report.failed, report.dropped, report.bytes) == (20, 16, 2, 2, 200)
    assert (report.errors, report.outputs, report.ok) == (["e0", "e1"], ["0.tar", "1.tar"], False)


def test_one_line_for_people():
    assert (
        str(tarmac.Report("copy", 3, 3, read=30, written=30, bytes=9))
        == "copy: 30 samples in, 30 out, 9 bytes"
    )
    lossy = tarmac.Report(
        "join", 3, 2, 1, 30, 20, failed=2, dropped=3, left_out=5, notes={"doubles_left_out": 2}
    )
    assert str(lossy) == (
        "join: 30 samples in, 25 selected, 20 out, 2 FAILED, 1 dropped, 2 doubles left out, 0 bytes; "
        "1 of 3 were already done"
    )
    assert "all 3 were already done" in str(tarmac.Report("copy", 3, kept=3, read=1))
    assert "no samples" in str(tarmac.Report("copy"))
    assert repr(lossy) == f"<Report {lossy}>"


def test_json_has_the_keys_of_the_command_line():
    report = tarmac.Report("copy", notes={"doubles_left_out": 2}, seconds=1.23456)
    names = "verb units done kept read left_out added written failed dropped bytes errors"
    assert list(report.to_dict()) == [*names.split(), "doubles_left_out", "seconds"]
    report.remarks, report.stale_outputs = ["r"], ["l"]
    assert json.loads(json.dumps(report.to_dict()))["seconds"] == 1.235
    assert (report.to_dict()["remarks"], report.to_dict()["stale_outputs"]) == (["r"], ["l"])


def test_the_table_of_a_notebook_escapes_and_shortens():
    outputs = {f"https://user:secret@h/<{number}>.tar": 1 for number in range(7)}
    html = tarmac.Report("copy", read=7, outcomes=[Outcome(outputs=outputs)], errors=["<b>"])._repr_html_()
    assert "&lt;0&gt;.tar" in html
    assert "and 2 more" in html
    assert "secret" not in html
    assert "<b>" not in html
