"""Explain why a sample stays or is removed."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tarmac.deduplicating.pairs import read_rows
from tarmac.deduplicating.record import Record, shown
from tarmac.display import plural
from tarmac.errors import NotFound, UsageError

_SHOWN = 20


@dataclass(frozen=True)
class Member:
    """A sample of a group, and how it is connected with the one that was asked for."""

    key: str
    stays: bool
    path: Sequence[str]
    """The keys on the shortest way of pairs to it, from the sample that was asked for."""
    against: bool = False
    """Whether it belongs to the dataset that the source was compared with."""
    kept: str | None = None
    """The key of the sample that stays in its place, if it is removed."""
    score: float | None = None
    """How similar both are."""
    exact: bool = False


@dataclass(frozen=True)
class Explanation:
    """The group of a sample; a sample without any near one is its only member."""

    key: str
    threshold: float
    members: Sequence[Member]

    @property
    def asked(self) -> Member:
        """The sample that was asked for."""
        return next(member for member in self.members if member.key == self.key)

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        asked = self.asked
        if len(self.members) == 1:
            return f"{self.key} stays: no sample is near it"
        lines = [f"{self.key} {_fate(asked)}"]
        others = [member for member in self.members if member is not asked]
        stay = sum(member.stays for member in self.members)
        lines.append(f"group of {plural(len(self.members), 'sample')}, {stay} stay:")
        for member in others[:_SHOWN]:
            way = f" [through {', '.join(member.path[1:-1])}]" if len(member.path) > 2 else ""
            lines.append(f"  {member.key} {_fate(member)}{way}")
        if len(others) > _SHOWN:
            lines.append(f"  … and {len(others) - _SHOWN} more")
        return "\n".join(lines)


def _fate(member: Member) -> str:
    if member.against:
        return "belongs to the other dataset"
    if member.stays:
        return "stays"
    how = "equal" if member.exact else f"similarity {member.score:.4f}"
    return f"is removed: {member.kept} stays ({how})"


def why(output: str | os.PathLike[str], key: str) -> Explanation:
    """Return what `tarmac.dedup` decided about a sample, and with which samples it is connected.

    `output` is the list of keys. Nothing is computed again.
    """
    record = Record.of(output)
    if not os.path.exists(record.groups):
        what = "nothing is recorded beside this list of keys."
        raise NotFound(what, url=record.keys, hint="tarmac dedup SOURCE -o KEYS, with this name.")
    rows, facts = read_rows(record.groups, [("key", "=", shown(key))])
    if not len(rows):
        if key.encode("utf-8", "surrogateescape") not in _lines(record.keys):
            what = f"the samples that were compared have no key {key!r}."
            raise UsageError(what, field="why", url=record.keys)
        alone = Member(key, stays=True, path=[key])
        return Explanation(key, facts["threshold"], [alone])
    first = rows.sort_by("against").to_pylist()[0]
    members, _ = read_rows(record.groups, [("group", "=", first["group"])])
    listed = members.to_pylist()
    paths = _paths(record, members, first["number"], facts["threshold"])
    names = {row["number"]: row["key"] for row in listed}
    return Explanation(
        key,
        facts["threshold"],
        [
            Member(
                row["key"],
                stays=row["stays"] and not row["against"],
                path=[names[number] for number in paths[row["number"]]],
                **{name: row[name] for name in ("against", "kept", "score", "exact")},
            )
            for row in sorted(listed, key=lambda row: row["number"] != first["number"])
        ],
    )


def _lines(path: str) -> set[bytes]:
    with open(path, "rb") as file:
        return set(file.read().split(b"\n"))


def _paths(record: Record, members: Any, start: int, threshold: float) -> dict[int, list[int]]:
    """Return the shortest way of pairs from a sample to each of its group."""
    numbers = members.column("number").to_numpy()
    within = [("first", ">=", int(numbers.min())), ("first", "<=", int(numbers.max()))]
    rows, _ = read_rows(record.pairs, within)
    pairs = {name: rows.column(name).to_numpy() for name in ("first", "second", "score")}
    chosen = np.isin(pairs["first"], numbers) & (pairs["score"] >= np.float32(threshold))
    neighbours: dict[int, list[int]] = {}
    for one, other in zip(pairs["first"][chosen].tolist(), pairs["second"][chosen].tolist(), strict=True):
        neighbours.setdefault(one, []).append(other)
        neighbours.setdefault(other, []).append(one)
    paths, waiting = {start: [start]}, deque([start])
    while waiting:
        number = waiting.popleft()
        for other in neighbours.get(number, ()):
            if other not in paths:
                paths[other] = [*paths[number], other]
                waiting.append(other)
    return paths
