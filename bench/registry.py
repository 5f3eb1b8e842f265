"""What a case is, and the list of all of them.

A case is a plain function from a `Site` and a side ("tarmac" or a peer) to the work to be timed. Making
data, importing libraries and building lists happen in the function, before the clock starts; the work
it returns takes no arguments and says how much it did. To add cases, put a file into `bench/cases/`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Site:
    """Where a case finds its data, how much of it there is, and the server in front of it."""

    data: Path
    small: int = 100_000
    big: int = 3_000
    http: str = ""
    slow: str = ""
    """The same server behind `bench.proxy`: 20 ms away."""


@dataclass(frozen=True)
class Done:
    """What some work did. Work that knows its own duration better than the clock outside gives it."""

    count: int = 1
    seconds: float | None = None
    note: str = ""
    fault: str = ""
    """A condition other than speed that was not met."""


Work = Callable[[], Done]
Setup = Callable[[Site, str], Work]


@dataclass(frozen=True)
class Case:
    name: str
    setup: Setup
    sides: tuple[str, ...] = ("tarmac", "webdataset")
    ratio: float | None = None
    """How many times faster than the peer tarmac must be."""
    bare: tuple[str, str] | None = None
    """Two more sides, without tarmac: if even their ratio is below 1, tarmac must be `ratio` of it."""
    limit: float | None = None
    """How many seconds tarmac may take; such cases are reported as times, not as rates."""
    repeat: int = 1
    """The minimum number of runs."""
    most: int | None = None
    """The maximum number of runs, of a case that takes minutes."""
    needs: tuple[str, ...] = field(default=())
    """Programs without which the case cannot run; nginx is started for those that name it."""


CASES: dict[str, Case] = {}


def case(name: str, **options) -> Callable[[Setup], Setup]:
    """Register a function as the case of this name."""

    def register(setup: Setup) -> Setup:
        CASES[name] = Case(name, setup, **options)
        return setup

    return register


def all_cases() -> dict[str, Case]:
    """Import every file of cases, in the order of their names, and return what they registered."""
    package = importlib.import_module("bench.cases")
    for module in sorted(item.name for item in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"bench.cases.{module}")
    return CASES
