"""What a job is: units of work that can be done anywhere, in any order, and again if need be.

A task is sent to wherever its units run, so it must pickle; it keeps nothing between two units. What a unit
makes is named after the unit, never after who made it, and appears whole or not at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Outcome", "Task", "Unit"]


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece of a job, by a name that no other piece has."""

    name: str
    content: Any = None
    """What the task needs to know to do it; small, since it travels."""
    inputs: str = ""
    """What changes when that which it is made from does; a ledger compares it."""


@dataclass(slots=True)
class Outcome:
    """What came of one unit, as the ledger remembers it: numbers, text, lists and dictionaries."""

    read: int = 0
    """Samples that were looked at, ..."""
    written: int = 0
    """... that came out, ..."""
    failed: int = 0
    """... and that were lost, each with its reason in `errors` or counted there."""
    dropped: int = 0
    """Samples that were left out because that was asked for, ..."""
    left_out: int = 0
    """... those that a selection did not choose, ..."""
    added: int = 0
    """... and those that were made of a sample beside its first one.

    read + added = written + failed + dropped + left_out.
    """
    bytes: int = 0
    """Payload that came out."""
    outputs: dict[str, int] = field(default_factory=dict)
    """The files that were made, and their sizes."""
    inputs: str = ""
    """What it was made from, where that is seen only when it is read: else the unit says it."""
    errors: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Whatever else the task has to say about the unit: `beside`, files that belong to its outputs."""
    seconds: float = 0.0

    def fail(self, reason: str) -> None:
        """Count a lost sample; of very many the first reasons are enough."""
        self.failed += 1
        if len(self.errors) < MOST_REASONS:
            self.errors.append(reason)


MOST_REASONS = 20


class Task(ABC):
    """A job: planned once, run piece by piece, anywhere."""

    verb: str
    """What it is called, for people."""

    def options(self) -> dict[str, Any]:
        """Everything that the result depends on, as JSON: a ledger refuses to go on with other options."""
        return {}

    def begin(self, units: Sequence[Unit]) -> None:  # noqa: B027 - most have nothing to add
        """Refuse a job that was never begun before, if something is in its way."""

    @abstractmethod
    def plan(self) -> Iterable[Unit]:
        """Say what there is to do: the same units in the same order for the same options and inputs."""

    def writes(self, units: Sequence[Unit]) -> Iterable[str]:
        """Say which files it may write; no other job may write one of them meanwhile."""
        del units
        return ()

    @abstractmethod
    def run(self, unit: Unit) -> Outcome:
        """Do one unit. What it writes appears whole, by a rename or an upload that is completed."""

    def inputs(self, unit: Unit) -> str:
        """What a unit that was done before would be made from now."""
        return unit.inputs

    def commit(self, unit: Unit, outcome: Outcome) -> None:  # noqa: B027
        """Do what must have succeeded before the unit counts as done."""

    def finish(self, outcomes: Sequence[Outcome]) -> None:  # noqa: B027
        """Do what can only be done when all units are; their outcomes come in the order of the plan."""
