"""Decode the fields of samples by their extensions.

A decoder tries its handlers on each field in order: first the wrappers (`.gz`), then those of the caller, then
the registered codecs. Fields that no handler decodes stay bytes.

    decode = Decoder([imagehandler("rgb8"), handle_extension("seg.png", load_mask)])
    sample = decode(sample)

What tarmac's own handlers do depends only on the field name, so it is worked out once per name.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial as bind
from typing import Any, NoReturn

from tarmac.codecs.compression import gzfilter
from tarmac.codecs.handlers import Continue, DecodeFunction, DecodeOptions, FieldHandler, Handler
from tarmac.codecs.registry import basichandlers
from tarmac.errors import CodecError, DecodeFailed
from tarmac.errors import DecodingError as DecodingError
from tarmac.extras import MissingExtra
from tarmac.limits import DEFAULT_LIMITS, Limits

_MAX_PLANS = 4096
_MAX_REASON = 300

_UNWRAP, _FINAL, _MAYBE = range(3)
_Step = tuple[int, DecodeFunction, int]


class Decoder:
    """Decodes samples with a list of handlers. It can be pickled if they can.

    `pre` and `post` are the handlers before and after `handlers`, by default `gzfilter` and `basichandlers`.
    `only` names the fields to decode. With `partial`, fields that are not bytes are left as they are instead
    of raising. `allow_pickle` lets codecs load pickles, full torch files and arrays of objects.
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
        first = [gzfilter] if pre is None else list(pre)
        last = [basichandlers] if post is None else list(post)
        if isinstance(handlers, str):
            raise TypeError(f"handlers: expected a list of functions, got the string {handlers!r}")
        self.handlers: list[Handler] = [*first, *handlers, *last]
        for handler in self.handlers:
            if not callable(handler):
                raise TypeError(f"handlers: expected functions of key and data, got {handler!r}")
        self.only = None if only is None else frozenset(only.split() if isinstance(only, str) else only)
        self.partial = partial
        self.options = DecodeOptions(allow_pickle=allow_pickle, limits=limits)
        self._plans: dict[str, DecodeFunction] = {}

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return self.decode(sample)

    def decode(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return a new sample with decoded fields, or raise `DecodeFailed` that names the field."""
        if not isinstance(sample, dict):
            raise DecodeFailed(f"expected a sample as a dictionary, got {type(sample).__name__}.")
        plans = self._plans
        result = {}
        field = ""
        try:
            for field, value in sample.items():
                if value.__class__ is bytes:
                    plan = plans.get(field)
                    if plan is None:
                        plan = self._add_plan(field)
                    result[field] = plan(value)
                else:
                    result[field] = self._decode_other(field, value)
        except Exception as error:
            raise_located(error, field, sample.get("__key__"), sample.get("__url__"))
        return result

    def decode1(self, key: str, data: bytes) -> Any:
        """Decode the bytes of one field; errors of handlers are not translated."""
        return self._plan(0, f".{key}")(data)

    def _decode_other(self, field: str, value: Any) -> Any:
        if self.partial or field[:2] == "__" or (self.only is not None and field not in self.only):
            return value
        if isinstance(value, bytes):
            return self._add_plan(field)(bytes(value))
        raise DecodeFailed(
            f"expected bytes, got {type(value).__name__}.",
            hint="decode only once, or with partial=True, or name the fields to decode with only=.",
        )

    def _add_plan(self, field: str) -> DecodeFunction:
        plan: DecodeFunction
        if field[:2] == "__":
            plan = _text_if_possible
        elif self.only is not None and field not in self.only:
            plan = bytes  # which returns the same object
        else:
            plan = self._plan(0, f".{field}")
        # Field names can be unbounded (a number in each), so the memory of them must not be.
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        self._plans[field] = plan
        return plan

    def _plan(self, start: int, key: str) -> DecodeFunction:
        """Return the function that applies the handlers from `start` on to a key."""
        steps: list[_Step] = []
        for index, handler in enumerate(self.handlers[start:], start):
            if not isinstance(handler, FieldHandler) or type(handler).__call__ is not FieldHandler.__call__:
                steps.append((_MAYBE, bind(handler, key), index))
                continue
            function = handler.find(key, self.options)
            if function is None:
                continue
            inner = handler.inner(key)
            if inner is not None:
                steps.append((_UNWRAP, function, index))
                key = inner
                continue
            steps.append((_FINAL if handler.final else _MAYBE, function, index))
            if handler.final:
                break
        if len(steps) == 1 and steps[0][0] == _FINAL:
            return steps[0][1]
        return bind(self._run, tuple(steps)) if steps else bytes

    def _run(self, steps: tuple[_Step, ...], data: bytes) -> Any:
        for action, function, index in steps:
            value = function(data)
            if action == _UNWRAP:
                data = value
                continue
            if isinstance(value, Continue):
                return self._plan(index + 1, value.key)(value.data)
            if value is not None or action == _FINAL:
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


def raise_located(error: Exception, field: str, key: Any, url: Any) -> NoReturn:
    """Raise the error with its location: field, sample and shard. It does not keep the sample."""
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
    if len(reason) > _MAX_REASON:
        reason = f"{reason[:_MAX_REASON]}…"
    failure = DecodeFailed(f'field "{field}": {reason}.', url=url, key=key)
    failure.field = field
    raise failure from error
