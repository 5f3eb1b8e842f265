"""The error budget."""

from __future__ import annotations

import pytest

from tarmac.errors import ErrorBudgetExceeded
from tarmac.runtime.budget import ErrorBudget


def test_one_error_too_many_raises():
    budget = ErrorBudget(2)
    budget.add("first")
    budget.add("second")
    with pytest.raises(ErrorBudgetExceeded, match=r"^3 .*`max_errors`=2.*third"):
        budget.add("third")
    assert budget.failed == 3


def test_location_and_argument():
    with pytest.raises(ErrorBudgetExceeded, match=r'a\.tar, sample "k".*`max_bad_samples`=0') as caught:
        ErrorBudget(0, "max_bad_samples").check(1, "broken", url="a.tar", key="k")
    assert (caught.value.url, caught.value.key) == ("a.tar", "k")


def test_without_a_limit_errors_are_counted():
    budget = ErrorBudget(None)
    for number in range(1000):
        budget.add(number)
    assert budget.failed == 1000
