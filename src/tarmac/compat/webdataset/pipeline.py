"""`webdataset.pipeline`: stages one after the other."""

from __future__ import annotations

from tarmac.pipeline.datapipeline import DataPipeline

__all__ = ["DataPipeline"]
