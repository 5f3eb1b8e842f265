"""tarmac: the runway from raw data to training batches.

Datasets live in plain tar shards (the WebDataset convention). `WebDataset` streams them through a pipeline
into batches, `read` gives their raw samples, from local disk, web servers and object stores, strictly:
everything, or an error that names the place. `TarWriter` and `ShardWriter` write them, whole or not at all.

Every public name of the webdataset library is here too: `import tarmac as wds`.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

TYPE_CHECKING = False  # importing it would import half of the standard library before any work
if TYPE_CHECKING:  # the same names again, for type checkers and editors
    from tarmac import errors as errors
    from tarmac.codecs import tenbin as tenbin
    from tarmac.compat.webdataset import utils as utils
    from tarmac.compat.extras import MockDataset as MockDataset
    from tarmac.compat.extras import repeatedly as repeatedly
    from tarmac.compat.extras import with_epoch as with_epoch
    from tarmac.compat.extras import with_length as with_length
    from tarmac.compat.filecache import LRUCleanup as LRUCleanup
    from tarmac.compat.gopen import gopen as gopen
    from tarmac.compat.gopen import gopen_schemes as gopen_schemes
    from tarmac.compat.gopen import pipe_cleaner as pipe_cleaner
    from tarmac.steps import handlers as handlers
    from tarmac.codecs import (
        Continue as Continue,
        Decoder as Decoder,
        DecodingError as DecodingError,
        gzfilter as gzfilter,
        handle_extension as handle_extension,
        imagehandler as imagehandler,
        torch_audio as torch_audio,
        torch_loads as torch_loads,
        torch_video as torch_video,
    )
    from tarmac.codecs.arrays import encode_npy as numpy_dumps, encode_torch as torch_dumps
    from tarmac.index.manifest import (
        Manifest as Manifest,
        read_manifest as read_manifest,
        write_manifest as write_manifest,
    )
    from tarmac.limits import Limits as Limits
    from tarmac.exact.loader import BatchSampler as BatchSampler, Loader as Loader
    from tarmac.stream.directory import DirectoryShardList as DirectoryShardList
    from tarmac.stream.shardspecs import MultiShardSample as MultiShardSample
    from tarmac.stream.mixing import RandomMix as RandomMix, RoundRobin as RoundRobin
    from tarmac.stream.shardlists import (
        ResampledShards as ResampledShards,
        SimpleShardList as SimpleShardList,
        non_empty as non_empty,
        resampled as resampled,
        shardspec as shardspec,
    )
    from tarmac.stream.shuffling import Rsample as rsample, Shuffle as shuffle, detshuffle as detshuffle
    from tarmac.stream.splitting import (
        single_node_only as single_node_only,
        split_by_node as split_by_node,
        split_by_worker as split_by_worker,
    )
    from tarmac.stream.batching import (
        Batched as batched,
        default_collation_fn as default_collation_fn,
        slice_stage as slice,
        unbatched as unbatched,
        unlisted as unlisted,
    )
    from tarmac.stream.caching import Cached as Cached, DBCache as DBCache, LMDBCached as LMDBCached
    from tarmac.steps.crops import RandomResizedCrop as RandomResizedCrop
    from tarmac.stream.datapipeline import DataPipeline as DataPipeline
    from tarmac.exact.dataset import Dataset as Dataset
    from tarmac.exact.mix import Mix as Mix
    from tarmac.stream.expanding import (
        tarfile_samples as tarfile_samples,
        tarfile_to_samples as tarfile_to_samples,
    )
    from tarmac.steps.fields import (
        Associate as associate,
        Decode as decode,
        ExtractKeys as extract_keys,
        Map as map,
        MapDict as map_dict,
        MapTuple as map_tuple,
        Rename as rename,
        RenameKeys as rename_keys,
        Select as select,
        ToTuple as to_tuple,
        XDecode as xdecode,
        getfirst as getfirst,
        transform_with as transform_with,
    )
    from tarmac.stream.fluid import FluidInterface as FluidInterface
    from tarmac.steps.handlers import (
        ignore_and_continue as ignore_and_continue,
        ignore_and_stop as ignore_and_stop,
        reraise_exception as reraise_exception,
        warn_and_continue as warn_and_continue,
        warn_and_stop as warn_and_stop,
    )
    from tarmac.steps.stage import PipelineStage as PipelineStage, pipelinefilter as pipelinefilter
    from tarmac.stream.watching import info as info, log_keys as log_keys
    from tarmac.stream.webdataset import FluidWrapper as FluidWrapper, WebDataset as WebDataset
    from tarmac.stream.webloader import WebLoader as WebLoader
    from tarmac.samples.naming import (
        first_dot as first_dot,
        known_fields as known_fields,
        last_dot as last_dot,
    )
    from tarmac.samples.reader import SampleReader as SampleReader, read as read
    from tarmac.samples.shards import ShardWriter as ShardWriter
    from tarmac.samples.writer import TarWriter as TarWriter
    from tarmac.storage import (
        Cache as Cache,
        StorageOptions as StorageOptions,
        WriteOptions as WriteOptions,
        enforce_security as enforce_security,
        register_scheme as register_scheme,
    )
    from tarmac.tar import TarOptions as TarOptions
    from tarmac.storage.urls import expand as expand

# Names are imported when first used, so that `import tarmac` stays quick and light.
# Home module: names, where NAME=THERE is called THERE at home.
_HOMES = {
    "codecs": """Continue Decoder DecodingError gzfilter handle_extension imagehandler torch_audio
        torch_loads torch_video""",
    "codecs.arrays": "numpy_dumps=encode_npy torch_dumps=encode_torch",
    "index.manifest": "Manifest read_manifest write_manifest",
    "limits": "Limits",
    "exact.loader": "BatchSampler Loader",
    "stream.directory": "DirectoryShardList",
    "stream.mixing": "RandomMix RoundRobin",
    "stream.shardlists": "ResampledShards SimpleShardList non_empty resampled shardspec",
    "stream.shardspecs": "MultiShardSample",
    "stream.shuffling": "detshuffle rsample=Rsample shuffle=Shuffle",
    "stream.splitting": "single_node_only split_by_node split_by_worker",
    "stream.batching": "batched=Batched default_collation_fn slice=slice_stage unbatched unlisted",
    "stream.caching": "Cached DBCache LMDBCached",
    "steps.crops": "RandomResizedCrop",
    "stream.datapipeline": "DataPipeline",
    "exact.dataset": "Dataset",
    "stream.expanding": "tarfile_samples tarfile_to_samples",
    "steps.fields": """associate=Associate decode=Decode extract_keys=ExtractKeys getfirst map=Map
        map_dict=MapDict map_tuple=MapTuple rename=Rename rename_keys=RenameKeys select=Select
        to_tuple=ToTuple transform_with xdecode=XDecode""",
    "compat.extras": "MockDataset repeatedly with_epoch with_length",
    "compat.filecache": "LRUCleanup",
    "stream.fluid": "FluidInterface",
    "exact.mix": "Mix",
    "steps.handlers": """ignore_and_continue ignore_and_stop reraise_exception warn_and_continue
        warn_and_stop""",
    "steps.stage": "PipelineStage pipelinefilter",
    "stream.watching": "info log_keys",
    "stream.webdataset": "FluidWrapper WebDataset",
    "stream.webloader": "WebLoader",
    "samples.naming": "first_dot known_fields last_dot",
    "samples.reader": "SampleReader read",
    "samples.shards": "ShardWriter",
    "samples.writer": "TarWriter",
    "storage": "Cache StorageOptions WriteOptions enforce_security register_scheme",
    "compat.gopen": "gopen gopen_schemes pipe_cleaner",
    "tar": "TarOptions",
    "storage.urls": "expand",
}
_MODULES = {
    "errors": "errors",
    "handlers": "steps.handlers",
    "tenbin": "codecs.tenbin",
    "utils": "compat.webdataset.utils",
}


def _places() -> dict[str, tuple[str, str]]:
    """Where each name is at home, and what it is called there."""
    places = {}
    for module, names in _HOMES.items():
        for name in names.split():
            here, _, there = name.partition("=")
            places[here] = (f"tarmac.{module}", there or here)
    return places


_PLACES = _places()

__all__ = sorted([*_PLACES, *_MODULES], key=str.lower)


def __getattr__(name: str) -> object:
    value: object
    if name in _MODULES:
        value = importlib.import_module(f"tarmac.{_MODULES[name]}")
    elif name in _PLACES:
        module, there = _PLACES[name]
        value = getattr(importlib.import_module(module), there)
    else:
        raise AttributeError(f"module 'tarmac' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
