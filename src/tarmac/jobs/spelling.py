"""Keep jobs independent of how their output is spelt, and of where it is moved.

A ledger lies beside the output of its job, so the names in it are relative to the directory that holds both. Those of
ledgers of earlier versions begin with that directory as it was spelt when the job started.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tarmac.jobs.task import Outcome
from tarmac.storage import is_local, location, without_query
from tarmac.storage.local import local_path

HOME = ".tarmac/"
"""The directory of ledgers."""
BESIDE = "./"
"""What names in a ledger begin with that are in the directory of the output."""
_FILES = "manifest", "directory"
V = TypeVar("V")


def divide(output: str) -> tuple[str, str]:
    """Return the directory of an output, empty or with a slash at its end, and the rest: a name, or a pattern of names.

    The directory is what comes before all numbers, names and splits, since the ledger is in it.
    """
    path = without_query(output)
    fixed = path.partition("{")[0].rpartition("/")[0]
    directory = f"{fixed}/" if fixed or path.startswith("/") else ""
    return directory, path[len(directory) :]


@dataclass(frozen=True)
class Spelling:
    """Translates names between this run, which spells the directory `here`, and a ledger that has it as `there`."""

    here: str = ""
    there: str = ""
    units: bool = True
    """Whether the names of units are those of files."""

    @classmethod
    def of(cls, ledger: str, options: Mapping[str, Any] | None = None, *, units: bool = True) -> Spelling:
        """Return that of a ledger; `options` are those that an earlier version recorded in it."""
        here = _home(ledger)
        if here is None:  # a ledger that the user has named
            return cls()
        there = BESIDE if options is None else _earlier_directory(options)
        return cls(here, here if there is None else there, units)

    def to_ledger(self, name: str) -> str:
        """Return the name that the ledger has for a file."""
        return _moved(name, self.here, self.there)

    def unit_to_ledger(self, name: str) -> str:
        """Return the name that the ledger has for a unit."""
        return self.to_ledger(name) if self.units else name

    def from_ledger(self, name: str) -> str:
        """Return the name of a file that the ledger names."""
        return _moved(name, self.there, self.here)

    def unit_from_ledger(self, name: str) -> str:
        """Return the name of a unit that the ledger names."""
        return self.from_ledger(name) if self.units else name


AS_SPELT = Spelling()
"""Stores names as they are."""


def respelt(outcome: Outcome, spell: Callable[[str], str]) -> Outcome:
    """Return an outcome whose files have other names."""

    def files(values: Mapping[str, V]) -> dict[str, V]:
        return {spell(name): value for name, value in values.items()}

    return replace(
        outcome,
        outputs=files(outcome.outputs),
        companions=files(outcome.companions),
        sampled_digests=files(outcome.sampled_digests),
    )


def relative_name(ledger: str, unit: str) -> str:
    """Return a name of a unit that does not depend on how its directory is spelt."""
    return Spelling.of(ledger).to_ledger(unit)


def logical_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a job must be continued with: where its files are is none of them, unlike their names."""
    names = {name: _file_name(value) for name in _FILES if isinstance(value := options.get(name), str)}
    pattern = options.get("pattern")
    if isinstance(pattern, str):
        directory, name = divide(pattern)
        names["pattern"] = name if directory + name == pattern else pattern  # a query distinguishes jobs
    return dict(options) | names


def _file_name(url: str) -> str:
    bare = url.rstrip("/") or url
    return bare.rpartition("/")[2] if without_query(bare) == bare else url


def _home(ledger: str) -> str | None:
    """Return the directory that holds a ledger and the files of its job; None if that does not show."""
    for url in (ledger, location(ledger)):
        directory, mark, _ = url.rpartition(f"/{HOME}")
        if mark:
            return f"{directory}/"
        if url.startswith(HOME):
            return ""
    return None


def _earlier_directory(options: Mapping[str, Any]) -> str | None:
    """Return the directory of the output as an earlier version recorded it; None if it did not."""
    for name in ("directory", "pattern"):
        value = options.get(name)
        if isinstance(value, str):
            return divide(value.rstrip("/") if name == "directory" else value)[0]
    return None


def _moved(name: str, old: str, new: str) -> str:
    """Return a name in the directory `new` instead of `old`; names outside of it stay."""
    if old == new:
        return name
    inside = name.startswith(old) if old else is_local(name) and not os.path.isabs(local_path(name))
    return f"{new}{name[len(old) :]}" if inside else name
