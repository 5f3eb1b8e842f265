"""`{000..999}` and `{a,b}`: patterns to names, counted before they are made and made one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tarmac.errors import TooManyShards, UrlError
from tarmac.limits import Limits

__all__ = ["expand_braces"]

_RANGE = re.compile(r"\{(?P<first>-?[0-9]+)\.\.(?P<last>-?[0-9]+)(?:\.\.(?P<step>-?[0-9]+))?\}")
LONGEST_NUMBER = 18
"""Digits of a number in braces."""
ALTERNATIVES = 100_000
"""Most names that one brace group with braces inside may stand for, as these are not walked but listed."""


def expand_braces(spec: str, limits: Limits) -> Iterator[str]:
    """Expand braces, the last one fastest. All names are counted first and then made one by one."""
    if "{" not in spec:
        yield spec
        return
    pools = []
    total = 1
    for group in _groups(spec):
        pools.append(_alternatives(group, spec, limits))
        total *= len(pools[-1])
        if total > limits.shards:
            raise _too_many(spec, limits)
    pools.reverse()
    for number in range(total):
        parts = []
        rest = number
        for pool in pools:
            rest, place = divmod(rest, len(pool))
            parts.append(pool[place])
        parts.reverse()
        name = "".join(parts)
        if name:
            yield name


def _groups(spec: str) -> Iterator[str]:
    """Cut a pattern before and after each outermost pair of braces; an unmatched one keeps the rest whole.

    `${X}` is the shell's, not ours.
    """
    depth = start = 0
    for match in re.finditer(r"\\.|\$\{[^{}]*\}|[{}]", spec):
        if match[0] == "{":
            if depth == 0 and match.start() > start:
                yield spec[start : match.start()]
                start = match.start()
            depth += 1
        elif match[0] == "}" and depth:
            depth -= 1
            if depth == 0:
                yield spec[start : match.end()]
                start = match.end()
    if start < len(spec):
        yield spec[start:]


def _alternatives(group: str, spec: str, limits: Limits) -> Sequence[str]:
    match = _RANGE.fullmatch(group)
    if match is not None:
        return _Numbers(match, spec)
    if "{" not in group:
        return (group,)
    import bracex

    try:
        # The letter in front keeps alternatives that are empty, as in `x{,-small}.tar`.
        found = bracex.expand("x" + group, keep_escapes=True, limit=min(limits.shards, ALTERNATIVES))
    except bracex.ExpansionLimitException:
        raise _too_many(spec, limits) from None
    except (RecursionError, ValueError, OverflowError):
        raise UrlError("the braces are nested too deep, or hold numbers too long.", url=spec[:200]) from None
    return [name[1:] for name in found]


class _Numbers(Sequence[str]):
    """`{000..999}` without writing it out: what stands for a million shards."""

    def __init__(self, match: re.Match[str], spec: str) -> None:
        first, last, step = match["first"], match["last"], match["step"] or "1"
        if max(map(len, (first, last, step))) > LONGEST_NUMBER:
            raise UrlError(f"a number in the braces has more than {LONGEST_NUMBER} digits.", url=spec[:200])
        low, high, pace = int(first), int(last), abs(int(step)) or 1
        self._range = range(low, high + 1, pace) if low <= high else range(low, high - 1, -pace)
        self._width = max(len(first), len(last)) if _zero_padded(first) or _zero_padded(last) else 0

    def __len__(self) -> int:
        # len() of a range raises beyond the machine's word; the digits allowed keep us below it.
        return len(self._range)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return f"{self._range[index]:0{self._width}d}"


def _too_many(spec: str, limits: Limits) -> TooManyShards:
    return TooManyShards(
        f"the braces stand for more than {limits.shards} shards.", url=spec[:200], hint="raise Limits.shards."
    )


def _zero_padded(number: str) -> bool:
    digits = number.lstrip("-")
    return len(digits) > 1 and digits.startswith("0")
