"""Killed selections are run again, and give what an undisturbed one gives."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from random import Random

import pyarrow.parquet as pq
import pytest
from bench.data import link_rows

import tarmac
from harness import rounds
from harness.crash import crash, survive
from selecting.tables import contents, manifest

pytestmark = [pytest.mark.processes, pytest.mark.long]
SCRIPT = """
import sys, tarmac, duckdb, pyarrow.parquet, tarmac.selecting.verb
print("ready", flush=True)
tarmac.select(sys.argv[1], sys.argv[2], shuffle=1, dedup="URL,TEXT", rows_per_file=2000, overwrite=len(sys.argv) > 3)
"""
COMMAND = """
import duckdb, pyarrow.parquet, tarmac.selecting.verb, tarmac.cli.select
print("ready", flush=True)
tarmac.cli.main()
"""


def test_killed_at_any_time(tmp_path):
    table = tmp_path / "t.parquet"
    pq.write_table(link_rows(30_000, 0), table)
    options = {"shuffle": 1, "dedup": "URL,TEXT", "rows_per_file": 2000}
    tarmac.select(table, tmp_path / "undisturbed", **options)
    expected = contents(tmp_path / "undisturbed")
    out = tmp_path / "out"

    def check():
        if (out / "manifest.json").exists():  # then all files are complete
            assert contents(out) == expected
            assert manifest(out)["rows"]["out"] == 30_000
        else:
            assert contents(out).items() <= expected.items()

    survive(8, lambda seed: crash(SCRIPT, [str(table), str(out), "overwrite"], seed, 1.0), check)
    tarmac.select(table, out, overwrite=True, **options)
    assert contents(out) == expected
    assert sorted(path.name for path in out.iterdir() if path.name.startswith(".")) == [".tarmac"]
    assert not (out / ".tarmac" / "select-work").exists()


def test_ctrl_c_at_any_time_is_no_defect(tmp_path):
    table, random = tmp_path / "t.parquet", Random(5)
    pq.write_table(link_rows(200_000, 0), table)
    for number in range(rounds(6)):
        command = [
            sys.executable,
            "-c",
            COMMAND,
            "select",
            str(table),
            "-o",
            f"{tmp_path}/{number}",
            "--shuffle",
            "1",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            process.stdout.readline()
            time.sleep(random.uniform(0, 0.8))
            process.send_signal(signal.SIGINT)
            _, said = process.communicate()
        assert process.returncode in (0, 130)
        if process.returncode:
            assert said.splitlines() == ["tarmac: interrupted; run the same command again to continue."]


def test_a_killed_selection_continues_without_overwriting(tmp_path):
    table = tmp_path / "t.parquet"
    pq.write_table(link_rows(30_000, 0), table)
    for seed in range(3):
        crash(SCRIPT, [str(table), str(tmp_path / "out")], seed, 0.5)
    tarmac.select(table, tmp_path / "out", shuffle=1, dedup="URL,TEXT", rows_per_file=2000)
    assert manifest(tmp_path / "out")["rows"]["out"] == 30_000
