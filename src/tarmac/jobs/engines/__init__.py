"""Engines run the units of a job: in processes of this machine, on a cluster, or where a custom engine sends them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeAlias, runtime_checkable

from tarmac.errors import UsageError
from tarmac.jobs.share import SLURM
from tarmac.jobs.task import Outcome, Unit
from tarmac.runtime.device import devices

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


def _dask(jobs: int, address: str = "") -> Engine:
    from tarmac.jobs.engines.dask import DaskEngine

    return DaskEngine(jobs, address)


def _ray(jobs: int, address: str = "") -> Engine:
    from tarmac.jobs.engines.ray import RayEngine

    return RayEngine(jobs, address)


def _spark(jobs: int, address: str = "") -> Engine:
    from tarmac.jobs.engines.spark import SparkEngine

    return SparkEngine(jobs, address)


_factories: dict[str, Callable[..., Engine]] = {"local": _local, "dask": _dask, "ray": _ray, "spark": _spark}


def register_engine(name: str, factory: Callable[..., Engine]) -> None:
    """Make an engine available by name; `factory(jobs)` returns one that runs up to `jobs` units at a time.

    `NAME://HOST:PORT` calls `factory(jobs, "NAME://HOST:PORT")`. An engine that assigns devices has an attribute
    `device`.

    >>> register_engine("threads", ThreadEngine)
    >>> tarmac.copy("in-*.tar", "out-{i:06d}.tar", engine="threads", jobs=8)
    """
    _factories[name] = factory


def make_engine(
    engine: Engine | str | None = None, jobs: int | None = None, device: str | None = None
) -> Engine:
    """Return the engine of this name ("local" by default) for `jobs` units at a time (1 by default).

    A name may have an address: `dask://HOST:PORT`. An engine object is returned unchanged. `device` is a list of
    devices that the engine assigns to its workers.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"expected 1 or more, got {jobs}.", field="jobs")
    if device is not None:
        devices(device)
    chosen = _named(engine or "local", jobs or 1) if engine is None or isinstance(engine, str) else engine
    if device is not None:
        if not hasattr(chosen, "device"):
            raise UsageError(f"the engine {engine!r} assigns no devices.", field="device")
        chosen.device = device
    return chosen


def _named(engine: str, jobs: int) -> Engine:
    name = engine.partition("://")[0].partition("+")[0]
    if name not in _factories:
        known = sorted([*_factories, SLURM])
        close = difflib.get_close_matches(name, known, 1)
        raise UsageError(
            f"unknown engine {engine!r}; registered engines: {', '.join(known)}.",
            field="engine",
            hint=f"`engine` {close[0]}." if close else "tarmac.jobs.engines.register_engine adds one.",
        )
    factory = _factories[name]
    if engine == name:
        return factory(jobs)
    try:
        inspect.signature(factory).bind(jobs, engine)
    except TypeError:
        raise UsageError(f"the engine {name} has no address.", field="engine") from None
    return factory(jobs, engine)
