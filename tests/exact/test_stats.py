from __future__ import annotations

import pytest

from tarmac.exact.loader.stats import Stats


def test_stats_add_up():
    one = Stats(samples=1, batches=2, read=0.5, waiting=1.0)
    both = one + Stats(samples=10, steps=2.0)
    assert (both.samples, both.batches, both.read, both.steps, both.waiting) == (11, 2, 0.5, 2.0, 1.0)


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ({"waiting": 0.01, "consuming": 1.0}, "training loop is the bottleneck"),
        ({"waiting": 1.0, "read": 5.0, "steps": 1.0}, "reading (83% of the work)"),
        ({"waiting": 1.0, "read": 1.0, "steps": 9.0}, "decoding and mapping"),
        ({"waiting": 1.0, "collate": 9.0}, "collating"),
        ({"waiting": 1.0, "transfer": 9.0}, "threads instead of processes"),
    ],
)
def test_the_verdict_names_the_bottleneck(times, verdict):
    assert verdict in Stats(samples=100, batches=10, **times).verdict()


def test_the_rate_is_that_of_the_training_loop():
    assert Stats(samples=300, batches=3, waiting=1.0, consuming=2.0).verdict().startswith("100 samples/s")
