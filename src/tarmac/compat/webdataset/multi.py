"""`webdataset.multi`: a loader with several processes, without torch."""

from __future__ import annotations

from tarmac.compat.multiloader import MultiLoader

__all__ = ["MultiLoader"]
