"""The shared flags: one meaning, one spelling and one group on every verb."""

from __future__ import annotations

import json

import pytest
import typer
from typer.main import get_command

from tarmac.cli import app, flags
from tarmac.errors import UnsafeUrl
from tarmac.jobs.report import Report

VERBS = {name: verb for name, verb in get_command(app).commands.items() if name != "order"}
"""All but `order`, whose flags are the arguments of a Loader."""


def options(verb):
    return {name: option for option in VERBS[verb].params for name in option.opts}


def test_a_flag_means_the_same_on_every_verb():
    """What `--fields` is on one verb it is on all: the same words in the same group."""
    shared = {
        "--fields", "--missing", "--where", "--keys", "--slice", "--slice-shard", "--part", "--only",
        "--seed", "--max-samples", "--max-bytes", "--rekey", "--compress", "--index", "--manifest",
        "--then", "--rm", "--overwrite", "--jobs", "--on-error", "--max-errors", "--dry-run", "--allow-exec",
    }  # fmt: skip
    for name in shared:
        seen = {
            (found.help, getattr(found, "rich_help_panel", None))
            for verb in VERBS
            if (found := options(verb).get(name)) is not None
        }
        assert len(seen) == 1, f"{name}: {seen}"


def test_every_verb_reports_as_json():
    for verb, command in VERBS.items():
        if not hasattr(command, "commands"):
            assert "--json" in options(verb), verb


def test_short_names_are_the_same_everywhere():
    short = {}
    for verb in VERBS:
        for name, option in options(verb).items():
            if len(name) == 2 and name not in ("-n", "-c", "-q"):
                short.setdefault(name, set()).add(max(option.opts, key=len))
    assert all(len(names) == 1 for names in short.values()), short


def test_commands_need_to_be_allowed():
    with pytest.raises(UnsafeUrl, match="--allow-exec"):
        flags.sources(["pipe:cat x"])
    assert flags.sources(["pipe:cat x"], True) == ["pipe:cat x"]
    with pytest.raises(UnsafeUrl, match="saved to") as caught:  # a verb without that flag does not name it
        flags.sources(["pipe:cat x"], None)
    assert "--allow-exec" not in str(caught.value)


def test_reports(capsys):
    report = Report("copy", 2, 2, read=5, written=4, failed=1, errors=["k: broken"])
    with pytest.raises(typer.Exit) as done:
        flags.report_job(report, as_json=False)
    shown = capsys.readouterr()
    assert (done.value.exit_code, shown.out) == (1, "")
    assert "FAILED k: broken" in shown.err
    with pytest.raises(typer.Exit):
        flags.report_job(report, as_json=True)
    assert json.loads(capsys.readouterr().out)["failed"] == 1


def test_the_run_flags():
    run = flags.run_flags(3, True, 7)
    assert (run.engine.processes, run.dry, run.max_errors) == (3, True, 7)
