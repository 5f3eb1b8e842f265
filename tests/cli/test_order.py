"""`tarmac order` as a person runs it: output and exit status of every mode."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from matplotlib.figure import Figure

import tarmac
from harness.shards import plain
from tarmac.cli import main
from tarmac.tools.audit import proof as order_proof
from tarmac.tools.audit.audit import OrderOptions, audit
from tarmac.tools.audit.proof import Proof


@pytest.fixture(scope="module", autouse=True)
def _fonts():
    """Let matplotlib open the fonts that it keeps open, so that no test is blamed for them."""
    figure = Figure()
    figure.text(0, 0, "text")
    figure.savefig(io.BytesIO())


@pytest.fixture
def shards(tmp_path):
    for shard in range(3):
        files = [(f"k{number:02d}.x", b"") for number in range(shard * 20, shard * 20 + 20)]
        (tmp_path / f"{shard}.tar").write_bytes(plain(files))
    return str(tmp_path / "{0..2}.tar")


@pytest.fixture
def order(shards, capfdbinary):
    """Run the command; return exit status, lines of standard output, standard error."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["order", shards, "--batch-size", "8", *map(str, arguments)])
        out, err = capfdbinary.readouterr()
        return ended.value.code, out.decode().splitlines(), err.decode()

    return run


def test_summary(order, shards):
    code, lines, err = order("--world", 2)
    found = dict(line.split(maxsplit=1) for line in lines if " " in line)
    assert (code, err) == (0, "")
    assert (found["samples"], found["steps"], found["streams"]) == ("60", "3", "64")
    assert "left out        12" in lines
    assert lines[-1].startswith("quality         ")
    code, (line,), _ = order("--world", 2, "--json", "--buffer", 5)
    summary = json.loads(line)
    expected = audit(shards, OrderOptions(8, 2))
    assert summary["fingerprint"] == tarmac.Dataset(shards).fingerprint
    assert summary["quality"] == expected.quality()
    assert summary["stream_quality"] == expected.stream_quality(5)


def test_a_step(order, shards):
    expected = [
        f"{seen.step}\t{seen.rank}\t{seen.position}\t{seen.key}"
        for seen in audit(shards, OrderOptions(8, 2, seed=3, epoch=1)).what(2)
    ]
    options = ("--world", 2, "--seed", 3, "--epoch", 1, "--step", 2)
    assert order(*options) == (0, expected, "")
    assert order(*options, "--rank", 1) == (0, expected[8:], "")
    _, lines, _ = order(*options, "--json")
    first = expected[0].split("\t")
    assert json.loads(lines[0]) == {"step": 2, "rank": 0, "position": int(first[2]), "key": first[3]}


def test_options_reach_the_order(order, shards):
    given = ["--seed", "text", "--streams", 4, "--window", 5, "--tail", "short", "--position", 9]
    options = OrderOptions(8, seed="text", streams=4, window=5, tail="short", position=9)
    expected = [seen.key for seen in audit(shards, options).what(6)]
    assert [line.split("\t")[3] for line in order(*given, "--step", 6)[1]] == expected
    assert len(expected) == 3
    lines = order("--no-shuffle", "--step", 1)[1]
    assert [line.split("\t")[3] for line in lines] == [f"k{number:02d}" for number in range(8, 16)]
    lines = order("--no-shuffle", "--step", 0, "--where", "key >= 'k30'")[1]
    assert lines[0].split("\t")[3] == "k30"


def test_a_key(order):
    code, lines, _ = order("--key", "k05", "--epochs", 3, "--no-shuffle")
    assert (code, lines) == (0, ["0\t5\t0\t0\t5", "1\t5\t0\t0\t5", "2\t5\t0\t0\t5"])
    assert order("--key", "k59", "--no-shuffle")[1] == ["0\t59\t-\t-\t-"]
    (line,) = order("--key", "k59", "--no-shuffle", "--json")[1]
    assert json.loads(line) == {"epoch": 0, "position": 59, "step": None, "rank": None, "place": None}


def test_a_proof(order):
    assert order("--prove", "--world", 2) == (
        0,
        ["48 of 60 samples come exactly once", "12 left out by the tail", "each of 2 ranks has 3 steps"],
        "",
    )
    assert order("--prove", "--tail", "short", "--world", 2)[1] == [
        "every one of 60 samples comes exactly once",
        "each of 2 ranks has 4 steps",
    ]
    assert order("--prove", "--tail", "pad", "--world", 2)[1] == [
        "every one of 60 samples comes exactly once before any comes again",
        "4 come again to fill the last batch",
        "each of 2 ranks has 4 steps",
    ]
    _, (line,), _ = order("--prove", "--json", "--position", 4)
    found = json.loads(line)
    assert (found["ok"], found["before"], found["seen"], found["left_out"]) == (True, 4, 56, 0)


def test_a_failed_proof(order, monkeypatch):
    failed = Proof(60, 60, 0, 0, 0, (4, 3), False, False, 1, 2, ("k01", "k02"))
    monkeypatch.setattr(order_proof, "prove", lambda found: failed)
    code, lines, _ = order("--prove", "--world", 2)
    assert code == 1
    assert lines == [
        "WRONG: of 60 samples 1 come too often and 2 too seldom, among them k01, k02",
        "WRONG: each of 2 ranks has 3 or 4 steps",
    ]
    code, (line,), _ = order("--prove", "--json")
    assert (code, json.loads(line)["ok"]) == (1, False)


def test_a_plot(order, tmp_path):
    assert order("--plot", tmp_path / "o.png", "--buffer", 5) == (0, [], "")
    assert (tmp_path / "o.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--world", 3], "shared evenly"),
        (["--tail", "wag"], "drop, pad, short"),
        (["--step", 99], "outside of the epoch"),
        (["--step", 0, "--rank", 5], "rank 5 of 1"),
        (["--rank", 0], "goes with --step"),
        (["--key", "absent"], "none of the 60 samples"),
        (["--prove", "--step", 1], "choose one of"),
        (["--where", "key >="], "expected a column"),
        (["--plot", "o.txt"], "ends in .png"),
    ],
)
def test_usage(order, arguments, message):
    code, lines, err = order(*arguments)
    assert (code, lines) == (2, [])
    assert message in " ".join(err.split())
    assert "Traceback" not in err


def test_shards_that_are_not_there(capfd, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["order", str(tmp_path / "absent.tar"), "--batch-size", "8"])
    assert ended.value.code == 3
    assert capfd.readouterr().err.startswith("tarmac: ")


def test_keys_that_are_not_text(tmp_path):
    (tmp_path / "a.tar").write_bytes(plain([("caf\udce9.x", b"")]))
    command = [sys.executable, "-m", "tarmac", "order", str(tmp_path / "a.tar"), "--batch-size", "1"]
    done = subprocess.run([*command, "--step", "0"], capture_output=True, check=True)
    assert done.stdout == b"0\t0\t0\tcaf\\udce9\n"  # as show does: such bytes may act on a terminal
    done = subprocess.run([*command, "--key", b"caf\xe9"], capture_output=True, check=True)
    assert done.stdout == b"0\t0\t0\t0\t0\n"
