"""Small functions of the webdataset library that programs import from its submodules."""

from __future__ import annotations

import fnmatch
import glob
import inspect
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from tarmac import environment
from tarmac.codecs import (
    Decoder,
    basichandlers,
    encode_field,
    find_encoder,
    gzfilter,
    handle_extension,
)
from tarmac.codecs.images import image_encoder
from tarmac.codecs.unsafe import pickle_loads
from tarmac.compat.webdataset.codec_tables import encoders
from tarmac.limits import DEFAULT_LIMITS
from tarmac.runtime.seeds import drawn_seed
from tarmac.samples.writer import SampleEncoder
from tarmac.storage import urls
from tarmac.storage.braces import expand_braces
from tarmac.stream.batch import default_collation_fn

__all__ = [
    "IterableStandIn",
    "Uncurried",
    "add_handlers",
    "bytestr",
    "call_extension_handler",
    "combine_values",
    "compute_sample_weights",
    "decode_pickle",
    "default_decoder",
    "default_post_handlers",
    "default_pre_handlers",
    "dict2tuple",
    "encode_based_on_extension",
    "encode_based_on_extension1",
    "envsubst",
    "expand",
    "find_decoder",
    "fnmatch_with_braces",
    "glob_with_braces",
    "identity",
    "imageencoder",
    "is_iterable",
    "make_encoder",
    "make_handlers",
    "parse_field_spec",
    "repeatedly0",
    "shardlist",
    "torch_name",
    "tuple2dict",
]

default_pre_handlers = [gzfilter]
default_post_handlers = [basichandlers]
default_decoder = Decoder([])


class Uncurried:
    """A stage as a function of data and the stage's arguments: `_map(data, f)` for `map(f)(data)`."""

    def __init__(self, stage: Callable[..., Callable[[Any], Any]]) -> None:
        self.stage = stage
        data = inspect.Parameter("data", inspect.Parameter.POSITIONAL_ONLY)
        parameters = inspect.signature(stage).parameters.values()
        self.__signature__ = inspect.Signature([data, *parameters])

    def __call__(self, data: Iterable[Any], /, *args: Any, **kw: Any) -> Any:
        return self.stage(*args, **kw)(data)


def identity(x: Any) -> Any:
    """Return what is given."""
    return x


def call_extension_handler(
    key: str, data: bytes, f: Callable[[bytes], Any], extensions: Iterable[str | Iterable[str]]
) -> Any:
    """Decode with `f` if the key ends in one of the extensions, texts or lists of parts; None if not."""
    names = [name if isinstance(name, str) else ".".join(name) for name in extensions]
    return handle_extension(names, f)(key, data)


def parse_field_spec(fields: str | Iterable[str]) -> list[list[str]]:
    """Read `"jpg;png cls"` as a list of alternatives for each field."""
    return [field.split(";") for field in (fields.split() if isinstance(fields, str) else fields)]


def combine_values(b: Sequence[Any], combine_tensors: bool = True, combine_scalars: bool = True) -> Any:
    """Make one column of values: an array or a tensor where they are numbers, a list otherwise."""
    (column,) = default_collation_fn([(value,) for value in b], combine_tensors, combine_scalars)
    return column


def tuple2dict(l: Any) -> dict[Any, Any]:  # noqa: E741 (their name)
    """Number the items of a tuple; a dictionary stays one."""
    return l if isinstance(l, dict) else dict(enumerate(l))


def dict2tuple(d: Mapping[int, Any]) -> tuple[Any, ...]:
    """Undo `tuple2dict`."""
    return tuple(d[number] for number in range(1 + max(d)))


def find_decoder(decoders: Sequence[tuple[str, Any]], path: str) -> Any:
    """Find the decoder of the last pattern that fits a field; None if there is none."""
    name = path.rpartition("/")[2].lower()
    if name.startswith("__"):
        return identity
    fits = (f for pattern, f in reversed(decoders) if fnmatch.fnmatch(name, pattern))
    behind_dot = (f for pattern, f in reversed(decoders) if fnmatch.fnmatch(f".{name}", pattern))
    return next(fits, None) or next(behind_dot, None)


def decode_pickle(stream: Any) -> Any:
    """Load a pickle from a stream, running whatever it says; for `xdecode(pyd=decode_pickle)`."""
    return pickle_loads(stream.read())


def is_iterable(obj: Any) -> bool:
    """Whether something can be iterated over and is not a text."""
    return isinstance(obj, Iterable) and not isinstance(obj, str | bytes)


def fnmatch_with_braces(filename: str, pattern: str) -> bool:
    """Whether a name fits a shell pattern that may have braces."""
    return any(fnmatch.fnmatch(filename, one) for one in expand_braces(pattern, DEFAULT_LIMITS))


def glob_with_braces(pattern: str) -> list[str]:
    """Find the files of a shell pattern that may have braces."""
    return [path for one in expand_braces(pattern, DEFAULT_LIMITS) for path in glob.glob(one)]


def compute_sample_weights(n_w_pairs: Iterable[tuple[float, float]]) -> Any:
    """From pairs of size and weight, make probabilities to mix by, of which the largest is 1."""
    import numpy as np

    weighted = np.array([size * weight for size, weight in n_w_pairs])
    return weighted / weighted.max()


def repeatedly0(
    loader: Iterable[Any], nepochs: int = sys.maxsize, nbatches: int = sys.maxsize
) -> Iterator[Any]:
    """Go `nepochs` times through the first `nbatches` batches of a loader; a pass without any ends it."""
    for _ in range(nepochs):
        empty = True
        for batch in islice(loader, nbatches):
            empty = False
            yield batch
        if empty:
            return


def envsubst(s: str) -> str:
    """Replace `${X}` by the environment variable WDS_X."""
    return urls.substituted(s)


def expand(s: str) -> str:
    """Replace `~` and environment variables."""
    return os.path.expanduser(environment.expandvars(s))


def shardlist(urls: str | Iterable[str], *, shuffle: bool = False) -> Iterator[dict[str, str]]:
    """Yield the shards of a pattern or list, each time in another order with `shuffle`."""
    names = list(expand_braces(urls, DEFAULT_LIMITS)) if isinstance(urls, str) else list(urls)
    if shuffle:
        random.Random(drawn_seed()).shuffle(names)
    return ({"url": name} for name in names)


def bytestr(data: Any) -> bytes:
    """Turn anything into bytes by way of its text."""
    return data if isinstance(data, bytes) else str(data).encode("ascii")


def add_handlers(d: dict[str, Any], keys: str | Iterable[str], value: Any) -> None:
    """Enter one encoder under several extensions."""
    d.update(dict.fromkeys(keys.split() if isinstance(keys, str) else keys, value))


def make_handlers() -> dict[str, Any]:
    """Return a table of all encoders, to change and pass on."""
    return dict(encoders)


def imageencoder(image: Any, format: str = "PNG") -> bytes:
    """Encode an image."""
    form = format.upper()
    return image_encoder({"JPG": "JPEG", "TIF": "TIFF", "IMG": "PPM", "IMAGE": "PPM"}.get(form, form))(image)


def encode_based_on_extension1(data: Any, tname: str, handlers: Mapping[str, Any]) -> Any:
    """Encode the value of one field; what is said about a sample (`__key__`) stays as it is."""
    return data if tname.startswith("__") else encode_field(tname, data, find_encoder(tname, handlers), "")


def encode_based_on_extension(sample: Mapping[str, Any], handlers: Mapping[str, Any]) -> dict[str, Any]:
    """Encode the fields of a sample by their extensions."""
    return {name: encode_based_on_extension1(value, name, handlers) for name, value in sample.items()}


class _ByExtension:
    """An encoder of samples; picklable if its table is."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table = table

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        return encode_based_on_extension(sample, self.table)


def make_encoder(spec: SampleEncoder) -> Callable[[Any], Any]:
    """Make an encoder of samples out of what `TarWriter(encoder=…)` takes."""
    if spec is False or spec is None:
        return identity
    if spec is True:
        return _ByExtension(encoders)
    if isinstance(spec, Mapping):
        return _ByExtension(spec)
    if not callable(spec):
        raise ValueError(f"encoder must be True, False, a dictionary or a function, got {spec!r}")
    return spec


class IterableStandIn:
    """In the place of a class of torch where torch is not installed: nothing is an instance of it."""


def torch_name(name: str) -> Any:
    """Return a class of torch, imported when it is asked for, or a stand-in without torch."""
    home = {"DataLoader": "torch.utils.data", "IterableDataset": "torch.utils.data", "TorchTensor": "torch"}
    if name not in home:
        raise AttributeError(f"module 'webdataset.pytorch' has no attribute {name!r}")
    try:
        module = __import__(home[name], fromlist=[name])
    except ImportError:
        return IterableStandIn
    return getattr(module, "Tensor" if name == "TorchTensor" else name)
