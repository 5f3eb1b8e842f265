"""Call a Python function on a sample: decode fields before, encode changed fields after."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing.util import Finalize
from pathlib import Path
from types import ModuleType
from typing import Any

import xxhash

from tarmac.codecs import Decoder, encode_field, find_encoder, imagehandler, imagespecs
from tarmac.errors import EngineError, TarmacError, TransformFailed, UsageError
from tarmac.extras import MissingExtra
from tarmac.jobs.head import ARGUMENTS
from tarmac.runtime.device import current_device
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import Splitter, check_field, check_key, first_dot, is_reserved
from tarmac.tools.map.current import CurrentFiles, file_digests, refresh
from tarmac.tools.map.fingerprint import arguments_digest, code_digest
from tarmac.tools.map.imports import imported_files

KEY = "__key__"
_PACKAGE = str(Path(__file__).parents[2]) + os.sep
BASIC = "basic"
"""Decodes everything but images."""
_preparing = threading.Lock()  # workers of clusters may have threads


@dataclass(frozen=True)
class Function:
    """A function that maps a sample to a sample, to None, which drops it, or to several samples.

    Of several samples, those without a key, or with the old key more than once, get the keys `old/000000`,
    `old/000001` and so on, by their position. A field that the function does not change keeps its bytes, so that
    a JPEG is not encoded again.

    A callable object, or a class of one, may have the methods `setup(device)`, which each process calls before its
    first sample, and `close()`, which it calls at its end.
    """

    source: Callable[[Any], Any] | str
    """A callable, `module:function` or `file.py:function`."""
    decode: str = ""
    """How images are decoded, such as rgb8; `basic` decodes everything else. Without it, fields are bytes."""
    split_name: Splitter = first_dot

    def __post_init__(self) -> None:
        if self.decode and self.decode != BASIC and self.decode not in imagespecs:
            known = ", ".join([*imagespecs, BASIC])
            raise UsageError(f"expected one of {known}, got {self.decode!r}.", field="decode")
        _ = self.function

    def __getstate__(self) -> dict[str, Any]:
        source = self.source
        if isinstance(source, str) and ".py:" in source:  # workers may run in another directory
            path, colon, name = source.rpartition(":")
            source = f"{os.path.abspath(path)}{colon}{name}"
        return {
            "files": self._current_files(),  # first, because the source may be unpickled by importing it
            "source": source,
            "digest": "" if isinstance(source, str) else code_digest(self._inner),
            "decode": self.decode,
            "split_name": self.split_name,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if state["digest"] and state["digest"] != code_digest(self._inner):
            raise EngineError(
                f"the process on {socket.gethostname()} has other code of {_qualified_name(self._inner)} than the "
                "one that started the job.",
                hint="install the same version of your module on all workers.",
            )

    @cached_property
    def function(self) -> Callable[[Sample], Any]:
        function = load_function(self.source) if isinstance(self.source, str) else self.source
        if not callable(function):
            raise UsageError(f"expected a function or its name, got {self.source!r}.", field="function")
        return function() if isinstance(function, type) and hasattr(function, "setup") else function

    @property
    def _inner(self) -> Any:
        """The function without `functools.partial`, which the standard library defines."""
        inner: Any = self.function
        while isinstance(inner, partial):
            inner = inner.func
        return inner

    @cached_property
    def prepared(self) -> Callable[[Sample], Any]:
        """The function, after its `setup`, which runs once in each process that transforms samples."""
        setup, close = (getattr(self.function, name, None) for name in ("setup", "close"))
        with _preparing:
            if callable(setup) and "prepared" not in self.__dict__:
                setup(current_device())
                if callable(close):
                    # At the end of this process, or of this object: a worker of a cluster outlives its jobs.
                    Finalize(self, close, exitpriority=0)
            self.__dict__["prepared"] = self.function
        return self.function

    @cached_property
    def decoder(self) -> Decoder:
        return Decoder([] if self.decode == BASIC else [imagehandler(self.decode)])

    def options(self) -> dict[str, Any]:
        """Return what the result depends on, for a ledger.

        These are the files that define the function, its `version`, and what it was given besides samples.
        """
        inner, given = self._inner, arguments_digest(self.function)
        name = self.source if isinstance(self.source, str) else _qualified_name(inner)
        hashes = [xxhash.xxh3_64_hexdigest(Path(path).read_bytes()) for path in self._files(inner)]
        if not hashes and (digest := code_digest(inner)):  # defined in a notebook or console
            hashes = [digest]
        version = getattr(inner, "version", None)
        if version is not None and not callable(version):
            hashes.append(f"version={str(version).replace(' ', '_')}")
        return {"py": " ".join([name, *hashes, f"{ARGUMENTS}{given}"])} | (
            {"decode": self.decode} if self.decode else {}
        )

    def _current_files(self) -> CurrentFiles:
        """Return the files of the function, except that of `__main__`: what it defines is sent by value."""
        main = getattr(sys.modules["__main__"], "__file__", None)
        digests = file_digests(self._files(self._inner))
        digests.pop(os.path.abspath(main or ""), None)
        return CurrentFiles(digests)

    def _files(self, inner: Any) -> list[str]:
        """Return the file that the user named, the file that defines the function, and what they import."""
        named = [_named_module(self.source)] if isinstance(self.source, str) else []
        modules = [*named, sys.modules.get(getattr(inner, "__module__", None) or "")]
        return list(dict.fromkeys(path for module in modules for path in _local_files(module)))

    def __call__(self, sample: Sample) -> list[Sample]:
        """Return the new samples, with fields of bytes."""
        key, function = sample[KEY], self.prepared
        given = self.decoder(sample) if self.decode else dict(sample)
        before = {name: (value, _snapshot(value)) for name, value in given.items()} if self.decode else {}
        try:
            result = function(given)
            several = None if result is None or isinstance(result, Mapping) else list(_items(result))
        except (TarmacError, MissingExtra):
            raise
        except (Exception, SystemExit) as error:  # fails the sample, not the program
            raise failed(error) from error
        if result is None:
            return []
        if several is None:
            return [self._encoded(result, key, sample, before)]
        once = sum(one.get(KEY) == key for one in several) == 1
        samples = [
            self._encoded(one, key if once and one.get(KEY) == key else f"{key}/{number:06d}", sample, before)
            for number, one in enumerate(several)
        ]
        if len({one[KEY] for one in samples}) != len(samples):
            raise TransformFailed("the function returned two samples with the same key.")
        return samples

    def _encoded(self, result: Mapping[str, Any], key: str, sample: Sample, before: dict[str, Any]) -> Sample:
        key = result.get(KEY, key) if result.get(KEY, sample[KEY]) != sample[KEY] else key
        check_key(key, self.split_name)
        encoded: Sample = {KEY: key, "__url__": sample.get("__url__")}
        for field, value in result.items():
            if is_reserved(str(field)):
                continue
            check_field(field, key, self.split_name)
            if type(value) is bytes and not (self.decode and field.lower().endswith(".gz")):
                encoded[field] = value
            elif field in before and before[field][0] is value and _equal(before[field][1], _snapshot(value)):
                encoded[field] = sample[field]
            else:
                encoded[field] = encode_field(field, value, find_encoder(field), key)
        if len(encoded) == 2:
            raise TransformFailed("the function returned a sample without fields; None drops a sample.")
        return encoded


def _qualified_name(function: Any) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')}:{name}"


def _items(result: Any) -> Iterable[Mapping[str, Any]]:
    if not isinstance(result, Iterable) or isinstance(result, str | bytes):
        raise TransformFailed(
            f"the function returned {type(result).__name__}: expected a sample, None or several samples."
        )
    for one in result:
        if not isinstance(one, Mapping):
            raise TransformFailed(f"the function returned {type(one).__name__} among samples.")
        yield one


def failed(error: BaseException) -> TransformFailed:
    """Return the error of a sample on which the user's code raised, with the innermost line of that code."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_PACKAGE)]
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return TransformFailed(f"the function raised {type(error).__name__}: {str(error)[:300]}{where}.")


def _snapshot(value: Any) -> Any:
    """Return a value that equals a later snapshot only if the value was not changed in place."""
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


def _equal(before: Any, now: Any) -> bool:
    try:
        return type(before) is type(now) and bool(before == now)
    except ValueError:  # containers of arrays
        return False


def load_function(name: str) -> Callable[[Sample], Any]:
    """Import `module:function` or `file.py:function`; modules of the working directory are found, too."""
    function: Any = _named_module(name)
    module, _, path = name.rpartition(":")
    for part in path.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise UsageError(f"{module} has no function {path!r}.", field="function")
    return function  # type: ignore[no-any-return]


def _named_module(spec: str) -> ModuleType:
    name, _, path = spec.rpartition(":")
    if not name or not path:
        raise UsageError(f"expected module:function or file.py:function, got {spec!r}.", field="function")
    try:
        return _from_file(name) if name.endswith(".py") else _module(name)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"cannot import {name}: {type(error).__name__}: {error}.", field="function"
        ) from error


def _module(name: str) -> ModuleType:
    directory = os.getcwd()
    if directory not in sys.path and "" not in sys.path:
        sys.path.append(directory)
    refresh(file_digests(_local_files(importlib.import_module(name))))
    return importlib.import_module(name)  # the same, unless it has changed since an earlier job


def _local_files(module: ModuleType | None) -> list[str]:
    """Return the file of a module, and the files that it imports, except those of installed packages."""
    path = getattr(module, "__file__", None)
    if not path or not os.path.isfile(path):
        return []
    package = (getattr(module, "__package__", None) or "").split(".")
    root = Path(path).parents[len(package) if package[0] else 0]
    return imported_files(path, str(root))


def _from_file(path: str) -> ModuleType:
    name = f"tarmac_map_{xxhash.xxh3_64_hexdigest(os.path.abspath(path).encode('utf-8', 'surrogateescape'))}"
    if not os.path.isfile(path):
        raise UsageError("no such file.", field="function", url=path)
    directory = os.path.dirname(os.path.abspath(path))
    refresh(file_digests(imported_files(path, directory)))
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, directory)  # as for a script, modules beside the file are found, and found first
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(directory)
        if directory not in sys.path:
            sys.path.append(directory)  # for imports inside functions
    return module
