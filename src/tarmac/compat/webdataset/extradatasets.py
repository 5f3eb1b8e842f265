"""`webdataset.extradatasets`: small datasets around others."""

# The names are those of the library whose calls we accept.
# ruff: noqa: N813

from __future__ import annotations

from tarmac.compat.extras import MockDataset, with_epoch, with_length
from tarmac.compat.extras import Repeated as repeatedly

__all__ = ["MockDataset", "repeatedly", "with_epoch", "with_length"]
