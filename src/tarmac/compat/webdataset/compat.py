"""`webdataset.compat`: the fluent classes."""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tarmac import environment
from tarmac.compat.webdataset import autodecode as autodecode
from tarmac.compat.webdataset import cache as cache
from tarmac.compat.webdataset import filters as filters
from tarmac.compat.webdataset import pytorch, tariterators
from tarmac.compat.webdataset import shardlists as shardlists
from tarmac.compat.webdataset import utils as utils
from tarmac.compat.webdataset.filters import pipelinefilter as pipelinefilter
from tarmac.compat.webdataset.filters import reraise_exception as reraise_exception
from tarmac.compat.webdataset.pipeline import DataPipeline as DataPipeline
from tarmac.compat.webdataset.tariterators import group_by_keys as group_by_keys
from tarmac.compat.webdataset.tariterators import tar_file_expander as tar_file_expander
from tarmac.errors import UsageError
from tarmac.extras import import_extra
from tarmac.stream import fluent, webdataset, webloader
from tarmac.stream.read_shards import check_empty as check_empty


class FluidInterface(fluent.FluidInterface):
    """The methods of `tarmac.WebDataset`; `decode` leaves as bytes what the webdataset library does."""

    _stages = filters  # looked up when a method is called: programs may replace them


class TarSamples(tariterators.TarSamples):
    """Read shards, also with functions that the program has replaced in this module, where the library uses them."""

    def _steps(self) -> tuple[Callable[..., Any], ...]:
        here: dict[Callable[..., Any], Callable[..., Any]] = {
            _EXPANDER: tar_file_expander,
            _GROUPER: group_by_keys,
        }
        return tuple(here.get(function, function) for function in super()._steps())


_EXPANDER, _GROUPER = tar_file_expander, group_by_keys


class WebDataset(FluidInterface, webdataset.WebDataset):
    """`tarmac.WebDataset`, with functions that the program has replaced in this library.

    The constructor calls `update_cache_info(args)` and `create_url_iterator(args)`, with its arguments as attributes of
    `args`; a subclass may override both. A cache directory must exist.
    """

    _reader_stage = TarSamples

    if not TYPE_CHECKING:  # the arguments are those of the base class

        def __init__(self, *args: Any, **kw: Any) -> None:
            bound = _SIGNATURE.bind(self, *args, **kw)
            bound.apply_defaults()
            del bound.arguments["self"]
            arguments = SimpleNamespace(**bound.arguments)
            if arguments.resampled:
                arguments.mode = "resampled"  # for the hooks
            self.update_cache_info(arguments)
            self._arguments = arguments
            given = {name: vars(arguments)[name] for name in bound.arguments}
            super().__init__(**given | {"mode": None if arguments.resampled else arguments.mode})
            del self._arguments

    def update_cache_info(self, args: Any) -> None:
        """Check the cache directory before anything else is done."""
        directory = args.cache_dir or environment.cache_dir()
        if args.cache is None and directory is not None:
            path = os.path.expanduser(directory)
            if not os.path.exists(path):
                hint = f"mkdir -p {shlex.quote(os.fspath(path))}"
                raise UsageError(f"cache directory {directory} does not exist.", hint=hint)

    def create_url_iterator(self, args: Any) -> None:
        """Append the first stage, which lists the shards `args.urls`."""
        super()._append_shards(args.urls, *args.options)

    def _append_shards(self, urls: Any, *options: Any) -> None:
        self._arguments.options = options
        self.create_url_iterator(self._arguments)

    _arguments: SimpleNamespace


_SIGNATURE = inspect.signature(webdataset.WebDataset.__init__)
WebDataset.__init__.__signature__ = _SIGNATURE  # type: ignore[attr-defined]


class FluidWrapper(FluidInterface, webdataset.FluidWrapper):
    """Give any iterable the fluent interface."""


class WebLoader(FluidInterface, webloader.WebLoader):
    """`tarmac.WebLoader` with these methods; its first stage is a DataLoader."""

    @staticmethod
    def _source_class() -> type[webloader.LoaderSource]:
        import_extra("torch", "torch", "WebLoader")
        from tarmac.compat.webdataset._loader import Loader

        return Loader


def __getattr__(name: str) -> Any:
    if name != "DataLoader":
        raise AttributeError(f"module 'webdataset.compat' has no attribute {name!r}")
    return getattr(pytorch, name)
