"""Shuffling by arithmetic: where an index goes and where it came from, without a list of all the others.

A Feistel network over pairs. An index below `size` is written as two digits, high and low, in bases near the
square root of the size; in turn each digit is turned by an amount that depends on the other one and the key.
Each turn can be taken back, so the whole is a bijection of all pairs. There are slightly more pairs than
indices (about one in the square root of the size): what comes out beyond the size goes in again until it
falls inside, which keeps the bijection and is seldom needed.

Saved states rely on every number in this file: another constant is another order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["MAX_SIZE", "mix_key", "permute", "unpermute", "Words"]

MAX_SIZE = 1 << 62
"""The largest size: its digits still fit into 32 bits, and products of those into 64."""

Words = NDArray[np.uint64]
"""What is computed with here: unsigned numbers that wrap around."""
_Turns = Callable[[Words, Words, Words, Words, Words], tuple[Words, Words]]

# Odd numbers whose bits look random: the golden ratio and the multipliers of splitmix64.
_GOLDEN, _FIRST, _SECOND = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)
_1, _27, _30, _31, _32 = np.array([1, 27, 30, 31, 32], np.uint64)
# What tells the turns apart: digits of pi. There are six turns; after four, neighbours still show it.
_PI = "243F6A8885A308D3 13198A2E03707344 A4093822299F31D0 082EFA98EC4E6C89 452821E638D01377 BE5466CF34E90C6C"
_TURNS = np.array([int(digits, 16) for digits in _PI.split()], np.uint64)


def permute(index: ArrayLike, size: ArrayLike, key: ArrayLike) -> NDArray[np.int64]:
    """Return where each index of [0, size) goes under the permutation that the key names.

    The three are numbers or arrays that broadcast, so each element may have a size and a key of its own.
    """
    return _checked_walk(index, size, key, _turned)


def unpermute(index: ArrayLike, size: ArrayLike, key: ArrayLike) -> NDArray[np.int64]:
    """Return what `permute` takes to each index."""
    return _checked_walk(index, size, key, _turned_back)


def mix_key(key: ArrayLike, number: ArrayLike) -> Words:
    """Derive the key of a numbered part from the key of the whole (splitmix64); the two broadcast."""
    mixed: Words = (_words(number) + _1) * _GOLDEN + _words(key)
    mixed ^= mixed >> _30
    mixed *= _FIRST
    mixed ^= mixed >> _27
    mixed *= _SECOND
    mixed ^= mixed >> _31
    return mixed


def _checked_walk(index: ArrayLike, size: ArrayLike, key: ArrayLike, turns: _Turns) -> NDArray[np.int64]:
    at, sizes, keys = _words(index), _words(size), _words(key)
    if (at >= sizes).any() or (sizes > MAX_SIZE).any():
        raise ValueError("each index lies in [0, size) and each size in [1, 2**62]; a number here does not")
    return _walk(at, sizes, keys, turns).astype(np.int64)


def _walk(at: Words, sizes: Words, keys: Words, turns: _Turns) -> Words:
    """Send each index through the network until it comes out below its size."""
    highs = np.ceil(np.sqrt(sizes)).astype(np.uint64)
    lows = (sizes + highs - _1) // highs
    high = at // lows
    high, low = turns(high, at - high * lows, highs, lows, keys)
    out: Words = high * lows + low
    strays = out >= sizes
    if strays.any():
        sizes, keys = np.broadcast_to(sizes, out.shape), np.broadcast_to(keys, out.shape)
        out[strays] = _walk(out[strays], sizes[strays], keys[strays], turns)
    return out


def _turned(high: Words, low: Words, highs: Words, lows: Words, keys: Words) -> tuple[Words, Words]:
    for even, odd in zip(_TURNS[::2], _TURNS[1::2], strict=True):
        high = _plus(high, _amount(low, keys, even, highs), highs)
        low = _plus(low, _amount(high, keys, odd, lows), lows)
    return high, low


def _turned_back(high: Words, low: Words, highs: Words, lows: Words, keys: Words) -> tuple[Words, Words]:
    for even, odd in zip(_TURNS[-2::-2], _TURNS[::-2], strict=True):
        low = _minus(low, _amount(high, keys, odd, lows), lows)
        high = _minus(high, _amount(low, keys, even, highs), highs)
    return high, low


def _amount(digit: Words, keys: Words, turn: np.uint64, base: Words) -> Words:
    """Draw a number below the base from the other digit, the key and the number of the turn."""
    drawn: Words = (digit + turn) * _GOLDEN ^ keys
    drawn ^= drawn >> _32
    drawn *= _FIRST
    drawn ^= drawn >> _30
    drawn *= _SECOND
    drawn >>= _32
    # The upper half of 32 random bits times the base is below the base, without a slow division.
    drawn = drawn * base
    drawn >>= _32
    return drawn


def _plus(digit: Words, amount: Words, base: Words) -> Words:
    """Add modulo the base: of the sum with and without the base, the wrong one is huge or too large."""
    digit = digit + amount
    least: Words = np.minimum(digit, digit - base)
    return least


def _minus(digit: Words, amount: Words, base: Words) -> Words:
    """Subtract modulo the base, in the same way."""
    digit = digit - amount
    least: Words = np.minimum(digit, digit + base)
    return least


def _words(numbers: ArrayLike) -> Words:
    """Make words of at least one dimension: numpy warns when a lone number wraps around, not for arrays."""
    return np.atleast_1d(np.asarray(numbers)).astype(np.uint64)
