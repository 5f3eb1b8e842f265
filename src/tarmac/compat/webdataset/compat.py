"""`webdataset.compat`: the fluent classes."""

from tarmac.compat.webdataset import filters as _filters
from tarmac.compat.webdataset.tariterators import TarSamples as _TarSamples
from tarmac.extras import import_extra
from tarmac.stream import fluent, webdataset, webloader
from tarmac.stream.read_shards import check_empty as check_empty


class FluidInterface(fluent.FluidInterface):
    """The methods of `tarmac.WebDataset`; `decode` leaves as bytes what the webdataset library does."""

    _stages = _filters  # looked up when a method is called: programs may replace them


class WebDataset(FluidInterface, webdataset.WebDataset):
    """`tarmac.WebDataset`, with functions that the program has replaced in this library."""

    _reader_stage = _TarSamples


class FluidWrapper(FluidInterface, webdataset.FluidWrapper):
    """Give any iterable the fluent interface."""


class WebLoader(FluidInterface, webloader.WebLoader):
    """`tarmac.WebLoader` with these methods; its first stage is a DataLoader."""

    @staticmethod
    def _source_class() -> type[webloader.LoaderSource]:
        import_extra("torch", "torch", "WebLoader")
        from tarmac.compat.webdataset._loader import Loader

        return Loader
