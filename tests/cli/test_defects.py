"""What nobody expected is one message that names the place and asks for a report, with its own status."""

from __future__ import annotations

import pytest

from tarmac.cli import main
from tools.shards import make


def run(*arguments: str) -> object:
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    return done.value.code


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("one\ntwo\x1b"), RecursionError("deep"), KeyError("k"), AssertionError()],
    ids=repr,
)
@pytest.mark.parametrize(
    "point",
    ["tarmac.cli.flags.sources", "tarmac.urls._expand_one", "tarmac.tools.check._check_one",
     "tarmac.storage.local.LocalSource.map", "tarmac.jobs.engines.local.LocalEngine.run"],
)  # fmt: skip
def test_unexpected_errors_are_one_line(tmp_path, monkeypatch, capfd, point, error, jobs):
    shards = make(tmp_path, 2, 2)

    def broken(*_args, **_more):
        raise type(error)(*error.args)

    monkeypatch.setattr(point, broken)
    assert run("check", *shards, "-j", jobs) == 70
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"tarmac check: unexpected {type(error).__name__}")
    assert "report" in line
    assert line.isprintable()
    if "check_one" in point and jobs == "1":
        assert "tools/check.py:" in line
    monkeypatch.setenv("TARMAC_DEBUG", "1")
    assert run("check", *shards, "-j", jobs) == 70
    assert "Traceback (most recent call last)" in capfd.readouterr().err


def test_the_message_names_the_shard_without_its_secrets(monkeypatch, capfd):
    def broken(*_args):
        raise ZeroDivisionError

    monkeypatch.setattr("tarmac.tools.check.open_read", broken)
    assert run("check", "http://u:SECRET@127.0.0.1:1/a b.tar?sig=SECRET", "-j", "1") == 70
    line = capfd.readouterr().err
    assert "SECRET" not in line
    assert "in http://…@127.0.0.1:1/a b.tar?…" in line


def test_debugging_shows_where_other_errors_come_from(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TARMAC_DEBUG", "1")
    assert run("show", str(tmp_path / "none.tar")) == 3
    err = capfd.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith(f"tarmac: {tmp_path}/none.tar: no such file")
