"""`webdataset.compat`: the fluent classes."""

from tarmac.compat.webdataset.filters import decode as _decode
from tarmac.compat.webdataset.tariterators import TarSamples as _TarSamples
from tarmac.stream import fluent, webdataset, webloader
from tarmac.stream.read_shards import check_empty as check_empty


class FluidInterface(fluent.FluidInterface):
    """The methods of `tarmac.WebDataset`; `decode` leaves as bytes what the webdataset library does."""

    _decode_stage = _decode


class WebDataset(FluidInterface, webdataset.WebDataset):
    """`tarmac.WebDataset`, with functions that the program has replaced in this library."""

    _reader_stage = _TarSamples


class FluidWrapper(FluidInterface, webdataset.FluidWrapper):
    """Give any iterable the fluent interface."""


class WebLoader(FluidInterface, webloader.WebLoader):
    """`tarmac.WebLoader` with these methods."""
