"""Hints that only the command line gives."""

from __future__ import annotations

import pytest

from cli.running import shell
from hints.commands import done, refused
from tools.shards import keys, make


@pytest.mark.parametrize(("number", "hint"), [("1", "1:2"), ("-1", "-1:")])
def test_a_number_as_a_slice(tmp_path, capsys, number, hint):
    (shard,) = make(tmp_path, 3)
    text = refused(capsys, "copy", shard, "-o", f"{tmp_path}/x.tar", f"--slice={number}")
    assert text.startswith(f"{hint} for this sample, :{number} for those before it")
    done(capsys, "copy", shard, "-o", f"{tmp_path}/one.tar", f"--slice={hint}")
    done(capsys, "copy", shard, "-o", f"{tmp_path}/before.tar", f"--slice=:{number}")
    assert keys(f"{tmp_path}/one.tar") == keys(shard)[int(number) :][:1]
    assert keys(f"{tmp_path}/before.tar") == keys(shard)[: int(number)]


@pytest.mark.processes
def test_shards_on_a_terminal(tmp_path, capsys, monkeypatch):
    (shard,) = make(tmp_path, 3)
    with monkeypatch.context() as context:
        context.setattr("sys.stdout.isatty", lambda: True)
        assert refused(capsys, "copy", shard, "-o", "-") == "-o - | tar -tv, or -o FILE."
    assert b"s0/002.txt" in shell(f"tarmac copy {shard} -o - | tar -tv").stdout
    done(capsys, "copy", shard, "-o", f"{tmp_path}/x.tar")
    assert keys(f"{tmp_path}/x.tar") == keys(shard)
