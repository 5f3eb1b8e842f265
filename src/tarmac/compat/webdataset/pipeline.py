"""`webdataset.pipeline`: a sequence of stages."""

from __future__ import annotations

from tarmac.stream.pipeline import DataPipeline

__all__ = ["DataPipeline"]
