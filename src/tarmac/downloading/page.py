"""Write a page about a download: rates, errors by host, sizes. It needs no other file and no network."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from tarmac.downloading.report import DownloadReport
from tarmac.downloading.status import SUCCESS, read_statuses
from tarmac.jobs.task import Outcome
from tarmac.storage import StorageOptions, write_all
from tarmac.storage.types import WriteOptions

_COLUMNS = ("url", "status", "error_message", "bytes", "original_width", "original_height", "seconds")
_SHOWN, _KEPT = 20, 200_000
_WIDTH, _BAR = 420, 18
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
h2{margin-top:2em;font-size:1.1em}td,th{padding:.1em .8em .1em 0;text-align:left}svg text{font-size:12px}
rect{fill:#4878a8}.bad rect{fill:#b5523b}"""


def write_page(url: str, report: DownloadReport, storage: StorageOptions) -> None:
    """Write the page of a download whose shards are complete."""
    hosts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    sides: Counter[int] = Counter()
    seconds: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    names = [name for each in report.outcomes for name in each.companions if name.endswith(".parquet")]
    for row in (row for name in names for row in read_statuses(name, storage, _COLUMNS)):
        seconds[_power(1000 * (row["seconds"] or 0.0))] += 1
        if row["status"] == SUCCESS:
            sides[_power(min(row["original_width"], row["original_height"]))] += 1
            sizes[_power(row["bytes"])] += 1
        else:
            _add(hosts, _host(row["url"]))
            _add(reasons, f"{row['status']}: {row['error_message'] or ''}"[:120])
    parts = [
        f"<p>{html.escape(str(report))}</p>",
        _table("Status of rows", report.statuses),
        _bars("Rows per second, by shard", _rates(report.outcomes)),
        _bars("Failed rows by host", dict(hosts.most_common(_SHOWN)), bad=True),
        _bars("Reasons", dict(reasons.most_common(_SHOWN)), bad=True),
        _bars("Shorter side of the originals, in pixels", _ranges(sides)),
        _bars("Size of the files, in bytes", _ranges(sizes)),
        _bars("Duration of a URL, in milliseconds", _ranges(seconds)),
    ]
    page = (
        f"<!DOCTYPE html><meta charset=utf-8><title>download</title><style>{_STYLE}</style><h1>Download</h1>"
    )
    write_all(url, (page + "".join(parts)).encode("utf-8", "replace"), storage, WriteOptions(overwrite=True))


def _add(counter: Counter[str], name: str) -> None:
    """Count a name; of very many, the rare ones are forgotten."""
    counter[name] += 1
    if len(counter) > _KEPT:
        kept = counter.most_common(_KEPT // 2)
        counter.clear()
        counter.update(dict(kept))


def _host(url: str | None) -> str:
    try:
        return urlsplit(url or "").hostname or "(no host)"
    except ValueError:
        return "(no host)"


def _power(number: float) -> int:
    return max(int(number), 0).bit_length()


def _ranges(counts: Counter[int]) -> dict[str, float]:
    """Return counts of powers of two, with the ranges as names."""
    used = range(min(counts), max(counts) + 1) if counts else range(0)
    return {f"{1 << power >> 1:,} to {(1 << power) - 1:,}": counts[power] for power in used}


def _rates(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the rows per second of shards; of many shards, of some neighbours together."""
    step = -(-len(outcomes) // 50) or 1
    rates = {}
    for start in range(0, len(outcomes), step):
        part = outcomes[start : start + step]
        last = start + len(part) - 1
        name = f"{start}" if step == 1 else f"{start} to {last}"
        rates[name] = round(
            sum(each.read for each in part) / max(sum(each.seconds for each in part), 1e-3), 1
        )
    return rates


def _table(title: str, values: Mapping[str, int]) -> str:
    rows = "".join(f"<tr><td>{html.escape(name)}<td>{number:,}" for name, number in values.items())
    return f"<h2>{title}</h2><table>{rows}</table>"


def _bars(title: str, values: Mapping[str, float], *, bad: bool = False) -> str:
    if not values:
        return ""
    most, lines = max(values.values()) or 1, list[str]()
    for number, (name, value) in enumerate(values.items()):
        top = number * _BAR
        lines.append(
            f'<text x="0" y="{top + 12}">{html.escape(name[:60])}</text>'
            f'<rect x="330" y="{top + 2}" width="{_WIDTH * value / most:.1f}" height="{_BAR - 5}"/>'
            f'<text x="{335 + _WIDTH * value / most:.1f}" y="{top + 12}">{value:,}</text>'
        )
    height = len(values) * _BAR
    kind = ' class="bad"' if bad else ""
    return f'<h2>{title}</h2><svg{kind} width="{_WIDTH + 420}" height="{height}">{"".join(lines)}</svg>'
