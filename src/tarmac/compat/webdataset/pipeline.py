"""`webdataset.pipeline`: stages one after the other."""

from __future__ import annotations

from tarmac.stream.pipeline import DataPipeline

__all__ = ["DataPipeline"]
