"""Define a job: units of work that can run anywhere, in any order, and more than once.

A task is sent to the workers, so it must pickle, and it keeps nothing between two units. Outputs are named
after their unit, never after the worker, and appear complete or not at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Status: TypeAlias = list["int | str | None"]
"""What the system or a store reports about an input: size, times and inode, or size and ETag."""

MAX_REASONS = 20
"""Errors kept per unit; all are counted."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece of a job, with a name that is unique in the job."""

    name: str
    content: Any = None
    """What the task needs to run the unit. It is sent to a worker, so keep it small."""
    inputs: str = ""
    """Fingerprint of the unit's inputs; a different value forces a rebuild."""


@dataclass(slots=True)
class Outcome:
    """The result of one unit, as the ledger stores it. The numbers count what those of a `Report` count."""

    read: int = 0
    written: int = 0
    failed: int = 0
    dropped: int = 0
    left_out: int = 0
    added: int = 0
    bytes: int = 0
    outputs: dict[str, int] = field(default_factory=dict)
    """Files written, with their sizes."""
    companions: dict[str, int] = field(default_factory=dict)
    """Files that belong to the outputs, such as their indexes, with their sizes."""
    removed: bool = False
    """Whether the outputs were removed on purpose after they were processed."""
    sampled_digests: dict[str, str] = field(default_factory=dict)
    """Sampled digests of local outputs, to recognise them later."""
    inputs: str = ""
    """Fingerprint of the inputs if it is known only after reading them; otherwise see `Unit.inputs`."""
    content: str = ""
    """Digest of the samples that the unit read; empty if it is unknown."""
    errors: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    """Results that only the task itself reads, as JSON."""
    seconds: float = 0.0

    def fail(self, reason: str) -> None:
        """Count a failed sample and keep its reason, unless there are many already."""
        self.failed += 1
        if len(self.errors) < MAX_REASONS:
            self.errors.append(reason)

    @property
    def files(self) -> dict[str, int]:
        """All files that must still exist for the unit to count as done, with their sizes."""
        return {} if self.removed else self.outputs | self.companions


class Task(ABC):
    """A job: planned once, run unit by unit, anywhere."""

    verb: str
    """The name of the job in messages and ledgers."""
    job: str = ""
    """Identifies the job and its generation, for what belongs to them alone; set before units are run."""
    lists_outputs: bool = True
    """Whether outcomes list all files, so that those of an overwritten job can be removed."""
    names_files: bool = True
    """Whether the names of units are those of files."""

    def options(self) -> dict[str, Any]:
        """Return everything that the result depends on, as JSON; a job resumes only with equal options."""
        return {}

    def earlier_options(self) -> dict[str, Any]:
        """Return the options as earlier versions recorded them, to recognise their jobs."""
        return self.options()

    def begin(self, units: Sequence[Unit]) -> None:  # noqa: B027 - most tasks need no check
        """Raise if a new job cannot start, for example because an output exists."""

    @abstractmethod
    def plan(self) -> Iterable[Unit]:
        """Return the units: the same in the same order for the same options and inputs."""

    def writes(self, units: Sequence[Unit]) -> Iterable[str]:
        """Return the files that the units may write; concurrent jobs must not write them."""
        del units
        return ()

    @abstractmethod
    def run(self, unit: Unit) -> Outcome:
        """Run one unit. Its outputs must appear atomically, by a rename or a completed upload."""

    def inputs(self, unit: Unit) -> str:
        """Return the current fingerprint of the inputs of a unit that is already done."""
        return unit.inputs

    def earlier_inputs(self, unit: Unit) -> str:
        """Return that fingerprint as earlier versions computed it, for units that they recorded."""
        return ""

    def reads(self) -> Mapping[str, Status]:
        """Return the current status of all inputs that are known in advance."""
        return {}

    def statuses(self, unit: Unit) -> Mapping[str, Status]:
        """Return the current status of each input of a unit, to name those that have changed."""
        return {}

    def content(self, unit: Unit) -> str:
        """Read the inputs of a unit again and return their digest, as in `Outcome.content`; empty if unknown."""
        return ""

    def commit(self, unit: Unit, outcome: Outcome) -> None:  # noqa: B027
        """Do what must succeed before the unit counts as done."""

    def clean_up(self, unit: Unit, outcome: Outcome) -> None:  # noqa: B027
        """Remove what was kept for another attempt; the unit is recorded."""

    def closing(self) -> dict[str, Any] | None:
        """Return what `finish` needs besides the outcomes, as JSON (see `tools/closing.py`); None if it needs more."""
        return {} if type(self).finish is Task.finish else None

    def finish(self, outcomes: Sequence[Outcome]) -> None:  # noqa: B027
        """Do what needs all units; their outcomes are in the order of the plan."""
