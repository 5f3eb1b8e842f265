"""`webdataset.filters`: stages, and under `_names` the same as functions of data."""

# The names are those of the webdataset library.
# ruff: noqa: N811, N813

from __future__ import annotations

import fnmatch
import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from tarmac.codecs.unsafe import pickle_loads
from tarmac.compat.webdataset.utils import identity
from tarmac.runtime.seeds import random_seed
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
from tarmac.steps.handlers import Handler, reraise_exception
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

Function = Callable[[Any], Any]


class Uncurried:
    """A stage as a function of data and the stage's arguments: `_map(data, f)` for `map(f)(data)`."""

    def __init__(self, stage: Callable[..., Callable[[Any], Any]]) -> None:
        self.stage = stage
        data = inspect.Parameter("data", inspect.Parameter.POSITIONAL_ONLY)
        parameters = inspect.signature(stage).parameters.values()
        self.__signature__: inspect.Signature = inspect.Signature([data, *parameters])

    def __call__(self, data: Iterable[Any], /, *args: Any, **kw: Any) -> Any:
        return self.stage(*args, **kw)(data)


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
