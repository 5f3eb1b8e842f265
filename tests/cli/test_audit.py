"""`tarmac audit`: output and exit status of every mode."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tarmac
from harness.shards import plain
from tarmac.cli import main


@pytest.fixture
def shards(tmp_path):
    for shard in range(3):
        files = [(f"k{number:02d}.x", b"") for number in range(shard * 20, shard * 20 + 20)]
        (tmp_path / f"{shard}.tar").write_bytes(plain(files))
    return str(tmp_path / "{0..2}.tar")


@pytest.fixture
def audit(shards, capfd):
    """Run the command; return exit status, lines of standard output, standard error."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["audit", shards, "--batch-size", "8", *map(str, arguments)])
        out, err = capfd.readouterr()
        return ended.value.code, out.splitlines(), err

    return run


def test_summary(audit, shards):
    code, lines, err = audit("--world-size", 2)
    values = dict(line.rsplit(maxsplit=1) for line in lines)
    assert (code, err) == (0, "")
    assert (values["samples"], values["steps"], values["dropped"]) == ("60", "3", "12")
    _, (line,), _ = audit("--world-size", 2, "--json")
    assert json.loads(line)["fingerprint"] == tarmac.Dataset(shards).fingerprint


def test_a_step_and_its_options(audit, shards):
    options = {
        "world_size": 2,
        "seed": "text",
        "epoch": 1,
        "streams": 4,
        "window": 5,
        "tail": "short",
        "position": 9,
    }
    flags = [item for name, value in options.items() for item in (f"--{name.replace('_', '-')}", value)]
    expected = [
        f"{sample.step}\t{sample.rank}\t{sample.position}\t{sample.key}"
        for sample in tarmac.audit(shards, batch_size=8, **options).step(2)
    ]
    names = "step\trank\tposition\tkey\n"
    assert audit(*flags, "--step", 2) == (0, expected, names)
    assert audit(*flags, "--step", 2, "--rank", 1) == (0, expected[8:], names)
    assert json.loads(audit(*flags, "--step", 2, "--json")[1][0])["key"] == expected[0].split("\t")[3]
    lines = audit("--no-shuffle", "--step", 0, "--where", "key >= 'k30'")[1]
    assert lines[0].split("\t")[3] == "k30"


def test_a_key(audit):
    code, lines, err = audit("--key", "k05", "--epochs", 3, "--no-shuffle")
    assert err == "epoch\tposition\tstep\trank\tslot\n"
    assert (code, lines) == (0, ["0\t5\t0\t0\t5", "1\t5\t0\t0\t5", "2\t5\t0\t0\t5"])
    assert audit("--key", "k59", "--no-shuffle")[1] == ["0\t59\t-\t-\t-"]


def test_verification(audit, monkeypatch):
    code, lines, _ = audit("--verify", "--world-size", 2)
    assert (code, lines[0]) == (0, "48 of 60 samples are read exactly once")
    _, (line,), _ = audit("--verify", "--json", "--position", 4)
    result = json.loads(line)
    assert (result["ok"], result["skipped"], result["read"], result["dropped"]) == (True, 4, 56, 0)
    monkeypatch.setattr("tarmac.tools.audit.EpochAudit._counts", lambda *_: np.zeros(60))
    code, lines, _ = audit("--verify")
    assert code == 1
    assert lines[0].startswith("WRONG: 0 samples are repeated, 60 are missing: k00, ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tail", "wag"],
        ["--step", 99],
        ["--rank", 5, "--step", 0],
        ["--rank", 0],
        ["--key", "absent"],
        ["--verify", "--step", 1],
        ["--where", "key >="],
    ],
    ids=str,
)
def test_usage_errors(audit, arguments):
    code, lines, err = audit(*arguments)
    assert (code, lines) == (2, [])
    assert str(arguments[0]) in err or "key >=" in err
    assert "Traceback" not in err


def test_missing_shards(capfd, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(tmp_path / "absent.tar"), "--batch-size", "8"])
    assert ended.value.code == 3
    assert capfd.readouterr().err.startswith("tarmac: ")


def test_keys_that_are_not_utf8_are_escaped(audit, tmp_path, capfd):
    (tmp_path / "a.tar").write_bytes(plain([("caf\udce9.x", b"")]))
    with pytest.raises(SystemExit):
        main(["audit", str(tmp_path / "a.tar"), "--batch-size", "1", "--step", "0"])
    assert capfd.readouterr().out == "0\t0\t0\tcaf\\udce9\n"


def test_access(tmp_path, capfd):
    (tmp_path / "a.tar").write_bytes(plain([("a.b.x", b""), ("a.c.x", b"")]))
    flags = ["--batch-size", "1", "--step", "1", "--no-shuffle", "--split-name", "last-dot"]
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(tmp_path / "a.tar"), *flags])
    assert (ended.value.code, capfd.readouterr().out) == (0, "1\t0\t1\ta.c\n")
    with pytest.raises(SystemExit) as ended:
        main(["audit", "pipe:true", "--batch-size", "1"])
    assert ended.value.code == 2
    assert "--allow-exec" in capfd.readouterr().err
