"""The table, and the same as JSON."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

import tarmac
from bench.measure import Result, Runs, milliseconds, times


def machine() -> dict[str, str]:
    """What the numbers depend on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": cpu,
        "cores": str(cores),
        "python": platform.python_version(),
        "tarmac": tarmac.__version__,
        "webdataset": version("webdataset"),
    }


def as_json(results: list[Result]) -> dict:
    return {"machine": machine(), "cases": [_case_as_json(result) for result in results]}


def _case_as_json(result: Result) -> dict:
    sides = {
        name: {"rates": runs.rates, "best": runs.best, "memory": runs.memory, "note": runs.note}
        for name, runs in result.sides.items()
    }
    case = result.case
    required = {
        "required_ratio": case.ratio,
        "reachable_ratio": result.reachable,
        "limit_seconds": case.limit,
    }
    return {"name": case.name, "ratio": result.ratio, **required, "missed": result.missed, "sides": sides}


def as_markdown(results: list[Result]) -> list[str]:
    """Return the lines of a table: best rates with their spread, a row for each peer."""
    lines = ["| | tarmac | peer | | ratio | required | |", "|---|---:|---:|---|---:|---:|---|"]
    for result in results:
        if result.skipped:
            continue
        case = result.case
        show = _milliseconds if case.limit else _rate
        ours = result.sides["tarmac"]
        peers = [(name, runs) for name, runs in result.sides.items() if name != "tarmac"] or [("", Runs())]
        for number, (name, peer) in enumerate(peers):
            ratio = times(ours.best / peer.best) if peer.rates else ""
            needs = times(case.ratio) if case.ratio and not number else ""
            limit = milliseconds(case.limit) if case.limit and not number else ""
            cells = [
                case.name if not number else "",
                f"{show(ours.best)} ({_spread(ours, show)})" if not number else "",
                f"{show(peer.best)} ({_spread(peer, show)})" if peer.rates else "",
                name,
                ratio,
                needs or limit,
                "; ".join(
                    note
                    for note in ("" if number else ours.note, peer.note, _reachable(result, name))
                    if note
                ),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _reachable(result: Result, side: str) -> str:
    """Return a note beside the last side, if there are sides without tarmac."""
    last = result.case.bare and side == result.case.bare[-1]
    return f"{times(result.reachable)} without tarmac" if last and result.reachable else ""


def print_table(results: list[Result], console: Console) -> None:
    facts = machine()
    table = Table(title=", ".join(f"{name} {fact}" for name, fact in facts.items()), title_justify="left")
    table.add_column("what")
    for heading in ("tarmac", "min..max", "peer", "min..max", "ratio", "needs", "memory, MB"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("notes")
    for result in results:
        table.add_row(*_row(result))
    console.print(table)
    console.print(
        "Rates are samples per second, the best of all runs. "
        "The peer is webdataset unless another is named. "
        "Memory is the peak of a process, tarmac / peer.\n"
        "It counts the mapped pages of a file being read, and does not count the curl process of webdataset."
    )
    for result in results:
        if result.missed:
            console.print(f"[bold red]missed[/] {result.case.name}: {result.missed}")


def _row(result: Result) -> list[str]:
    case = result.case
    if result.skipped:
        return [case.name, "-", "", "-", "", "-", "", "", result.skipped]
    show = _milliseconds if case.limit else _rate
    ours, (name, peer) = result.sides["tarmac"], _peer(result)
    ratio_needed = [times(case.ratio)] if case.ratio else []
    needs = ", ".join(ratio_needed + ([f"< {milliseconds(case.limit)}"] if case.limit else []))
    colour = "red" if result.missed else "green" if needs else ""
    ratio = times(result.ratio) if result.ratio else ""
    return [
        case.name if name in ("", "webdataset") else f"{case.name} ({name})",
        show(ours.best),
        _spread(ours, show),
        show(peer.best) if peer.rates else "",
        _spread(peer, show),
        f"[{colour}]{ratio}[/]" if colour else ratio,
        f"[{colour}]{needs}[/]" if colour else needs,
        "" if case.limit else " / ".join(f"{runs.memory / 1e6:.0f}" for runs in result.sides.values()),
        "; ".join(
            dict.fromkeys(
                note
                for side, runs in result.sides.items()
                for note in (runs.note, _reachable(result, side))
                if note
            )
        ),
    ]


def _peer(result: Result) -> tuple[str, Runs]:
    """Beside whom tarmac was measured."""
    return next(((name, runs) for name, runs in result.sides.items() if name != "tarmac"), ("", Runs()))


def _spread(runs: Runs, show) -> str:
    ends = sorted((min(runs.rates), max(runs.rates)), reverse=show is _milliseconds) if runs.rates else ()
    return "..".join(show(rate) for rate in ends)


def _rate(rate: float) -> str:
    return f"{rate / 1e3:,.0f} k" if rate >= 1e5 else f"{rate:,.0f}"


def _milliseconds(rate: float) -> str:
    return milliseconds(1 / rate)
