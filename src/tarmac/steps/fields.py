"""Stages that look at one sample at a time: decode it, change it, pick from it.

Each class is a stage; the functions below carry the names that the webdataset library gave them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from tarmac.codecs import Decoder, imagehandler
from tarmac.errors import DuplicateField, MissingField, NoCodec
from tarmac.steps.handlers import Handler, reraise_exception
from tarmac.steps.stage import Each, located

__all__ = [
    "Associate",
    "Decode",
    "ExtractKeys",
    "Map",
    "MapDict",
    "MapTuple",
    "Rename",
    "RenameKeys",
    "Select",
    "ToTuple",
    "XDecode",
    "getfirst",
    "transform_with",
]

Function = Callable[[Any], Any]


def getfirst(
    a: Mapping[str, Any], keys: str | Sequence[str], default: Any = None, missing_is_error: bool = True
) -> Any:
    """Return the first of several alternatives, as `"jpg;png"` or a list, that the sample has."""
    for name in keys.split(";") if isinstance(keys, str) else keys:
        if name in a:
            return a[name]
    if not missing_is_error:
        return default
    wanted = keys if isinstance(keys, str) else ";".join(keys)
    there = ", ".join(name for name in a if not name.startswith("__"))
    raise located(MissingField(f'none of "{wanted}" is in the sample, which has {there or "no fields"}.'), a)


def transform_with(sample: Sequence[Any], transformers: Sequence[Function | None] | None) -> Sequence[Any]:
    """Apply one function to each of the first items of a sequence; None leaves an item alone."""
    if not transformers:
        return sample
    if len(transformers) > len(sample):
        raise ValueError(f"{len(transformers)} functions for {len(sample)} fields")
    changed = [value if f is None else f(value) for f, value in zip(transformers, sample, strict=False)]
    return [*changed, *sample[len(transformers) :]]


class Map(Each):
    """Replace each sample by what a function makes of it; None leaves it out.

    A dictionary made from a dictionary keeps the key of its sample unless it sets its own.
    """

    def __init__(self, f: Function, handler: Handler = reraise_exception, threads: int = 0) -> None:
        super().__init__(handler, threads)
        self.f = f

    def apply(self, item: Any) -> Any:
        result = self.f(item)
        if isinstance(result, dict) and isinstance(item, dict) and "__key__" in item:
            result.setdefault("__key__", item["__key__"])
        return result


class Select(Each):
    """Keep the samples for which a function is true."""

    def __init__(self, predicate: Function, handler: Handler = reraise_exception) -> None:
        super().__init__(handler)
        self.predicate = predicate

    def apply(self, item: Any) -> Any:
        return item if self.predicate(item) else None


class Decode(Each):
    """Decode the fields of each sample by extension; strings name how images come out, as "rgb8"."""

    def __init__(self, *args: Any, handler: Handler = reraise_exception, threads: int = 0, **kw: Any) -> None:
        super().__init__(handler, threads)
        handlers = [imagehandler(item) if isinstance(item, str) else item for item in args]
        self.decoder = Decoder(handlers, **kw)

    def apply(self, item: Any) -> Any:
        return self.decoder(item)


class Rename(Each):
    """Give fields new names: `jpg="jpg;jpeg;png"`. With keep=False everything else goes, the key too."""

    def __init__(
        self, handler: Handler = reraise_exception, keep: bool = True, **kw: str | Sequence[str]
    ) -> None:
        super().__init__(handler)
        self.names, self.keep = kw, keep
        self.replaced = {
            old for new in kw.values() for old in (new.split(";") if isinstance(new, str) else new)
        }

    def apply(self, item: Any) -> Any:
        renamed = {new: getfirst(item, old) for new, old in self.names.items()}
        if not self.keep:
            return renamed
        return {name: value for name, value in item.items() if name not in self.replaced} | renamed


class Associate(Each):
    """Add fields found by key, in a dictionary or through a function."""

    def __init__(
        self,
        associator: Mapping[str, Mapping[str, Any]] | Callable[[str], Mapping[str, Any]],
        handler: Handler = reraise_exception,
    ) -> None:
        super().__init__(handler)
        self.associator = associator

    def apply(self, item: Any) -> Any:
        find = self.associator
        extra = find.get(item["__key__"], {}) if isinstance(find, Mapping) else find(item["__key__"])
        return {**item, **extra}


class MapDict(Each):
    """Apply functions to fields by name; all of them must be there."""

    def __init__(self, handler: Handler = reraise_exception, **kw: Function) -> None:
        super().__init__(handler)
        if not kw:
            raise ValueError("map_dict needs at least one field=function")
        for name, f in kw.items():
            if not callable(f):
                raise ValueError(f"map_dict({name}=…) needs a function, got {f!r}")
        self.functions = kw

    def apply(self, item: Any) -> Any:
        result = dict(item)
        for name, f in self.functions.items():
            if name not in result:
                getfirst(item, (name,))
            result[name] = f(result[name])
        return result


class MapTuple(Each):
    """Apply functions to the first items of a tuple; None leaves one alone."""

    def __init__(self, *args: Function | None, handler: Handler = reraise_exception) -> None:
        super().__init__(handler)
        for f in args:
            if f is not None and not callable(f):
                raise ValueError(f"map_tuple needs functions or None, got {f!r}")
        self.functions = args

    def apply(self, item: Any) -> Any:
        if not isinstance(item, list | tuple):
            raise ValueError(f"map_tuple needs tuples, got {type(item).__name__}; put to_tuple before it")
        count = min(len(self.functions), len(item))
        return (*transform_with(item[:count], self.functions[:count]), *item[count:])


class ToTuple(Each):
    """Pick fields into a tuple; `"jpg;png"` takes whichever is there."""

    def __init__(
        self,
        *args: str | Sequence[str],
        handler: Handler = reraise_exception,
        missing_is_error: bool = True,
        none_is_error: bool | None = None,
    ) -> None:
        super().__init__(handler)
        if len(args) == 1 and isinstance(args[0], str):
            args = tuple(args[0].split())
        self.choices = [field.split(";") if isinstance(field, str) else list(field) for field in args]
        self.missing_is_error = missing_is_error
        self.none_is_error = missing_is_error if none_is_error is None else none_is_error

    def apply(self, item: Any) -> Any:
        try:
            result = tuple([item[choice[0]] for choice in self.choices])
        except KeyError:
            result = tuple(
                [getfirst(item, choice, missing_is_error=self.missing_is_error) for choice in self.choices]
            )
        if self.none_is_error and any(value is None for value in result):
            names = [
                ";".join(choice) for choice, value in zip(self.choices, result, strict=True) if value is None
            ]
            raise located(MissingField(f"{', '.join(names)} is None."), item)
        return result


class ExtractKeys(Each):
    """Pick fields by shell pattern into a tuple."""

    def __init__(
        self,
        *patterns: str | Sequence[str],
        duplicate_is_error: bool = True,
        ignore_missing: bool = False,
        handler: Handler = reraise_exception,
    ) -> None:
        super().__init__(handler)
        self.patterns = [item.split(";") if isinstance(item, str) else list(item) for item in patterns]
        self.duplicate_is_error, self.ignore_missing = duplicate_is_error, ignore_missing

    def apply(self, item: Any) -> Any:
        result = []
        for patterns in self.patterns:
            found = [
                name for name in item if any(fnmatch(name, p) or fnmatch(f".{name}", p) for p in patterns)
            ]
            if not found:
                if self.ignore_missing:
                    continue
                raise located(MissingField(f"nothing matches {';'.join(patterns)}."), item)
            if len(found) > 1 and self.duplicate_is_error:
                raise located(DuplicateField(f"{', '.join(found)} match {';'.join(patterns)}."), item)
            result.append(item[found[0]])
        return tuple(result)


class RenameKeys(Each):
    """Give fields new names by shell pattern, from (new, pattern) pairs; the last pattern that fits wins."""

    def __init__(
        self,
        *args: tuple[str, str],
        keep_unselected: bool = False,
        must_match: bool = True,
        duplicate_is_error: bool = True,
        handler: Handler = reraise_exception,
        **kw: str,
    ) -> None:
        super().__init__(handler)
        self.renamings = [(pattern, new) for new, pattern in (*args, *kw.items())][::-1]
        self.keep_unselected, self.must_match = keep_unselected, must_match
        self.duplicate_is_error = duplicate_is_error

    def apply(self, item: Any) -> Any:
        result: dict[str, Any] = {}
        unused = {pattern for pattern, _ in self.renamings}
        for name, value in item.items():
            new = next((new for pattern, new in self.renamings if self._fits(name, pattern, unused)), None)
            if new is None:
                if self.keep_unselected:
                    result[name] = value
            elif new not in result:
                result[new] = value
            elif self.duplicate_is_error:
                raise located(DuplicateField(f'several fields become "{new}".'), item)
        if self.must_match and unused:
            raise located(MissingField(f"no field matches {', '.join(sorted(unused))}."), item)
        return result

    @staticmethod
    def _fits(name: str, pattern: str, unused: set[str]) -> bool:
        if not fnmatch(name.rpartition("/")[2].lower(), pattern):
            return False
        unused.discard(pattern)
        return True


def read_bytes(stream: Any) -> bytes:
    """Decode nothing."""
    data: bytes = stream.read()
    return data


def read_text(stream: Any) -> str:
    """Decode UTF-8."""
    return read_bytes(stream).decode("utf-8")


X_DECODERS: list[tuple[str, Any]] = [("*.bin", read_bytes), ("*.txt", read_text)]


class XDecode(Each):
    """Decode fields by shell pattern with functions that read a stream; False leaves a field as it is.

    There is no decoder for pickles unless the caller passes one.
    """

    def __init__(
        self,
        *args: tuple[str, Any],
        must_decode: bool = True,
        defaults: Iterable[tuple[str, Any]] = X_DECODERS,
        handler: Handler = reraise_exception,
        **kw: Any,
    ) -> None:
        super().__init__(handler)
        self.must_decode = must_decode
        by_extension = [(f"*.{extension}", f) for extension, f in kw.items()]
        self.decoders = [*defaults, *args, *by_extension][::-1]

    def apply(self, item: Any) -> Any:
        return {name: self._decoded(name, value, item) for name, value in item.items()}

    def _decoded(self, name: str, value: Any, sample: Any) -> Any:
        if name.startswith("__"):
            return value
        file = re.sub(r".*/", "", name).lower()
        decoders = (
            f for pattern, f in self.decoders if fnmatch(file, pattern) or fnmatch(f".{file}", pattern)
        )
        decode = next(decoders, None)
        if decode is None and self.must_decode:
            raise located(NoCodec(f'nothing decodes the field "{name}".'), sample)
        if decode is None or decode is False:
            return value
        return decode(io.BytesIO(value) if isinstance(value, bytes) else value)
