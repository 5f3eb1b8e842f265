"""`webdataset.compat`: the fluent classes."""

from __future__ import annotations

from tarmac.pipeline.expanding import check_empty
from tarmac.pipeline.fluid import FluidInterface
from tarmac.pipeline.webdataset import FluidWrapper, WebDataset
from tarmac.pipeline.webloader import WebLoader

__all__ = ["check_empty", "FluidInterface", "FluidWrapper", "WebDataset", "WebLoader"]
