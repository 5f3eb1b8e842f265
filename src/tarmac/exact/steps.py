"""The steps that a dataset applies to each sample."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np

from tarmac.codecs.handlers import Handler as FieldDecoder
from tarmac.codecs.resize import Size
from tarmac.errors import TransformFailed
from tarmac.limits import Limits
from tarmac.steps.fields import Associate, Decode, MapDict, MapTuple, Rename
from tarmac.steps.handlers import reraise_exception
from tarmac.steps.stage import Each, name_sample

# Methods are annotated with this variable, not with `Self`, so that jedi (IPython) knows what follows a step.
S = TypeVar("S", bound="Steps")


class Map(Each):
    """Replace each sample with `f(sample)`; unlike a pipeline, do not add its key to dictionaries."""

    def __init__(self, f: Callable[[Any], Any]) -> None:
        super().__init__()
        self.f = f

    def apply(self, item: Any) -> Any:
        return self.f(item)


class MapRandomly(Each):
    """Replace each sample with `f(sample, rng)`."""

    def __init__(self, f: Callable[[Any, np.random.Generator], Any]) -> None:
        super().__init__()
        self.f = f

    def apply(self, item: Any) -> Any:
        """Apply `f` with an unseeded generator: outside of a Loader there is no epoch to derive one from."""
        return self.f(item, np.random.default_rng())


def mapping(f: Callable[..., Any], random: bool | None) -> Each:
    """Return the step that calls a function; if `random` is None, the function says whether it is random."""
    if random is None:
        random = getattr(f, "is_random", None) is True
    return MapRandomly(f) if random else Map(f)


class Matches(Each):
    """Replace each sample with whether `f(sample)` is true."""

    def __init__(self, f: Callable[[Any], object]) -> None:
        super().__init__()
        self.f = f

    def apply(self, item: Any) -> bool:
        return bool(self.f(item))


class Steps(ABC):
    """The steps that `Dataset` and `Mix` have in common. Each method returns a new object."""

    @abstractmethod
    def _then(self, step: Each) -> Any:
        """Return the same samples with one more step."""

    @property
    @abstractmethod
    def _limits(self) -> Limits:
        """The limits for decoding."""

    def decode(
        self: S,
        *decoders: str | FieldDecoder,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
        pre: Iterable[FieldDecoder] | None = None,
        post: Iterable[FieldDecoder] | None = None,
        allow_pickle: bool = False,
        limits: Limits | None = None,
        size: Size | None = None,
    ) -> S:
        """Decode fields by extension: `decode("rgb8")`.

        A string is an image format, as in a pipeline; functions decode fields that they know. `size` resizes
        images: it is the length of the shorter side, or width and height. `only` names the fields to decode.
        With `partial`, fields that are decoded already are left alone. `pre` and `post` replace the decoders that are
        tried first and last. `limits` defaults to those of the dataset.
        """
        return self._then(  # type: ignore[no-any-return]
            Decode(
                *decoders,
                only=only,
                partial=partial,
                pre=pre,
                post=post,
                allow_pickle=allow_pickle,
                limits=self._limits if limits is None else limits,
                size=size,
            )
        )

    def map_dict(self: S, **functions: Callable[[Any], Any]) -> S:
        """Apply functions to fields by name."""
        return self._then(MapDict(**functions))  # type: ignore[no-any-return]

    def map_tuple(self: S, *functions: Callable[[Any], Any] | None) -> S:
        """Apply functions to the items of a tuple, in order; None leaves an item unchanged."""
        return self._then(MapTuple(*functions))  # type: ignore[no-any-return]

    def rename(self: S, **names: str) -> S:
        """Rename fields: `rename(image="jpg;png")`."""
        return self._then(Rename(keep=True, handler=reraise_exception, **names))  # type: ignore[no-any-return]

    def associate(self: S, table: Mapping[str, Mapping[str, Any]] | Callable[[str], Mapping[str, Any]]) -> S:
        """Add fields by key, from a dictionary or a function."""
        return self._then(Associate(table))  # type: ignore[no-any-return]


def describe_step(step: Each) -> str:
    """Return the name of a step, with that of its function."""
    function = getattr(step, "f", None)
    if function is None:
        return type(step).__name__
    return f"{type(step).__name__}({getattr(function, '__name__', type(function).__name__)})"


class _PerThread(threading.local):
    """One generator per thread: setting its state is much faster than creating a generator."""

    def __init__(self) -> None:
        self.bits = np.random.PCG64(0)
        self.generator = np.random.Generator(self.bits)


_per_thread = cache(_PerThread)  # imports numpy.random when it is needed
_SPREAD = 0x9E3779B97F4A7C15


def seeded_generator(seed: int) -> np.random.Generator:
    """Return this thread's generator, seeded; the next call seeds the same generator again."""
    here = _per_thread()
    here.bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": seed << 64 | (seed ^ _SPREAD), "inc": seed << 1 | 1},
        "has_uint32": 0,
        "uinteger": 0,
    }
    return here.generator


def apply_steps(steps: Sequence[Each], sample: Any, seed: int | None) -> Any:
    """Return the result of the steps for a sample; errors name the sample."""
    item, generator, key, url = sample, None, sample["__key__"], sample["__url__"]
    try:
        for step in steps:
            if seed is not None and isinstance(step, MapRandomly):
                generator = seeded_generator(seed) if generator is None else generator
                item = step.f(item, generator)
            else:
                item = step.apply(item)
            if item is None:
                raise TransformFailed(
                    f"{describe_step(step)} returned None, but a dataset has an item for every sample.",
                    hint="where() excludes samples; Loader(max_bad_samples=n) replaces those that raise.",
                )
    except Exception as error:
        name_sample(error, url, key)
        raise
    return item
