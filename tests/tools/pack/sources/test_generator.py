"""What a function gives."""

from __future__ import annotations

import sys

import pytest

from tarmac.errors import JobError, UrlError
from tarmac.tools.pack.sources.generator import generated


def test_samples_and_arguments():
    assert list(generated(lambda a: [{"__key__": a}], ["x"])) == [{"__key__": "x"}]


def test_whose_fault_it_is():
    def broken():
        yield {"__key__": "a"}
        raise KeyError("b")

    with pytest.raises(JobError, match="--py failed: SystemExit"):
        list(generated(sys.exit, [0]))
    with pytest.raises(JobError, match="--py failed: KeyError"):
        list(generated(broken, []))
    for wrong in ([3], [{}], [{"__key__": 3}]):
        with pytest.raises(UrlError, match="sample 0"):
            list(generated(lambda wrong=wrong: wrong, []))
