"""Keyed permutations of [0, size) as arithmetic, without lists.

A Feistel network over pairs of digits. An index below `size` is written as two digits, high and low, in bases
close to the square root of the size. In each round, one digit is rotated by an amount that depends on the
other digit and the key. Each round can be inverted, so the network is a bijection of all pairs. There are
slightly more pairs than indices (about one in the square root of the size). An output beyond the size is put
through the network again until it is inside (cycle walking), which keeps the bijection and is rarely needed.

Saved states depend on every number in this file: changing a constant changes the order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_SIZE = 1 << 62
"""The largest size: its digits fit into 32 bits, and their products into 64."""

Words = NDArray[np.uint64]
"""Unsigned numbers that wrap around."""
_Network = Callable[[Words, Words, Words, Words, Words], tuple[Words, Words]]

# Odd numbers whose bits look random: the golden ratio and the multipliers of splitmix64.
_GOLDEN, _FIRST, _SECOND = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)
_1, _27, _30, _31, _32 = np.array([1, 27, 30, 31, 32], np.uint64)
# One constant per round: digits of pi. There are six rounds; after four, neighbours are still correlated.
_PI = "243F6A8885A308D3 13198A2E03707344 A4093822299F31D0 082EFA98EC4E6C89 452821E638D01377 BE5466CF34E90C6C"
_ROUNDS = np.array([int(digits, 16) for digits in _PI.split()], np.uint64)


def permute(index: ArrayLike, size: ArrayLike, key: ArrayLike) -> NDArray[np.int64]:
    """Return the image of each index of [0, size) under the permutation of the key.

    The arguments are numbers or arrays that broadcast, so each element can have its own size and key.
    """
    return _checked(index, size, key, _forward)


def unpermute(index: ArrayLike, size: ArrayLike, key: ArrayLike) -> NDArray[np.int64]:
    """Return the index that `permute` maps to each index."""
    return _checked(index, size, key, _backward)


def mix_key(key: ArrayLike, number: ArrayLike) -> Words:
    """Derive the key of a numbered part from a key (splitmix64); the arguments broadcast."""
    mixed: Words = (_words(number) + _1) * _GOLDEN + _words(key)
    mixed ^= mixed >> _30
    mixed *= _FIRST
    mixed ^= mixed >> _27
    mixed *= _SECOND
    mixed ^= mixed >> _31
    return mixed


def _checked(index: ArrayLike, size: ArrayLike, key: ArrayLike, network: _Network) -> NDArray[np.int64]:
    at, sizes, keys = _words(index), _words(size), _words(key)
    if (at >= sizes).any() or (sizes > MAX_SIZE).any():
        raise ValueError("expected each index in [0, size) and each size in [1, 2**62]")
    return _cycle_walk(at, sizes, keys, network).astype(np.int64)


def _cycle_walk(at: Words, sizes: Words, keys: Words, network: _Network) -> Words:
    """Put each index through the network until the result is below its size."""
    highs = np.ceil(np.sqrt(sizes)).astype(np.uint64)
    lows = (sizes + highs - _1) // highs
    high = at // lows
    high, low = network(high, at - high * lows, highs, lows, keys)
    out: Words = high * lows + low
    outside = out >= sizes
    if outside.any():
        sizes, keys = np.broadcast_to(sizes, out.shape), np.broadcast_to(keys, out.shape)
        out[outside] = _cycle_walk(out[outside], sizes[outside], keys[outside], network)
    return out


def _forward(high: Words, low: Words, highs: Words, lows: Words, keys: Words) -> tuple[Words, Words]:
    for even, odd in zip(_ROUNDS[::2], _ROUNDS[1::2], strict=True):
        high = _plus(high, _amount(low, keys, even, highs), highs)
        low = _plus(low, _amount(high, keys, odd, lows), lows)
    return high, low


def _backward(high: Words, low: Words, highs: Words, lows: Words, keys: Words) -> tuple[Words, Words]:
    for even, odd in zip(_ROUNDS[-2::-2], _ROUNDS[::-2], strict=True):
        low = _minus(low, _amount(high, keys, odd, lows), lows)
        high = _minus(high, _amount(low, keys, even, highs), highs)
    return high, low


def _amount(digit: Words, keys: Words, constant: np.uint64, base: Words) -> Words:
    """Hash the other digit, the key and the constant of the round to a number below the base."""
    drawn: Words = (digit + constant) * _GOLDEN ^ keys
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
    """Add modulo the base: of the sum and the sum minus the base, the wrong one is larger or wraps around."""
    digit = digit + amount
    least: Words = np.minimum(digit, digit - base)
    return least


def _minus(digit: Words, amount: Words, base: Words) -> Words:
    """Subtract modulo the base, likewise."""
    digit = digit - amount
    least: Words = np.minimum(digit, digit + base)
    return least


def _words(numbers: ArrayLike) -> Words:
    """Return words of at least one dimension: numpy warns when a scalar wraps around, but not for arrays."""
    return np.atleast_1d(np.asarray(numbers)).astype(np.uint64)
