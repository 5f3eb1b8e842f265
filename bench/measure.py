"""Measuring: every run in a process of its own, so that memory is its own and no side warms up the other.

`python -m bench.measure CASE SIDE SITE` is the process; the functions here start it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.registry import Case, Site, all_cases

ROOT = Path(__file__).parents[1]


@dataclass
class Runs:
    """What the runs of one side of a case gave. Rates are per second; memory is the peak in bytes."""

    rates: list[float] = field(default_factory=list)
    memory: int = 0
    note: str = ""
    fault: str = ""

    @property
    def best(self) -> float:
        return max(self.rates, default=0.0)


@dataclass
class Result:
    case: Case
    sides: dict[str, Runs]
    skipped: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times faster tarmac is than its peer."""
        ours, *peers = self.sides.values()
        return ours.best / peers[0].best if peers and peers[0].best else None

    @property
    def reachable(self) -> float | None:
        """The ratio of the sides without tarmac."""
        if not self.case.bare or self.skipped:
            return None
        many, few = (self.sides[side].best for side in self.case.bare)
        return many / few if few else None

    @property
    def missed(self) -> str:
        """What was required and not reached; empty when all is well."""
        case, ours = self.case, self.sides["tarmac"]
        if self.skipped:
            return self.skipped if case.ratio or case.limit else ""
        for name, runs in self.sides.items():
            if runs.fault:
                return f"{name}: {runs.fault}"
        required = (case.ratio or 0) * min(1, self.reachable or 1)
        if (self.ratio or 0) < required:
            return f"{times(self.ratio or 0)}, {times(required)} is required"
        if case.limit and 1 / ours.best > case.limit:
            return f"{milliseconds(1 / ours.best)}, {milliseconds(case.limit)} are allowed"
        return ""


def times(ratio: float) -> str:
    """`4.2 x`, and `0.34 x`."""
    return f"{ratio:.2f} x" if ratio < 1 else f"{ratio:.1f} x"


def milliseconds(seconds: float) -> str:
    """`138 ms`, and `0.31 ms`."""
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 0.00995 else f"{1e3 * seconds:.2g} ms"


def run_case(case: Case, site: Site, repeat: int, say: Callable[[str], object]) -> Result:
    """Run the sides of a case by turns, after one process for each that only makes what is missing."""
    result = Result(case, {side: Runs() for side in case.sides})
    for program in case.needs:
        if not which(program):
            result.skipped = f"{program} is not installed"
            return result
    for side in case.sides:
        say(f"{case.name}: preparing {side}")
        _child(case, side, site, prepare=True)
    rounds = max(repeat, case.repeat) if repeat > 1 else repeat
    rounds = min(rounds, case.most or rounds)
    for turn in range(rounds):
        for side, runs in result.sides.items():
            say(f"{case.name}: {side}, run {turn + 1} of {rounds}")
            done = _child(case, side, site)
            runs.rates.append(done["count"] / done["seconds"])
            runs.memory = max(runs.memory, done["memory"])
            runs.note = done["note"] or runs.note
            runs.fault = done["fault"] or runs.fault
    return result


def which(program: str) -> str | None:
    """Find a program, also where Debian puts servers."""
    return shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))


def _child(case: Case, side: str, site: Site, *, prepare: bool = False) -> dict:
    # Compiled modules are kept, as in an installed package, but away from the sources.
    kept = str(site.data / "pycache")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    location = json.dumps(asdict(site) | {"data": str(site.data)})
    command = [sys.executable, "-m", "bench.measure", case.name, side, location]
    output = subprocess.run(
        command + ["prepare"] * prepare,
        env=environment | {"PYTHONPYCACHEPREFIX": kept},
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return json.loads(output.splitlines()[-1])


def _main(name: str, side: str, location: str, *prepare: str) -> None:
    values = json.loads(location)
    work = all_cases()[name].setup(Site(Path(values.pop("data")), **values), side)
    if prepare:
        print("{}")
        return
    os.sync()  # what earlier runs wrote and removed keeps the disk busy for a while
    begin = time.perf_counter()
    done = work()
    seconds = time.perf_counter() - begin
    print(json.dumps(asdict(done) | {"seconds": done.seconds or seconds, "memory": peak_memory()}))


def peak_memory() -> int:
    """Peak resident memory of this process in bytes."""
    try:
        # Unlike getrusage, this does not begin with the memory of the process that forked us.
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak << 10


if __name__ == "__main__":
    _main(*sys.argv[1:])
