"""`webdataset.filters`: stages, and under `_names` the same as functions of data."""

from __future__ import annotations

import fnmatch
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, TypeVar

from tarmac.codecs.unsafe import pickle_loads
from tarmac.compat.webdataset import autodecode as autodecode
from tarmac.compat.webdataset import utils as utils
from tarmac.compat.webdataset._stages import Uncurried as Uncurried
from tarmac.compat.webdataset._stages import function_of, library_stage
from tarmac.compat.webdataset.autodecode import Decoder
from tarmac.compat.webdataset.utils import identity as identity
from tarmac.runtime.seeds import random_seed
from tarmac.steps import fields
from tarmac.steps.fields import getfirst as getfirst
from tarmac.steps.fields import transform_with as transform_with
from tarmac.steps.handlers import Handler
from tarmac.steps.handlers import reraise_exception as reraise_exception
from tarmac.steps.stage import FilterFunction as FilterFunction
from tarmac.steps.stage import PipelineStage as PipelineStage
from tarmac.steps.stage import RestCurried as RestCurried
from tarmac.steps.stage import pipelinefilter as pipelinefilter
from tarmac.stream import batch
from tarmac.stream import shuffle as shuffling
from tarmac.stream.batch import default_collation_fn as default_collation_fn
from tarmac.stream.batch import unbatched as unbatched
from tarmac.stream.batch import unlisted as unlisted
from tarmac.stream.debug import info as info
from tarmac.stream.debug import log_keys as log_keys
from tarmac.stream.sample_cache import Cached as Cached
from tarmac.stream.sample_cache import DBCache as DBCache
from tarmac.stream.sample_cache import LMDBCached as LMDBCached
from tarmac.stream.shuffle import detshuffle as detshuffle

Function = Callable[[Any], Any]
T = TypeVar("T", bound=PipelineStage)


class Decode(fields.Decode):
    """Decode fields by extension as the webdataset library does."""

    decoder_class = Decoder


def _shuffle(
    data: Iterable[Any],
    bufsize: float = 1000,
    initial: float = 100,
    rng: random.Random | None = None,
    seed: int | None = None,
    handler: Handler | None = None,
) -> Iterator[Any]:
    """Shuffle data through a buffer. Without `rng` or `seed`, each call has a new order."""
    if rng is not None and seed is not None:
        raise ValueError("`rng` and `seed` are mutually exclusive")
    if rng is None:
        rng = random.Random(random_seed() if seed is None else seed)
    return shuffle(bufsize, initial, rng, handler=handler).run(data)


def _rsample(data: Iterable[Any], p: float = 0.5) -> Iterator[Any]:
    """Keep each item with probability `p`; each call selects other items."""
    return rsample(p, random_seed()).run(data)


def _stage(name: str, stage: type[T], f: Callable[..., Any] | None = None) -> type[T]:
    return library_stage(name, __name__, stage, f)


associate = _stage("associate", fields.Associate)
batched = _stage("batched", batch.Batched)
decode = _stage("decode", Decode)
extract_keys = _stage("extract_keys", fields.ExtractKeys)
map = _stage("map", fields.Map)  # noqa: A001 - as in the webdataset library
map_dict = _stage("map_dict", fields.MapDict)
map_tuple = _stage("map_tuple", fields.MapTuple)
rename = _stage("rename", fields.Rename)
rename_keys = _stage("rename_keys", fields.RenameKeys)
rsample = _stage("rsample", shuffling.Rsample, _rsample)
select = _stage("select", fields.Select)
shuffle = _stage("shuffle", shuffling.Shuffle, _shuffle)
to_tuple = _stage("to_tuple", fields.ToTuple)
xdecode = _stage("xdecode", fields.XDecode)

decode_bin = fields.read_bytes
decode_text = fields.read_text
default_decoders = fields.X_DECODERS
pick = shuffling._pick
slice = batch.slice_stage  # noqa: A001

_associate = function_of(associate)
_batched = function_of(batched)
_decode = function_of(decode)
_extract_keys = function_of(extract_keys)
_map = function_of(map)
_map_dict = function_of(map_dict)
_map_tuple = function_of(map_tuple)
_rename = function_of(rename)
_rename_keys = function_of(rename_keys)
_select = function_of(select)
_to_tuple = function_of(to_tuple)
_xdecode = function_of(xdecode)
_info = info.f
_log_keys = log_keys.f
_unbatched = unbatched.f
_unlisted = unlisted.f


class _Composed:
    """Functions that are applied one after the other; picklable if they are."""

    def __init__(self, *functions: Function) -> None:
        self.functions = functions

    def __call__(self, value: Any) -> Any:
        return reduce(lambda result, f: f(result), self.functions, value)


def compose(*args: Function) -> Function:
    """Combine functions, or stages, into one; the first is applied first."""
    if not args:
        raise ValueError("compose needs at least one function")
    return _Composed(*args)


def compose2(f: Function, g: Function) -> Function:
    """Return the function that applies `f` and then `g`."""
    return _Composed(f, g)


def pipeline(source: Any, *args: Function) -> Any:
    """Pass a source through stages."""
    return _Composed(*args)(source)


def parse_field_spec(fields: str | Iterable[str]) -> list[list[str]]:
    """Parse `"jpg;png cls"` into a list of alternatives for each field."""
    return [field.split(";") for field in (fields.split() if isinstance(fields, str) else fields)]


def combine_values(b: Sequence[Any], combine_tensors: bool = True, combine_scalars: bool = True) -> Any:
    """Combine values into one column: an array or tensor of numbers, otherwise a list."""
    (column,) = default_collation_fn([(value,) for value in b], combine_tensors, combine_scalars)
    return column


def tuple2dict(l: Any) -> dict[Any, Any]:  # noqa: E741 (the name in the webdataset library)
    """Return a tuple as a dictionary by position; return a dictionary unchanged."""
    return l if isinstance(l, dict) else dict(enumerate(l))


def dict2tuple(d: Mapping[int, Any]) -> tuple[Any, ...]:
    """Invert `tuple2dict`."""
    return tuple(d[number] for number in range(1 + max(d)))


def find_decoder(decoders: Sequence[tuple[str, Any]], path: str) -> Any:
    """Return the decoder of the last pattern that matches a field, or None."""
    name = path.rpartition("/")[2].lower()
    if name.startswith("__"):
        return identity
    matches = (f for pattern, f in reversed(decoders) if fnmatch.fnmatch(name, pattern))
    with_dot = (f for pattern, f in reversed(decoders) if fnmatch.fnmatch(f".{name}", pattern))
    return next(matches, None) or next(with_dot, None)


def decode_pickle(stream: Any) -> Any:
    """Load a pickle from a stream, which may run any code; for `xdecode(pyd=decode_pickle)`."""
    return pickle_loads(stream.read())
