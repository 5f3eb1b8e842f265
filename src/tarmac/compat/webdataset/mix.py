"""`webdataset.mix`: several datasets as one."""

from __future__ import annotations

from tarmac.compat.extras import random_samples, round_robin_longest, round_robin_shortest
from tarmac.stream.mix import RandomMix, RoundRobin

__all__ = ["random_samples", "RandomMix", "round_robin_longest", "round_robin_shortest", "RoundRobin"]
