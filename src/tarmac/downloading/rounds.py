"""Fetch failed rows again, in rounds: each writes further shards behind those that exist, which stay as they are.

The first round ends every run, since hosts that failed at first may be back. `retry` adds another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tarmac.downloading.job import DownloadJob
from tarmac.downloading.rows import late_blocks
from tarmac.downloading.status import failed_rows
from tarmac.errors import NotFound
from tarmac.jobs.ledger import ledger_url, read_job
from tarmac.jobs.report import Report
from tarmac.tools.options import Run
from tarmac.tools.rewrite import run_writing


def ledger_name(number: int) -> str:
    """Return the name of the ledger of a round."""
    return f"download-round-{number}"


def run_rounds(
    job: DownloadJob, report: Report, run: Run, *, final: bool, retry: Sequence[str]
) -> list[tuple[Report, Counter[str]]]:
    """Complete the rounds that were begun, and run another if it is asked for, or if it is the first.

    Return the report of each, with the statuses that its rows had before.
    """
    results: list[tuple[Report, Counter[str]]] = []
    outcomes, shards, number = list(report.outcomes), len(job.blocks), 1
    fresh = False
    while True:
        begun = None if job.output.overwrite and not fresh else _begun(job, number)
        which = list(begun["retry"]) if begun else list(retry) if retry and not fresh else []
        if not which and final and number == 1:
            which = ["transient"]
        if not which or (not begun and fresh):
            return results
        fresh = fresh or not begun or not begun["complete"]
        urls = [name for outcome in outcomes for name in outcome.companions if name.endswith(".parquet")]
        rows, before = failed_rows(urls, which, job.blocks[-1].stop, job.output.storage)
        if not rows:
            return results
        blocks = list(late_blocks(job.blocks, rows, job.rows.step))
        later = replace(
            job,
            blocks=blocks,
            name=ledger_name(number),
            first=shards,
            earlier=outcomes,
            facts=job.facts | {"retry": which},
            work=replace(job.work, max_failed=1.0, patience=job.work.web.max_wait, turn="last"),
        )
        done = run_writing(later, run, later.name)
        results.append((done, before))
        outcomes += done.outcomes
        shards, number = shards + len(blocks), number + 1


def _begun(job: DownloadJob, number: int) -> dict[str, Any] | None:
    """Return what a round that was begun fetches, and whether it is complete."""
    try:
        head, ledger = read_job(
            ledger_url(job.output.ledger_pattern, ledger_name(number)), job.output.storage
        )
    except NotFound:
        return None
    units = ledger.plan().get("units") or []
    complete = bool(units) and all(name in ledger.done for name in units)
    return {"retry": head["options"].get("retry", ["transient"]), "complete": complete}
