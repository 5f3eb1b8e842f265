"""`webdataset.filters`: stages, and the same as functions of data under `_names`."""

# The names are those of the library whose calls we accept.
# ruff: noqa: N811, N813

from __future__ import annotations

from tarmac.compat.helpers import (
    Uncurried,
    combine_values,
    decode_pickle,
    dict2tuple,
    find_decoder,
    identity,
    parse_field_spec,
    tuple2dict,
)
from tarmac.order import Rsample as rsample
from tarmac.order import Shuffle as shuffle
from tarmac.order import detshuffle
from tarmac.order.shuffling import _pick as pick
from tarmac.pipeline.batching import Batched as batched
from tarmac.pipeline.batching import default_collation_fn, unbatched, unlisted
from tarmac.pipeline.batching import slice_stage as slice
from tarmac.pipeline.caching import Cached, DBCache, LMDBCached
from tarmac.pipeline.extras import compose, compose2, pipeline
from tarmac.pipeline.extras import rsample_data as _rsample
from tarmac.pipeline.extras import shuffle_data as _shuffle
from tarmac.pipeline.fields import X_DECODERS as default_decoders
from tarmac.pipeline.fields import Associate as associate
from tarmac.pipeline.fields import Decode as decode
from tarmac.pipeline.fields import ExtractKeys as extract_keys
from tarmac.pipeline.fields import Map as map
from tarmac.pipeline.fields import MapDict as map_dict
from tarmac.pipeline.fields import MapTuple as map_tuple
from tarmac.pipeline.fields import Rename as rename
from tarmac.pipeline.fields import RenameKeys as rename_keys
from tarmac.pipeline.fields import Select as select
from tarmac.pipeline.fields import ToTuple as to_tuple
from tarmac.pipeline.fields import XDecode as xdecode
from tarmac.pipeline.fields import getfirst, transform_with
from tarmac.pipeline.fields import read_bytes as decode_bin
from tarmac.pipeline.fields import read_text as decode_text
from tarmac.pipeline.handlers import reraise_exception
from tarmac.pipeline.stage import FilterFunction, PipelineStage, RestCurried, pipelinefilter
from tarmac.pipeline.watching import info, log_keys

__all__ = [
    "_associate",
    "_batched",
    "_decode",
    "_extract_keys",
    "_info",
    "_log_keys",
    "_map",
    "_map_dict",
    "_map_tuple",
    "_rename",
    "_rename_keys",
    "_rsample",
    "_select",
    "_shuffle",
    "_to_tuple",
    "_unbatched",
    "_unlisted",
    "_xdecode",
    "associate",
    "batched",
    "Cached",
    "combine_values",
    "compose",
    "compose2",
    "DBCache",
    "decode",
    "decode_bin",
    "decode_pickle",
    "decode_text",
    "default_collation_fn",
    "default_decoders",
    "detshuffle",
    "dict2tuple",
    "extract_keys",
    "FilterFunction",
    "find_decoder",
    "getfirst",
    "identity",
    "info",
    "LMDBCached",
    "log_keys",
    "map",
    "map_dict",
    "map_tuple",
    "parse_field_spec",
    "pick",
    "pipeline",
    "pipelinefilter",
    "PipelineStage",
    "rename",
    "rename_keys",
    "reraise_exception",
    "RestCurried",
    "rsample",
    "select",
    "shuffle",
    "slice",
    "to_tuple",
    "transform_with",
    "tuple2dict",
    "unbatched",
    "Uncurried",
    "unlisted",
    "xdecode",
]

_associate = Uncurried(associate)
_batched = Uncurried(batched)
_decode = Uncurried(decode)
_extract_keys = Uncurried(extract_keys)
_map = Uncurried(map)
_map_dict = Uncurried(map_dict)
_map_tuple = Uncurried(map_tuple)
_rename = Uncurried(rename)
_rename_keys = Uncurried(rename_keys)
_select = Uncurried(select)
_to_tuple = Uncurried(to_tuple)
_xdecode = Uncurried(xdecode)
_info = info.f
_log_keys = log_keys.f
_unbatched = unbatched.f
_unlisted = unlisted.f
