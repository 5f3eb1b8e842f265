"""What a dataset does to each sample, one after the other."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from tarmac.display import display_url
from tarmac.errors import MissingField, TarmacError
from tarmac.steps.fields import Associate, Decode, Map, MapDict, MapTuple, Rename, ToTuple
from tarmac.steps.handlers import reraise_exception
from tarmac.steps.stage import Each

__all__ = ["apply_steps", "MapRandomly", "seeded_generator", "Steps"]


class MapRandomly(Each):
    """Replace each sample by `f(sample, rng)`."""

    def __init__(self, f: Callable[[Any, np.random.Generator], Any]) -> None:
        super().__init__()
        self.f = f

    def apply(self, item: Any) -> Any:
        """Draw numbers nobody can foresee: outside of a Loader there is no epoch to derive them from."""
        return self.f(item, np.random.default_rng())


class Steps(ABC):
    """What can be done to each sample of something that has samples."""

    @abstractmethod
    def _then(self, step: Each) -> Self:
        """Return the same samples with one more step done to each."""

    def decode(self, *args: Any, **kw: Any) -> Self:
        """Decode fields by extension, as in a pipeline: `decode("rgb8")`."""
        return self._then(Decode(*args, **kw))

    def map(self, f: Callable[..., Any], *, random: bool = False) -> Self:
        """Replace each sample by `f(sample)`.

        With `random` it is `f(sample, rng)`: a numpy generator which in a Loader depends on seed, epoch and
        position only, so that a resumed epoch draws the same numbers on any number of workers.
        """
        return self._then(MapRandomly(f) if random else Map(f))

    def map_dict(self, **functions: Callable[[Any], Any]) -> Self:
        """Apply functions to fields by name."""
        return self._then(MapDict(**functions))

    def map_tuple(self, *functions: Callable[[Any], Any] | None) -> Self:
        """Apply functions to the items of a tuple, in order; None leaves one alone."""
        return self._then(MapTuple(*functions))

    def rename(self, **names: str) -> Self:
        """Give fields new names: `rename(image="jpg;png")`."""
        return self._then(Rename(keep=True, handler=reraise_exception, **names))

    def to_tuple(self, *fields: str) -> Self:
        """Pick fields into a tuple; `"jpg;png"` takes whichever is there."""
        return self._then(ToTuple(*fields))

    def associate(self, table: Mapping[str, Mapping[str, Any]] | Callable[[str], Mapping[str, Any]]) -> Self:
        """Add fields found by key, in a dictionary or through a function."""
        return self._then(Associate(table))


class _OfThread(threading.local):
    """One generator for each thread: putting it into a state is much quicker than making a new one."""

    def __init__(self) -> None:
        self.bits = np.random.PCG64(0)
        self.generator = np.random.Generator(self.bits)


_own = _OfThread()


def seeded_generator(seed: int) -> np.random.Generator:
    """Return a generator that begins where the seed says; it is this thread's until the next call."""
    own = _own
    own.bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": seed << 64 | (seed ^ _SPREAD), "inc": seed << 1 | 1},
        "has_uint32": 0,
        "uinteger": 0,
    }
    return own.generator


_SPREAD = 0x9E3779B97F4A7C15


def apply_steps(steps: Sequence[Each], sample: Any, seed: int | None) -> Any:
    """Return what the steps make of a sample; an error says which sample it was."""
    item, generator, key, url = sample, None, sample["__key__"], sample["__url__"]
    try:
        for step in steps:
            if seed is not None and isinstance(step, MapRandomly):
                generator = seeded_generator(seed) if generator is None else generator
                item = step.f(item, generator)
            else:
                item = step.apply(item)
            if item is None:
                raise MissingField(
                    f"{type(step).__name__} returned None, but every number of a dataset has its sample.",
                    hint="where() to leave samples out, or Loader(bad=…) with an exception.",
                )
    except TarmacError as error:
        error.at(url=url, key=key)
        raise
    except Exception as error:
        error.add_note(f'at sample "{key}" of {display_url(url)}')
        raise
    return item
