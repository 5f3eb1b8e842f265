"""Stages with the attributes of the webdataset library: `f`, `args`, `kw`, and its `repr`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar, cast

from tarmac.steps.stage import Epoch, FilterFunction, PipelineStage

T = TypeVar("T", bound=PipelineStage)


class Uncurried:
    """A stage as a function of data and the stage's arguments: `_map(data, f)` for `map(f)(data)`."""

    def __init__(self, stage: Callable[..., Callable[[Any], Any]], name: str = "") -> None:
        self.stage = stage
        self.__name__: str = name
        data = inspect.Parameter("data", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(stage).parameters.values()
        self.__signature__: inspect.Signature = inspect.Signature([data, *parameters])

    def __call__(self, *args: Any, **kw: Any) -> Any:
        data, *rest = args or (kw.pop("data"),)  # a field may be called data, too
        return self.stage(*rest, **kw)(data)


class _Recorded(PipelineStage):
    """Records the arguments of a stage. If a program changes them, the stage has the new ones in the next epoch."""

    f: ClassVar[Any]
    args: tuple[Any, ...]
    kw: dict[str, Any]
    _initial: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, /, *args: Any, **kw: Any) -> Self:  # a field may be called cls
        stage = super().__new__(cls)
        stage.args, stage.kw, stage._initial = args, kw, (args, dict(kw))
        return stage

    def begin_epoch(self, epoch: Epoch) -> None:
        if not _same(self._initial, (self.args, self.kw)):
            self._initial = self.args, dict(self.kw)
            type(self).__init__(self, *self.args, **self.kw)
        super().begin_epoch(epoch)

    def __repr__(self) -> str:
        return f"<{self.f.__name__} {self.args} {self.kw}>"


def _same(first: tuple[Any, dict[str, Any]], second: tuple[Any, dict[str, Any]]) -> bool:
    """Return whether two pairs of arguments hold the same objects; arrays cannot be compared by value."""
    (args, kw), (other_args, other_kw) = first, second
    values, others = [*args, *kw.values()], [*other_args, *other_kw.values()]
    return list(kw) == list(other_kw) and list(map(id, values)) == list(map(id, others))


def library_stage(name: str, module: str, stage: type[T], f: Callable[..., Any] | None = None) -> type[T]:
    """Return a stage as the webdataset library has it under `module.name`; `f` is its function of data."""
    names = {
        "__module__": module,
        "__qualname__": name,  # for pickles; in reports and states it keeps its name
        "__doc__": stage.__doc__,
        "__signature__": inspect.signature(stage),
    }
    result = type(stage.__name__, (_Recorded, stage, FilterFunction), names)
    result.f = Uncurried(result, f"_{name}") if f is None else staticmethod(f)  # type: ignore[attr-defined]
    return cast("type[T]", result)


def function_of(stage: type[Any]) -> Uncurried:
    """Return the function `f` of a stage."""
    function: Uncurried = stage.f
    return function
