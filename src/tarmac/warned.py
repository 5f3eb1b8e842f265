"""Everything tarmac warns of; `tarmac.errors` has these names too."""

from __future__ import annotations

__all__ = ["CacheDisabled", "LoneZeroBlock", "SecretsWritten", "TarmacWarning", "TornTail", "UnclosedWriter"]


class TarmacWarning(UserWarning):
    """Root of tarmac's warnings."""


class LoneZeroBlock(TarmacWarning):
    """The end mark is one zero block instead of two; every member before it was read."""


class TornTail(TarmacWarning):
    """A lenient read stopped at a tear; the warning says where and what was left out."""


class CacheDisabled(TarmacWarning):
    """The cache directory cannot be used, so shards are streamed."""


class SecretsWritten(TarmacWarning):
    """A file that was written holds credentials: URLs with user info or a signature in it."""


class UnclosedWriter(TarmacWarning):
    """A writer was never closed; the warning says what became of its data."""
