"""Shard-name patterns: `train-{i:06d}.tar` or `train-%06d.tar`."""

from __future__ import annotations

import re

from tarmac.errors import UrlError

_PERCENT = re.compile(r"%(?:0\d+)?d(?![0-9a-fA-F])")
"""`%d` and `%06d` are numbers; `%20`, `%6d` and `%d0` are escaped characters of a URL."""
_BRACES = re.compile(r"\{i[^}]*\}")


def fill_pattern(pattern: str, number: int, **names: str) -> str:
    """Return a shard name: the pattern with a number for `{i}` or `%d`, and with other named values."""
    try:
        if "{" not in pattern:
            return _PERCENT.sub(lambda match: match[0] % number, pattern)
        return pattern.format(number, i=number, **names)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        allowed = ", ".join(["{i:06d}", *(f"{{{name}}}" for name in names)])
        raise UrlError(
            f"invalid pattern ({type(error).__name__}: {error}).", url=pattern, hint=f"use {allowed}."
        ) from None


def is_numbered(pattern: str) -> bool:
    """Return whether the names of a pattern contain the number of the shard."""
    return bool(_number(pattern).search(pattern))


def pattern_parts(pattern: str) -> tuple[str, ...]:
    """Return the text before, between and after the numbers of a pattern."""
    return tuple(_number(pattern).split(pattern))


def _number(pattern: str) -> re.Pattern[str]:
    return _BRACES if "{" in pattern else _PERCENT
