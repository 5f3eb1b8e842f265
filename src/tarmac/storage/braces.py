"""Expand braces, `{000..999}` and `{a,b}`: names are counted first, then yielded one at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tarmac.errors import TooManyShards, UrlError
from tarmac.limits import Limits

_RANGE = re.compile(r"\{(?P<first>-?[0-9]+)\.\.(?P<last>-?[0-9]+)(?:\.\.(?P<step>-?[0-9]+))?\}")
MAX_DIGITS = 18
"""Largest number of digits of a number in braces."""
MAX_ALTERNATIVES = 100_000
"""Largest number of names that one group of nested braces may expand to; they are built as a list."""


def expand_braces(spec: str, limits: Limits) -> Iterator[str]:
    """Yield the names that a pattern with braces expands to; the last group varies fastest."""
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
            rest, index = divmod(rest, len(pool))
            parts.append(pool[index])
        parts.reverse()
        name = "".join(parts)
        if name:
            yield name


def _groups(spec: str) -> Iterator[str]:
    """Split a pattern before and after each outermost pair of braces; an unmatched brace ends the splitting.

    `${X}` is not a group: it is left to the shell.
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
        # The leading letter preserves empty alternatives, as in `x{,-small}.tar`.
        names = bracex.expand("x" + group, keep_escapes=True, limit=min(limits.shards, MAX_ALTERNATIVES))
    except bracex.ExpansionLimitException:
        raise _too_many(spec, limits) from None
    except (RecursionError, ValueError, OverflowError):
        raise UrlError("the braces are nested too deeply, or a number is too long.", url=spec[:200]) from None
    return [name[1:] for name in names]


class _Numbers(Sequence[str]):
    """The numbers of `{000..999}`, formatted when they are needed."""

    def __init__(self, match: re.Match[str], spec: str) -> None:
        first, last, step = match["first"], match["last"], match["step"] or "1"
        if max(map(len, (first, last, step))) > MAX_DIGITS:
            raise UrlError(f"a number in the braces has more than {MAX_DIGITS} digits.", url=spec[:200])
        low, high, pace = int(first), int(last), abs(int(step)) or 1
        self._range = range(low, high + 1, pace) if low <= high else range(low, high - 1, -pace)
        self._width = max(len(first), len(last)) if _zero_padded(first) or _zero_padded(last) else 0

    def __len__(self) -> int:
        # len() of a range raises beyond the machine's word; MAX_DIGITS stays below it.
        return len(self._range)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return f"{self._range[index]:0{self._width}d}"


def _too_many(spec: str, limits: Limits) -> TooManyShards:
    return TooManyShards(
        f"the braces expand to more than {limits.shards} shards.", url=spec[:200], hint="raise Limits.shards."
    )


def _zero_padded(number: str) -> bool:
    digits = number.lstrip("-")
    return len(digits) > 1 and digits.startswith("0")
