"""`webdataset.mix`: several datasets as one."""

from __future__ import annotations

from tarmac.order import RandomMix, RoundRobin
from tarmac.pipeline.extras import random_samples, round_robin_longest, round_robin_shortest

__all__ = ["random_samples", "RandomMix", "round_robin_longest", "round_robin_shortest", "RoundRobin"]
