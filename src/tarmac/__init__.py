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
    from tarmac.pipeline.extras import MockDataset as MockDataset
    from tarmac.pipeline.extras import repeatedly as repeatedly
    from tarmac.pipeline.extras import with_epoch as with_epoch
    from tarmac.pipeline.extras import with_length as with_length
    from tarmac.pipeline.filecache import LRUCleanup as LRUCleanup
    from tarmac.storage.gopen import gopen as gopen
    from tarmac.storage.gopen import gopen_schemes as gopen_schemes
    from tarmac.storage.gopen import pipe_cleaner as pipe_cleaner
    from tarmac.pipeline import handlers as handlers
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
    from tarmac.loader import BatchSampler as BatchSampler, Loader as Loader
    from tarmac.order import (
        DirectoryShardList as DirectoryShardList,
        MultiShardSample as MultiShardSample,
        RandomMix as RandomMix,
        ResampledShards as ResampledShards,
        RoundRobin as RoundRobin,
        Rsample as rsample,
        Shuffle as shuffle,
        SimpleShardList as SimpleShardList,
        detshuffle as detshuffle,
        non_empty as non_empty,
        resampled as resampled,
        shardspec as shardspec,
        single_node_only as single_node_only,
        split_by_node as split_by_node,
        split_by_worker as split_by_worker,
    )
    from tarmac.pipeline.batching import (
        Batched as batched,
        default_collation_fn as default_collation_fn,
        slice_stage as slice,
        unbatched as unbatched,
        unlisted as unlisted,
    )
    from tarmac.pipeline.caching import Cached as Cached, DBCache as DBCache, LMDBCached as LMDBCached
    from tarmac.pipeline.crops import RandomResizedCrop as RandomResizedCrop
    from tarmac.pipeline.datapipeline import DataPipeline as DataPipeline
    from tarmac.pipeline.dataset import Dataset as Dataset
    from tarmac.pipeline.mix import Mix as Mix
    from tarmac.pipeline.expanding import (
        tarfile_samples as tarfile_samples,
        tarfile_to_samples as tarfile_to_samples,
    )
    from tarmac.pipeline.fields import (
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
    from tarmac.pipeline.fluid import FluidInterface as FluidInterface
    from tarmac.pipeline.handlers import (
        ignore_and_continue as ignore_and_continue,
        ignore_and_stop as ignore_and_stop,
        reraise_exception as reraise_exception,
        warn_and_continue as warn_and_continue,
        warn_and_stop as warn_and_stop,
    )
    from tarmac.pipeline.stage import PipelineStage as PipelineStage, pipelinefilter as pipelinefilter
    from tarmac.pipeline.watching import info as info, log_keys as log_keys
    from tarmac.pipeline.webdataset import FluidWrapper as FluidWrapper, WebDataset as WebDataset
    from tarmac.pipeline.webloader import WebLoader as WebLoader
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
    from tarmac.urls import expand as expand

# Names are imported when first used, so that `import tarmac` stays quick and light.
# Home module: names, where NAME=THERE is called THERE at home.
_HOMES = {
    "codecs": """Continue Decoder DecodingError gzfilter handle_extension imagehandler torch_audio
        torch_loads torch_video""",
    "codecs.arrays": "numpy_dumps=encode_npy torch_dumps=encode_torch",
    "index.manifest": "Manifest read_manifest write_manifest",
    "limits": "Limits",
    "loader": "BatchSampler Loader",
    "order": """DirectoryShardList MultiShardSample RandomMix ResampledShards RoundRobin SimpleShardList
        detshuffle non_empty resampled rsample=Rsample shardspec shuffle=Shuffle single_node_only
        split_by_node split_by_worker""",
    "pipeline.batching": "batched=Batched default_collation_fn slice=slice_stage unbatched unlisted",
    "pipeline.caching": "Cached DBCache LMDBCached",
    "pipeline.crops": "RandomResizedCrop",
    "pipeline.datapipeline": "DataPipeline",
    "pipeline.dataset": "Dataset",
    "pipeline.expanding": "tarfile_samples tarfile_to_samples",
    "pipeline.fields": """associate=Associate decode=Decode extract_keys=ExtractKeys getfirst map=Map
        map_dict=MapDict map_tuple=MapTuple rename=Rename rename_keys=RenameKeys select=Select
        to_tuple=ToTuple transform_with xdecode=XDecode""",
    "pipeline.extras": "MockDataset repeatedly with_epoch with_length",
    "pipeline.filecache": "LRUCleanup",
    "pipeline.fluid": "FluidInterface",
    "pipeline.mix": "Mix",
    "pipeline.handlers": """ignore_and_continue ignore_and_stop reraise_exception warn_and_continue
        warn_and_stop""",
    "pipeline.stage": "PipelineStage pipelinefilter",
    "pipeline.watching": "info log_keys",
    "pipeline.webdataset": "FluidWrapper WebDataset",
    "pipeline.webloader": "WebLoader",
    "samples.naming": "first_dot known_fields last_dot",
    "samples.reader": "SampleReader read",
    "samples.shards": "ShardWriter",
    "samples.writer": "TarWriter",
    "storage": "Cache StorageOptions WriteOptions enforce_security register_scheme",
    "storage.gopen": "gopen gopen_schemes pipe_cleaner",
    "tar": "TarOptions",
    "urls": "expand",
}
_MODULES = {
    "errors": "errors",
    "handlers": "pipeline.handlers",
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
