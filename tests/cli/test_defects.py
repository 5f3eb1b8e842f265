"""An unexpected exception is one message that names its location and asks for a report, with status 70."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tarmac.cli import main
from tools.shards import make


def run(*arguments: str) -> object:
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    return done.value.code


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("one\ntwo\x1b"), RecursionError("deep"), KeyError("k"), AssertionError()],
    ids=repr,
)
@pytest.mark.parametrize(
    "point",
    ["tarmac.tools.options.Access.inputs", "tarmac.storage.urls._expand_one",
     "tarmac.tools.check.shard.check_shard", "tarmac.storage.local.LocalSource.map",
     "tarmac.jobs.engines.local.LocalEngine.run"],
)  # fmt: skip
def test_unexpected_errors_are_one_line(tmp_path, monkeypatch, capfd, point, error):
    shards = make(tmp_path, 2, 2)

    def broken(*_args, **_more):
        raise type(error)(*error.args)

    if "check_shard" in point:  # by the name that the verb uses; the package has a function of this name
        monkeypatch.setattr(sys.modules["tarmac.tools.check.verb"], "check_shard", broken)
    else:
        monkeypatch.setattr(point, broken)
    assert run("check", *shards, "-j", "1") == 70
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"tarmac check: unexpected {type(error).__name__}")
    assert "report" in line
    assert line.isprintable()
    if "check_shard" in point:
        assert "tools/check/verb.py:" in line
    monkeypatch.setenv("TARMAC_DEBUG", "1")
    assert run("check", *shards, "-j", "1") == 70
    assert "Traceback (most recent call last)" in capfd.readouterr().err


BROKEN = """
import runpy, sys, tarmac.tools.check.verb
def broken(*_): raise ZeroDivisionError
sys.modules["tarmac.tools.check.verb"].check_shard = broken
runpy.run_module("tarmac", run_name="__main__")
"""


def test_unexpected_errors_of_workers_are_one_line(tmp_path):
    command = [sys.executable, "-c", BROKEN, "check", *make(tmp_path, 2, 2), "-j", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 70, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("tarmac check: unexpected ZeroDivisionError")


def test_the_message_names_the_shard_without_its_secrets(monkeypatch, capfd):
    def broken(*_args):
        raise ZeroDivisionError

    monkeypatch.setattr("tarmac.tools.check.shard.open_read", broken)
    assert run("check", "http://u:SECRET@127.0.0.1:1/a b.tar?sig=SECRET", "-j", "1") == 70
    line = capfd.readouterr().err
    assert "SECRET" not in line
    assert "in http://…@127.0.0.1:1/a b.tar?…" in line


def test_debugging_shows_the_traceback_of_errors(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TARMAC_DEBUG", "1")
    assert run("show", str(tmp_path / "none.tar")) == 3
    err = capfd.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith(f"tarmac: {tmp_path}/none.tar: no such file")


@pytest.mark.parametrize(
    ("variable", "arguments"),
    [
        ("WDS_CACHE_SIZE", ["cache", "ls", "--cache", "kept"]),
        ("GOPEN_REWRITE", ["check", "a.tar", "-j", "1"]),
    ],
)
def test_an_invalid_variable_is_not_a_bug(tmp_path, monkeypatch, capfd, variable, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "nonsense")
    assert run(*arguments) == (3 if arguments[0] == "check" else 2)
    shown = capfd.readouterr()
    assert variable in shown.out + shown.err
    assert "bug" not in shown.err
