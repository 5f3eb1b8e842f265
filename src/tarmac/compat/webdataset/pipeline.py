"""`webdataset.pipeline`: a sequence of stages."""

from __future__ import annotations

from typing import TypeVar

from tarmac.compat.webdataset.utils import PipelineStage as PipelineStage
from tarmac.stream.length import add_length
from tarmac.stream.pipeline import DataPipeline as DataPipeline

T = TypeVar("T", bound=DataPipeline)


def add_length_method(obj: T) -> T:
    """Give a pipeline the length that its attribute `size` holds."""
    obj.length = obj.size  # type: ignore[attr-defined]
    add_length(obj)
    return obj
