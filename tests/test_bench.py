"""The bench runs: every case, both sides, on a handful of samples. Nothing here looks at speed."""

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from bench.__main__ import main
from bench.cases.indexed import PASSES
from bench.cases.loading import BATCH
from bench.measure import Result, Runs, _child, which
from bench.proxy import delaying
from bench.registry import Case, Done, Site, all_cases

from harness.servers import nginx

ROOT = Path(__file__).parents[1]

ELSEWHERE = {
    "autofaiss",
    "datasets",
    "datatrove",
    "img2dataset",
    "litdata",
    "semhash",
    "turboloader",
    "wids",
}  # peers that only make bench installs
SIDES = [(name, side) for name, case in all_cases().items() for side in case.sides if side not in ELSEWHERE]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return Site(tmp_path_factory.mktemp("bench"), small=12, big=3)


@pytest.mark.parametrize(("name", "side"), SIDES)
def test_case(site, name, side):
    case = all_cases()[name]
    for program in case.needs:
        if "img2dataset" in program or "autofaiss" in program:  # peers, which the other side does not need
            continue
        if not which(program):
            (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{program} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the peer's are not ours to mend
        if "nginx" in case.needs:
            with nginx(site.data) as url, delaying(url) as slow:
                done = case.setup(replace(site, http=url, slow=slow), side)()
        elif "Ray" in name or name.startswith(
            ("select", "knn", "dedup")
        ):  # files, Java and memory end with the process
            values = _child(case, side, site)
            done = Done(values["count"], fault=values["fault"])
        else:
            done = case.setup(site, side)()

    small = site.small
    counts = (1, small, small // 5, small * PASSES, small * 5, small * 8, small * 10, small * 100)
    counts += (site.big, site.big * 8)
    steps = 120 * site.big // BATCH
    counts += (8, site.big * 2, site.big * 4, min(BATCH, site.big * 10), BATCH)  # of loaders
    counts += (steps * site.big * 10, steps * BATCH)
    if name.startswith(("combine", "pack documents")):  # bytes, and sequences
        assert done.count > 0
    else:
        assert done.count in counts
    assert not done.fault


def test_data_is_made_once_and_is_the_same_everywhere(tmp_path):
    from bench.data import small_shard

    first = small_shard(Site(tmp_path / "a", small=5))
    second = small_shard(Site(tmp_path / "b", small=5))

    assert first.read_bytes() == second.read_bytes()
    before = first.stat()
    assert small_shard(Site(tmp_path / "a", small=5)).stat() == before


def test_command(tmp_path):
    options = ["--only", "zst", "--repeat", "2", "--data", str(tmp_path), "--small", "12"]
    command = [sys.executable, "-m", "bench", *options]
    environment = os.environ | {"COLUMNS": "200"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "read 800 B text + class, zst" in done.stdout

    done = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    [case] = json.loads(done.stdout)["cases"]
    assert len(case["sides"]["tarmac"]["rates"]) == 2
    assert case["sides"]["tarmac"]["memory"] > 1e6


def test_no_such_case(capsys):
    assert main(["--only", "no such case"]) == 2
    assert "no such case" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ours", "peer", "requirement", "missed"),
    [
        (100, 10, {"ratio": 5}, ""),
        (100, 50, {"ratio": 5}, "2.0 x, 5.0 x is required"),
        (100, 50, {}, ""),
        (100, 50, {"limit": 0.02}, ""),
        (100, 50, {"limit": 0.005}, "10 ms, 5 ms are allowed"),
    ],
)
def test_what_counts_as_missed(ours, peer, requirement, missed):
    case = Case("x", lambda site, side: Done, **requirement)

    result = Result(case, {"tarmac": Runs([ours, 1]), "webdataset": Runs([peer, 1])})

    assert result.missed == missed
    assert result.ratio == ours / peer


def test_a_fault_or_a_missing_program_is_a_miss():
    case = Case("x", lambda site, side: Done, ratio=2)
    sides = {"tarmac": Runs([9], fault="3 samples instead of 4"), "webdataset": Runs([1])}

    assert Result(case, sides).missed == "tarmac: 3 samples instead of 4"
    assert (
        Result(case, {"tarmac": Runs()}, skipped="nginx is not installed").missed == "nginx is not installed"
    )
