"""Engines run the units of a job: in processes of this machine, or wherever a custom engine sends them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeAlias, runtime_checkable

from tarmac.errors import UsageError
from tarmac.jobs.task import Outcome, Unit

__all__ = ["Engine", "Finished", "make_engine", "register_engine", "Work"]

Work: TypeAlias = Callable[[Unit], Outcome]
Finished: TypeAlias = tuple[Unit, Outcome | Exception]


@runtime_checkable
class Engine(Protocol):
    """Runs units of work. One method is all that an engine needs."""

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Finished]:
        """Run `work` on each unit and yield (unit, result) as they finish, in any order.

        Yield an exception of `work` instead of raising it. Take units only as workers become free: after an
        error no more are wanted. When the caller stops iterating, cancel the units that have not finished.
        """


def _local(jobs: int) -> Engine:
    from tarmac.jobs.engines.local import LocalEngine

    return LocalEngine(jobs)


_factories: dict[str, Callable[[int], Engine]] = {"local": _local}


def register_engine(name: str, factory: Callable[[int], Engine]) -> None:
    """Make an engine available by name; `factory(jobs)` returns one that runs up to `jobs` units at a time.

    >>> register_engine("threads", ThreadEngine)
    >>> tarmac.copy("in-*.tar", "out-{i:06d}.tar", engine="threads", jobs=8)
    """
    _factories[name] = factory


def make_engine(engine: Engine | str | None = None, jobs: int | None = None) -> Engine:
    """Return the engine of this name ("local" by default) for `jobs` units at a time (1 by default).

    An engine object is returned unchanged.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"expected 1 or more, got {jobs}.", field="jobs")
    if engine is not None and not isinstance(engine, str):
        return engine
    name = engine or "local"
    if name not in _factories:
        known = ", ".join(sorted(_factories))
        raise UsageError(
            f"unknown engine {name!r}; registered engines: {known}.",
            field="engine",
            hint="tarmac.jobs.engines.register_engine adds one.",
        )
    return _factories[name](jobs or 1)
