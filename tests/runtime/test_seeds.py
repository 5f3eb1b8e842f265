"""Deriving seeds."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.runtime.seeds import make_seed, random_seed, seed_or_default

ATOMS = st.one_of(st.integers(), st.text(max_size=5), st.binary(max_size=5), st.none())
PARTS = st.lists(st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=3).map(tuple)), max_size=4).map(
    tuple
)


@settings(deadline=None, derandomize=True)
@given(PARTS, PARTS)
def test_different_values_give_different_seeds(one, other):
    assert (make_seed(*one) == make_seed(*other)) == (one == other)


@settings(deadline=None, derandomize=True)
@given(PARTS)
def test_seeds_have_63_bits(parts):
    seed = make_seed(*parts)
    assert 0 <= seed < 2**63
    random.Random(seed)


def test_values_that_collide_in_webdataset():
    """In the webdataset library make_seed(0, 31, 0) == make_seed(1, 0, 0)."""
    assert make_seed(0, 31, 0) != make_seed(1, 0, 0)
    seeds = {make_seed(a, b, c) for a in range(40) for b in range(40) for c in range(40)}
    assert len(seeds) == 40**3


def test_boundaries_between_parts_matter():
    assert len({make_seed("ab", "c"), make_seed("a", "bc"), make_seed("abc"), make_seed(("ab", "c"))}) == 4
    assert len({make_seed(1), make_seed("1"), make_seed(b"1"), make_seed(1.0), make_seed((1,))}) == 5
    assert make_seed(-1) != make_seed(255)


def test_seeds_are_the_same_in_every_process():
    assert make_seed("shuffle", 0, 1, 2, 3) == 8876914808561996348
    code = "from tarmac.runtime.seeds import make_seed; print(make_seed('shuffle', 0, 1, 2, 3))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == make_seed("shuffle", 0, 1, 2, 3)


def test_invalid_types():
    with pytest.raises(TypeError, match="list"):
        make_seed([1])
    with pytest.raises(TypeError, match="dict"):
        make_seed((0, {}))


def test_numpy_integers():
    import numpy as np

    assert make_seed(np.int64(5)) == make_seed(5)


def test_the_default_seed(monkeypatch):
    assert seed_or_default(None) == 0
    assert seed_or_default(3) == 3
    monkeypatch.setenv("WDS_SEED", "9")
    assert seed_or_default(None) == 9
    assert seed_or_default(0) == 0


def test_random_seeds():
    assert len({random_seed() for _ in range(100)}) == 100
