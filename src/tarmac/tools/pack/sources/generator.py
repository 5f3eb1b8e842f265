"""Samples that a function of the user's makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tarmac.errors import JobError, TarmacError, UrlError

__all__ = ["generated"]


def generated(function: Callable[..., Any], arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What the function gives; whatever it raises says that it was the function."""
    try:
        for number, sample in enumerate(function(*arguments)):
            if not isinstance(sample, dict) or not isinstance(sample.get("__key__"), str):
                what = f"sample {number} of the function should be a dictionary with a text as __key__."
                raise UrlError(what)
            yield sample
    except TarmacError:
        raise
    except (Exception, SystemExit) as error:  # a function ends its own work, not the command
        raise JobError(f"the function of --py failed: {type(error).__name__}: {error}.") from error
