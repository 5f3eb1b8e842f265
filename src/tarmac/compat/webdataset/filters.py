"""`webdataset.filters`: stages, and the same as functions of data under `_names`."""

# The names are those of the library whose calls we accept.
# ruff: noqa: N811, N813

from __future__ import annotations

from tarmac.compat.extras import compose, compose2, pipeline
from tarmac.compat.extras import rsample_data as _rsample
from tarmac.compat.extras import shuffle_data as _shuffle
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
from tarmac.steps.fields import X_DECODERS as default_decoders
from tarmac.steps.fields import Associate as associate
from tarmac.steps.fields import Decode as decode
from tarmac.steps.fields import ExtractKeys as extract_keys
from tarmac.steps.fields import Map as map
from tarmac.steps.fields import MapDict as map_dict
from tarmac.steps.fields import MapTuple as map_tuple
from tarmac.steps.fields import Rename as rename
from tarmac.steps.fields import RenameKeys as rename_keys
from tarmac.steps.fields import Select as select
from tarmac.steps.fields import ToTuple as to_tuple
from tarmac.steps.fields import XDecode as xdecode
from tarmac.steps.fields import getfirst, transform_with
from tarmac.steps.fields import read_bytes as decode_bin
from tarmac.steps.fields import read_text as decode_text
from tarmac.steps.handlers import reraise_exception
from tarmac.steps.stage import FilterFunction, PipelineStage, RestCurried, pipelinefilter
from tarmac.stream.batch import Batched as batched
from tarmac.stream.batch import default_collation_fn, unbatched, unlisted
from tarmac.stream.batch import slice_stage as slice
from tarmac.stream.debug import info, log_keys
from tarmac.stream.sample_cache import Cached, DBCache, LMDBCached
from tarmac.stream.shuffle import Rsample as rsample
from tarmac.stream.shuffle import Shuffle as shuffle
from tarmac.stream.shuffle import _pick as pick
from tarmac.stream.shuffle import detshuffle

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
