"""Run a function of Python on a sample: decoded before, encoded after, and nothing recoded needlessly."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from types import ModuleType
from typing import Any

import xxhash

from tarmac.codecs import Decoder, encode_field, find_encoder, imagehandler, imagespecs
from tarmac.errors import TarmacError, TransformFailed, UrlError
from tarmac.runtime.extras import is_missing_extra
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import check_field, check_key, is_reserved

__all__ = ["Function", "load_function"]

KEY = "__key__"
BASIC = "basic"
"""How to decode everything but images."""


@dataclass(frozen=True)
class Function:
    """A function from a sample to a sample, to None, which drops it, or to several samples.

    Several get the keys `old/000000`, `old/000001` and so on, unless the function gives them others. A field
    that the function leaves as it is keeps its bytes; so a JPEG that was only looked at is not encoded again.
    """

    spec: str
    """`module:function` or `file.py:function`."""
    decode: str = ""
    """How images are decoded, as rgb8; `basic` decodes all else. Without it fields are bytes."""

    def __post_init__(self) -> None:
        if self.decode and self.decode != BASIC and self.decode not in imagespecs:
            known = ", ".join([*imagespecs, BASIC])
            raise UrlError(f"--decode: {self.decode!r} is none of {known}.")
        _ = self.function

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "decode": self.decode}

    @cached_property
    def function(self) -> Callable[[Sample], Any]:
        """The function itself."""
        return load_function(self.spec)

    @cached_property
    def decoder(self) -> Decoder:
        """What decodes the fields."""
        return Decoder([] if self.decode == BASIC else [imagehandler(self.decode)])

    def options(self) -> dict[str, Any]:
        """What the result depends on, for a ledger: the files of the function, too."""
        py = " ".join([self.spec, *map(_file_hash, self._files())])
        return {"py": py} | ({"decode": self.decode} if self.decode else {})

    def _files(self) -> list[str]:
        """The file that the user named, and the one that the function is written in, if that is another."""
        inner: Any = self.function
        while isinstance(inner, partial):  # which itself is written in the standard library
            inner = inner.func
        modules = _named_module(self.spec), sys.modules.get(getattr(inner, "__module__", None) or "")
        paths = dict.fromkeys(getattr(module, "__file__", None) for module in modules)
        return [path for path in paths if path and os.path.isfile(path)]

    def __call__(self, sample: Sample) -> list[Sample]:
        """What becomes of one sample, as bytes."""
        key = sample[KEY]
        given = self.decoder(sample) if self.decode else dict(sample)
        before = {name: (value, _still(value)) for name, value in given.items()} if self.decode else {}
        try:
            made = self.function(given)
            several = None if made is None or isinstance(made, Mapping) else list(_items(made))
        except (TarmacError, ImportError) as error:
            if isinstance(error, ImportError) and not is_missing_extra(error):
                raise _failed(error) from error
            raise
        except (Exception, SystemExit) as error:  # a function ends its sample, not the command
            raise _failed(error) from error
        if made is None:
            return []
        if several is None:
            return [self._encoded(made, key, sample, before)]
        found = [
            self._encoded(
                one, f"{key}/{number:06d}" if one.get(KEY, key) == key else one[KEY], sample, before
            )
            for number, one in enumerate(several)
        ]
        if len({one[KEY] for one in found}) != len(found):
            raise TransformFailed("the function gave the same key to two samples.")
        return found

    def _encoded(self, made: Mapping[str, Any], key: str, sample: Sample, before: dict[str, Any]) -> Sample:
        key = check_key(made.get(KEY, key) if made.get(KEY, sample[KEY]) != sample[KEY] else key)
        found: Sample = {KEY: key, "__url__": sample.get("__url__")}
        for field, value in made.items():
            if is_reserved(str(field)):
                continue
            check_field(field, key)
            if type(value) is bytes and not (self.decode and field.lower().endswith(".gz")):
                found[field] = value
            elif field in before and before[field][0] is value and _same(before[field][1], _still(value)):
                found[field] = sample[field]
            else:
                found[field] = encode_field(field, value, find_encoder(field), key)
        if len(found) == 2:
            raise TransformFailed("the function returned a sample without fields; None drops a sample.")
        return found


def _items(made: Any) -> Iterable[Mapping[str, Any]]:
    if not isinstance(made, Iterable) or isinstance(made, str | bytes):
        raise TransformFailed(
            f"the function returned {type(made).__name__}, not a sample, None or several samples."
        )
    for one in made:
        if not isinstance(one, Mapping):
            raise TransformFailed(f"the function returned {type(one).__name__} among samples.")
        yield one


def _file_hash(path: str) -> str:
    with open(path, "rb") as file:
        return xxhash.xxh3_64_hexdigest(file.read())


def _failed(error: BaseException) -> TransformFailed:
    ours = os.path.dirname(os.path.dirname(__file__))  # the place of the user's that led here says more
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return TransformFailed(f"the function raised {type(error).__name__}: {str(error)[:300]}{where}.")


def _still(value: Any) -> Any:
    """Something that equals what this gives later if, and only if, the value was not changed in place."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, dict | list | tuple):
        return copy.deepcopy(value)
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        import numpy as np

        return str(value.dtype), value.shape, xxhash.xxh3_128_hexdigest(np.ascontiguousarray(value).data)
    if hasattr(value, "tobytes") and hasattr(value, "mode"):
        return value.mode, value.size, xxhash.xxh3_128_hexdigest(value.tobytes())
    return object()


def _same(before: Any, now: Any) -> bool:
    try:
        return type(before) is type(now) and bool(before == now)
    except ValueError:  # arrays inside do not say whether they are equal
        return False


def load_function(spec: str) -> Callable[[Sample], Any]:
    """Find `module:function` or `file.py:function`; modules of the working directory are found, too."""
    found: Any = _named_module(spec)
    name, _, path = spec.rpartition(":")
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UrlError(f"--py: {name} has no function {path!r}.")
    return found  # type: ignore[no-any-return]


def _named_module(spec: str) -> ModuleType:
    name, _, path = spec.rpartition(":")
    if not name or not path:
        raise UrlError(f"--py: {spec!r} is neither module:function nor file.py:function.")
    try:
        return _from_file(name) if name.endswith(".py") else _module(name)
    except UrlError:
        raise
    except (Exception, SystemExit) as error:
        raise UrlError(f"--py: {name} cannot be imported: {type(error).__name__}: {error}.") from error


def _module(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    return importlib.import_module(name)


def _from_file(path: str) -> ModuleType:
    name = f"tarmac_map_{xxhash.xxh3_64_hexdigest(os.path.abspath(path).encode('utf-8', 'surrogateescape'))}"
    if name in sys.modules:
        return sys.modules[name]
    if not os.path.isfile(path):
        raise UrlError("--py: there is no such file.", url=path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
