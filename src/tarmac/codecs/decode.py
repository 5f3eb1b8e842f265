"""Decode the fields of samples by their extensions.

Every field goes past the handlers in order until one gives a value: first those that unwrap (`.gz`),
then the caller's own, then the table of basic decoders. Bytes that nobody wants stay bytes.

    decode = Decoder([imagehandler("rgb8"), handle_extension("seg.png", my_masks)])
    sample = decode(sample)

What each of tarmac's handlers does depends on the field name only, so it is worked out once per name.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial as bind
from typing import Any, NoReturn

from tarmac.codecs.basic import basichandlers, gzfilter
from tarmac.codecs.handlers import Continue, FieldHandler, Function, Handler, Settings
from tarmac.errors import CodecError, DecodeFailed
from tarmac.extras import MissingExtra
from tarmac.limits import DEFAULT_LIMITS, Limits

__all__ = ["Decoder", "DecodingError"]

DecodingError = DecodeFailed
"""The name that the webdataset library uses."""

REMEMBERED = 4096
REASON = 300

_UNWRAP, _FINAL, _MAYBE, _ASK = range(4)
_Step = tuple[int, Any, str, int]


class Decoder:
    """Decodes samples with a list of handlers; it can be pickled if they can.

    `pre` and `post` are handlers before and after `handlers` (by default `gzfilter` and
    `basichandlers`). `only` names the fields to decode, the others stay as they are. With `partial`,
    fields that are not bytes any more are left alone; otherwise they are an error.
    `allow_pickle` lets the basic decoders load pickles, full torch files and arrays of objects.
    """

    def __init__(
        self,
        handlers: Iterable[Handler],
        pre: Iterable[Handler] | None = None,
        post: Iterable[Handler] | None = None,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
        *,
        allow_pickle: bool = False,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        before = [gzfilter] if pre is None else list(pre)
        after = [basichandlers] if post is None else list(post)
        if isinstance(handlers, str):
            raise TypeError(f"handlers is a list of functions, got the string {handlers!r}")
        self.handlers: list[Handler] = [*before, *handlers, *after]
        for handler in self.handlers:
            if not callable(handler):
                raise TypeError(f"a handler is a function of key and data, got {handler!r}")
        self.only = None if only is None else frozenset(only.split() if isinstance(only, str) else only)
        self.partial = partial
        self.settings = Settings(allow_pickle=allow_pickle, limits=limits)
        self._plans: dict[str, Function] = {}

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return self.decode(sample)

    def decode(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return a new sample with decoded fields, or raise `DecodeFailed` that names the field."""
        if not isinstance(sample, dict):
            raise DecodeFailed(f"a sample is a dictionary, got {type(sample).__name__}.")
        plans = self._plans
        result = {}
        field = ""
        try:
            for field, value in sample.items():
                if value.__class__ is bytes:
                    plan = plans.get(field)
                    if plan is None:
                        plan = self._learn(field)
                    result[field] = plan(value)
                else:
                    result[field] = self._not_bytes(field, value)
        except Exception as error:
            _fail(error, field, sample.get("__key__"), sample.get("__url__"))
        return result

    def decode1(self, key: str, data: bytes) -> Any:
        """Decode the bytes of one field; errors come as the handlers raise them."""
        return self._plan(0, f".{key}")(data)

    def _not_bytes(self, field: str, value: Any) -> Any:
        if self.partial or field[:2] == "__" or (self.only is not None and field not in self.only):
            return value
        if isinstance(value, bytes):
            return self._learn(field)(bytes(value))
        raise DecodeFailed(
            f"bytes were expected, got {type(value).__name__}.",
            hint="decode only once, or with partial=True, or name the fields to decode with only=.",
        )

    def _learn(self, field: str) -> Function:
        """Work out what happens to a field of this name, and remember it."""
        plan: Function
        if field[:2] == "__":
            plan = _text_if_possible
        elif self.only is not None and field not in self.only:
            plan = bytes  # which returns the very same object
        else:
            plan = self._plan(0, f".{field}")
        # Field names can be without end (a number in each); then remembering starts again.
        if len(self._plans) >= REMEMBERED:
            self._plans.clear()
        self._plans[field] = plan
        return plan

    def _plan(self, start: int, key: str) -> Function:
        """Line up what the handlers from `start` on do with a key."""
        steps: list[_Step] = []
        for index, handler in enumerate(self.handlers[start:], start):
            if not isinstance(handler, FieldHandler) or type(handler).__call__ is not FieldHandler.__call__:
                steps.append((_ASK, handler, key, index))
                continue
            function = handler.find(key, self.settings)
            if function is None:
                continue
            inner = handler.inner(key)
            if inner is not None:
                steps.append((_UNWRAP, function, key, index))
                key = inner
                continue
            steps.append((_FINAL if handler.final else _MAYBE, function, key, index))
            if handler.final:
                break
        if len(steps) == 1 and steps[0][0] == _FINAL:
            only: Function = steps[0][1]
            return only
        return bind(self._run, tuple(steps)) if steps else bytes

    def _run(self, steps: tuple[_Step, ...], data: bytes) -> Any:
        for kind, function, key, index in steps:
            if kind == _UNWRAP:
                data = function(data)
                continue
            value = function(key, data) if kind == _ASK else function(data)
            if isinstance(value, Continue):
                return self._plan(index + 1, value.key)(value.data)
            if value is not None or kind == _FINAL:
                return value
        return data

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}}

    def __repr__(self) -> str:
        return f"Decoder({self.handlers})"


def _text_if_possible(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _fail(error: Exception, field: str, key: Any, url: Any) -> NoReturn:
    """Raise the error with its place: field, sample and shard. The sample itself is not kept."""
    key = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
    key = key if key is None else str(key)
    url = url if isinstance(url, str) else None
    if isinstance(error, CodecError):
        if error.field is None:
            error.field = field
            error.what = f'field "{field}": {error.what}'
        raise error.at(url=url, key=key)
    if isinstance(error, MissingExtra):
        raise error
    reason = f"{type(error).__name__}: {error}".rstrip(".:")
    if len(reason) > REASON:
        reason = f"{reason[:REASON]}…"
    failure = DecodeFailed(f'field "{field}": {reason}.', url=url, key=key)
    failure.field = field
    raise failure from error
