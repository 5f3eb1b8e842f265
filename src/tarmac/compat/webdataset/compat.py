"""`webdataset.compat`: the fluent classes."""

from __future__ import annotations

from tarmac.stream.fluent import FluidInterface
from tarmac.stream.read_shards import check_empty
from tarmac.stream.webdataset import FluidWrapper, WebDataset
from tarmac.stream.webloader import WebLoader

__all__ = ["check_empty", "FluidInterface", "FluidWrapper", "WebDataset", "WebLoader"]
