"""`webdataset.compat`: the fluent classes."""

from tarmac.stream.fluent import FluidInterface as FluidInterface
from tarmac.stream.read_shards import check_empty as check_empty
from tarmac.stream.webdataset import FluidWrapper as FluidWrapper
from tarmac.stream.webdataset import WebDataset as WebDataset
from tarmac.stream.webloader import WebLoader as WebLoader
