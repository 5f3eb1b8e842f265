"""Count failed samples and stop when there are too many."""

from __future__ import annotations

from dataclasses import dataclass

from tarmac.errors import ErrorBudgetExceeded


@dataclass(slots=True)
class ErrorBudget:
    """Allow up to `max_errors` failed samples; None allows any number.

    `argument` is the name of the argument that sets the budget, for the message.
    """

    max_errors: int | None
    argument: str = "max_errors"
    failed: int = 0

    def add(self, error: object, *, url: str | None = None, key: str | None = None) -> None:
        """Count one failed sample; raise ErrorBudgetExceeded if that is one too many."""
        self.check(self.failed + 1, error, url=url, key=key)

    def check(self, failed: int, error: object, *, url: str | None = None, key: str | None = None) -> None:
        """Set the number of failed samples; raise ErrorBudgetExceeded if it exceeds the budget.

        `error` is the last error, `url` and `key` are its sample.
        """
        self.failed = failed
        if self.max_errors is not None and failed > self.max_errors:
            what = f"{failed} samples failed, more than `{self.argument}`={self.max_errors}."
            raise ErrorBudgetExceeded(f"{what} Last error: {error}", url=url, key=key) from None
