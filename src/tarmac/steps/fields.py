"""Steps that process one sample at a time: decode it, change it, select from it.

Each class is a stage of a pipeline and a step of a dataset.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from tarmac.codecs import Decoder, imagehandler
from tarmac.codecs.handlers import Handler as FieldDecoder
from tarmac.errors import DuplicateField, MissingField, NoCodec, UsageError
from tarmac.limits import DEFAULT_LIMITS, Limits
from tarmac.steps.handlers import Handler, reraise_exception
from tarmac.steps.stage import Each, located

Function = Callable[[Any], Any]


def getfirst(
    a: Mapping[str, Any], keys: str | Sequence[str], default: Any = None, missing_is_error: bool = True
) -> Any:
    """Return the first of several fields, given as `"jpg;png"` or a list, that the sample has."""
    for name in _alternatives(keys):
        if name in a:
            return a[name]
    if not missing_is_error:
        return default
    wanted = ";".join(_alternatives(keys))
    existing = ", ".join(name for name in a if not name.startswith("__"))
    raise located(MissingField(f'no field "{wanted}"; the sample has {existing or "no fields"}.'), a)


def _alternatives(keys: str | Sequence[str]) -> Sequence[str]:
    return keys.split(";") if isinstance(keys, str) else keys


def transform_with(sample: Sequence[Any], transformers: Sequence[Function | None] | None) -> Sequence[Any]:
    """Apply one function to each of the first items of a sequence; None keeps an item."""
    if not transformers:
        return sample
    if len(transformers) > len(sample):
        raise UsageError(
            f"expected at most {len(sample)} functions, got {len(transformers)}.", field="transformers"
        )
    changed = [value if f is None else f(value) for f, value in zip(transformers, sample, strict=False)]
    return [*changed, *sample[len(transformers) :]]


class Map(Each):
    """Replaces each sample by the result of a function; None drops it.

    A dictionary returned for a dictionary keeps the key of its sample unless the function sets another.
    """

    def __init__(self, f: Function, handler: Handler = reraise_exception, threads: int = 0) -> None:
        super().__init__(handler, threads)
        self.function = f

    def apply(self, item: Any) -> Any:
        result = self.function(item)
        if isinstance(result, dict) and isinstance(item, dict) and "__key__" in item:
            result.setdefault("__key__", item["__key__"])
        return result


class Select(Each):
    """Keeps the samples for which a function returns true."""

    def __init__(self, predicate: Function, handler: Handler = reraise_exception) -> None:
        super().__init__(handler)
        self.predicate = predicate

    def apply(self, item: Any) -> Any:
        return item if self.predicate(item) else None


class Decode(Each):
    """Decodes the fields of each sample by extension; a string such as "rgb8" selects the type of images.

    The keyword arguments are those of `Decoder`.
    """

    decoder_class = Decoder

    def __init__(
        self,
        *args: str | FieldDecoder,
        handler: Handler = reraise_exception,
        threads: int = 0,
        pre: Iterable[FieldDecoder] | None = None,
        post: Iterable[FieldDecoder] | None = None,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
        allow_pickle: bool = False,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(handler, threads)
        handlers = [imagehandler(item) if isinstance(item, str) else item for item in args]
        self.decoder = self.decoder_class(
            handlers, pre, post, only, partial, allow_pickle=allow_pickle, limits=limits
        )

    def apply(self, item: Any) -> Any:
        return self.decoder(item)


class Rename(Each):
    """Renames fields: `jpg="jpg;jpeg;png"`. With keep=False all other fields are dropped, `__key__` too."""

    def __init__(
        self, handler: Handler = reraise_exception, keep: bool = True, **kw: str | Sequence[str]
    ) -> None:
        super().__init__(handler)
        self.names, self.keep = kw, keep
        self.replaced = {name for names in kw.values() for name in _alternatives(names)}

    def apply(self, item: Any) -> Any:
        renamed = {new: getfirst(item, old) for new, old in self.names.items()}
        if not self.keep:
            return renamed
        return {name: value for name, value in item.items() if name not in self.replaced} | renamed


class Associate(Each):
    """Adds fields looked up by key, in a dictionary or by a function."""

    def __init__(
        self,
        associator: Mapping[str, Mapping[str, Any]] | Callable[[str], Mapping[str, Any]],
        handler: Handler = reraise_exception,
    ) -> None:
        super().__init__(handler)
        self.associator = associator

    def apply(self, item: Any) -> Any:
        lookup = self.associator
        extra = lookup.get(item["__key__"], {}) if isinstance(lookup, Mapping) else lookup(item["__key__"])
        return {**item, **extra}


class MapDict(Each):
    """Applies functions to fields by name; every field must exist."""

    def __init__(self, handler: Handler = reraise_exception, **kw: Function) -> None:
        super().__init__(handler)
        if not kw:
            raise UsageError("map_dict requires at least one field=function.")
        for name, f in kw.items():
            if not callable(f):
                raise UsageError(f"expected a function, got {f!r}.", field=name)
        self.functions = kw

    def apply(self, item: Any) -> Any:
        if not isinstance(item, Mapping):
            raise UsageError(
                f"map_dict: expected a dictionary, got {type(item).__name__}.",
                hint="map_tuple, or put map_dict before to_tuple.",
            )
        result = dict(item)
        for name, f in self.functions.items():
            if name not in result:
                getfirst(item, (name,))  # raises
            result[name] = f(result[name])
        return result


class MapTuple(Each):
    """Applies functions to the first items of a tuple; None keeps an item."""

    def __init__(self, *args: Function | None, handler: Handler = reraise_exception) -> None:
        super().__init__(handler)
        for f in args:
            if f is not None and not callable(f):
                raise UsageError(f"map_tuple: expected functions or None, got {f!r}.")
        self.functions = args

    def apply(self, item: Any) -> Any:
        if not isinstance(item, list | tuple):
            raise UsageError(
                f"map_tuple: expected a tuple, got {type(item).__name__}.", hint="put to_tuple before it."
            )
        count = min(len(self.functions), len(item))
        return (*transform_with(item[:count], self.functions[:count]), *item[count:])


class ToTuple(Each):
    """Selects fields into a tuple; `"jpg;png"` is the first of them that exists."""

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
        self.choices = [list(_alternatives(field)) for field in args]
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
            raise located(MissingField(f'field "{", ".join(names)}" is None.'), item)
        return result


class ExtractKeys(Each):
    """Selects fields by shell pattern into a tuple."""

    def __init__(
        self,
        *patterns: str | Sequence[str],
        duplicate_is_error: bool = True,
        ignore_missing: bool = False,
        handler: Handler = reraise_exception,
    ) -> None:
        super().__init__(handler)
        self.patterns = [list(_alternatives(item)) for item in patterns]
        self.duplicate_is_error, self.ignore_missing = duplicate_is_error, ignore_missing

    def apply(self, item: Any) -> Any:
        result = []
        for patterns in self.patterns:
            matches = [
                name for name in item if any(fnmatch(name, p) or fnmatch(f".{name}", p) for p in patterns)
            ]
            if not matches:
                if self.ignore_missing:
                    continue
                raise located(MissingField(f"no field matches {';'.join(patterns)}."), item)
            if len(matches) > 1 and self.duplicate_is_error:
                raise located(DuplicateField(f"{', '.join(matches)} all match {';'.join(patterns)}."), item)
            result.append(item[matches[0]])
        return tuple(result)


class RenameKeys(Each):
    """Renames fields by shell pattern, from (new, pattern) pairs; the last pattern that matches wins."""

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
            new = next((new for pattern, new in self.renamings if self._matches(name, pattern, unused)), None)
            if new is None:
                if self.keep_unselected:
                    result[name] = value
            elif new not in result:
                result[new] = value
            elif self.duplicate_is_error:
                raise located(DuplicateField(f'several fields would become "{new}".'), item)
        if self.must_match and unused:
            raise located(MissingField(f"no field matches {', '.join(sorted(unused))}."), item)
        return result

    @staticmethod
    def _matches(name: str, pattern: str, unused: set[str]) -> bool:
        if not fnmatch(name.rpartition("/")[2].lower(), pattern):
            return False
        unused.discard(pattern)
        return True


def read_bytes(stream: Any) -> bytes:
    """Return the bytes of a stream."""
    data: bytes = stream.read()
    return data


def read_text(stream: Any) -> str:
    """Return the UTF-8 text of a stream."""
    return read_bytes(stream).decode("utf-8")


X_DECODERS: list[tuple[str, Any]] = [("*.bin", read_bytes), ("*.txt", read_text)]


class XDecode(Each):
    """Decodes fields by shell pattern with functions that read a stream; False leaves a field as it is.

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
        return {name: self._decode(name, value, item) for name, value in item.items()}

    def _decode(self, name: str, value: Any, sample: Any) -> Any:
        if name.startswith("__"):
            return value
        file = name.rpartition("/")[2].lower()
        matches = (
            f for pattern, f in self.decoders if fnmatch(file, pattern) or fnmatch(f".{file}", pattern)
        )
        decode = next(matches, None)
        if decode is None and self.must_decode:
            raise located(NoCodec(f'no decoder for the field "{name}".'), sample)
        if decode is None or decode is False:
            return value
        return decode(io.BytesIO(value) if isinstance(value, bytes) else value)
