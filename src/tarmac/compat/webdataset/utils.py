"""`webdataset.utils`: helpers, and the switch `enforce_security`."""

from __future__ import annotations

import fnmatch
import functools
import glob
import importlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import ModuleType
from typing import Any

from tarmac import environment
from tarmac.display import visible
from tarmac.limits import DEFAULT_LIMITS
from tarmac.runtime.seeds import webdataset_seed
from tarmac.runtime.worker_info import current_worker_info
from tarmac.steps.stage import PipelineStage
from tarmac.storage.braces import expand_braces

__all__ = [
    "ObsoleteException",
    "compute_sample_weights",
    "deprecated",
    "enforce_security",
    "fnmatch_with_braces",
    "glob_with_braces",
    "guess_batchsize",
    "identity",
    "is_iterable",
    "lookup_sym",
    "make_seed",
    "obsolete",
    "PipelineStage",
    "pytorch_worker_info",
    "pytorch_worker_seed",
    "repeatedly",
    "repeatedly0",
]


def print_message(text: str) -> None:
    """Print a message that the program asked for, by `verbose` or GOPEN_VERBOSE, on standard error."""
    sys.stderr.write(f"{visible(text)}\n")


def identity(x: Any) -> Any:
    """Return the argument."""
    return x


def is_iterable(obj: Any) -> bool:
    """Return whether `obj` is iterable and neither a string nor bytes."""
    return isinstance(obj, Iterable) and not isinstance(obj, str | bytes)


def fnmatch_with_braces(filename: str, pattern: str) -> bool:
    """Return whether a name matches a shell pattern, which may have braces."""
    return any(fnmatch.fnmatch(filename, one) for one in expand_braces(pattern, DEFAULT_LIMITS))


def glob_with_braces(pattern: str) -> list[str]:
    """Return the files that match a shell pattern, which may have braces."""
    return [path for one in expand_braces(pattern, DEFAULT_LIMITS) for path in glob.glob(one)]


def compute_sample_weights(n_w_pairs: Iterable[tuple[float, float]]) -> Any:
    """Return mixing weights for pairs of size and weight, scaled to a maximum of 1."""
    import numpy as np

    weighted = np.array([size * weight for size, weight in n_w_pairs])
    return weighted / weighted.max()


def guess_batchsize(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first column."""
    return len(batch[0])


def repeatedly(
    source: Iterable[Any],
    nepochs: int | None = None,
    nbatches: int | None = None,
    nsamples: int | None = None,
    batchsize: Callable[[Any], int] = guess_batchsize,
) -> Iterator[Any]:
    """Iterate over a dataset repeatedly, up to a number of epochs, batches or samples, whichever is first.

    `batchsize(batch)` counts the samples. An epoch without items ends the iteration.
    """
    batches = samples = epochs = 0
    while nepochs is None or epochs < nepochs:
        previous = batches
        for batch in source:
            batches += 1
            samples += batchsize(batch) if nsamples is not None else 0
            yield batch
            if (nbatches is not None and batches >= nbatches) or (
                nsamples is not None and samples >= nsamples
            ):
                return
        if batches == previous:
            return
        epochs += 1


def repeatedly0(
    loader: Iterable[Any], nepochs: int = sys.maxsize, nbatches: int = sys.maxsize
) -> Iterator[Any]:
    """Iterate `nepochs` times over the first `nbatches` batches. An epoch without items ends the iteration."""
    for _ in range(nepochs):
        empty = True
        for batch in islice(loader, nbatches):
            empty = False
            yield batch
        if empty:
            return


make_seed = webdataset_seed


def pytorch_worker_info(group: Any = None) -> tuple[int, int, int, int]:
    """Return (rank, world size, worker, number of workers)."""
    info = current_worker_info(group)
    return info.rank, info.world_size, info.worker, info.workers


def pytorch_worker_seed(group: Any = None) -> int:
    """Return a number that differs between workers and ranks."""
    info = current_worker_info(group)
    return info.rank * 1000 + info.worker


def lookup_sym(sym: str, modules: Iterable[str]) -> Any:
    """Return the first attribute of this name in modules of the library, such as `.filters`, or None."""
    for name in modules:
        module = importlib.import_module(name, package=__package__)
        if getattr(module, sym, None) is not None:
            return getattr(module, sym)
    return None


class ObsoleteException(Exception):
    """A function that `obsolete` has marked was called."""


def deprecated(arg: Any = None) -> Any:
    """Make calls of a function warn: `@deprecated`, or `@deprecated("reason")`."""
    if not callable(arg):
        return functools.partial(_deprecated, reason=arg)
    return _deprecated(arg, None)


def _deprecated(function: Callable[..., Any], reason: str | None) -> Callable[..., Any]:
    @functools.wraps(function)
    def warning(*args: Any, **kw: Any) -> Any:
        because = "" if reason is None else f" Reason: {reason}"
        message = f"Call to deprecated function {function.__name__}.{because}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return function(*args, **kw)

    return warning


def obsolete(func: Callable[..., Any] | None = None, *, reason: str | None = None) -> Any:
    """Make calls of a function raise: `@obsolete`, or `@obsolete(reason="…")`."""
    if func is None:
        return functools.partial(obsolete, reason=reason)

    @functools.wraps(func)
    def raising(*_args: Any, **_kw: Any) -> Any:
        because = "" if reason is None else f" Reason: {reason}"
        raise ObsoleteException(f"Call to obsolete function {func.__name__}.{because}")

    return raising


class _UtilsModule(ModuleType):
    """The class of this module: assigning to `enforce_security` switches secure mode."""

    @property
    def enforce_security(self) -> bool:
        """Whether secure mode is on."""
        return environment.is_secure()

    @enforce_security.setter
    def enforce_security(self, on: bool) -> None:
        environment.enforce_security(bool(on))


enforce_security: bool
sys.modules[__name__].__class__ = _UtilsModule
