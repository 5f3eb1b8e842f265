"""Find the share of a task that runs without a driver: from `2/8`, or from the variables that Slurm sets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tarmac.errors import BadSetting, UsageError

SLURM = "slurm"
"""The name by which a task of a Slurm job asks for its share, in the place of an engine."""
T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """One of `count` equal shares of the units of a job; `index` counts from 0."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise _invalid(str(self))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def of(self, items: Sequence[T]) -> Sequence[T]:
        """Return the items of this share: every `count`-th one. The shares of all indexes have each item once."""
        return items[self.index :: self.count]


def parse_share(text: str) -> Share:
    """Parse `INDEX/COUNT`, such as `2/8`."""
    match = re.fullmatch(r"(\d{1,18})/(\d{1,18})", text, re.ASCII)
    if match is None:
        raise _invalid(text)
    return Share(int(match[1]), int(match[2]))


def share_of_slurm(environ: Mapping[str, str]) -> Share:
    """Return the share of a task in a Slurm array, in a step of several tasks, or in both.

    Arrays may start anywhere and have a step (`1-10`, `0-90:10`). In one with other gaps (`1,3,7`), two tasks may have
    the same share: tasks take over units that are left, so all are done.
    """
    array, step = _of_array(environ), _of_step(environ)
    if array is None and step is None:
        if "SLURM_JOB_ID" in environ:
            return Share(0, 1)
        raise UsageError(
            "not inside a Slurm job.",
            field="engine",
            hint="tarmac jobs slurm -- COMMAND writes a script that runs the command in one.",
        )
    array, step = array or Share(0, 1), step or Share(0, 1)
    return Share(array.index * step.count + step.index, array.count * step.count)


def _of_array(environ: Mapping[str, str]) -> Share | None:
    if "SLURM_ARRAY_TASK_ID" not in environ:
        return None
    number, count = _number(environ, "SLURM_ARRAY_TASK_ID"), _number(environ, "SLURM_ARRAY_TASK_COUNT", 1)
    first, step = _number(environ, "SLURM_ARRAY_TASK_MIN", 0), _number(environ, "SLURM_ARRAY_TASK_STEP", 1)
    last = _number(environ, "SLURM_ARRAY_TASK_MAX", first + step * (count - 1))
    if last - first == step * (count - 1):
        rank, rest = divmod(number - first, step or 1)
        if not rest and 0 <= rank < count:
            return Share(rank, count)
    return Share(number % count, count)


def _of_step(environ: Mapping[str, str]) -> Share | None:
    """Return the share in a step. A batch script is not one: its process is alone, however many tasks it may start."""
    if "SLURM_STEP_ID" not in environ or "SLURM_PROCID" not in environ:
        return None
    return Share(_number(environ, "SLURM_PROCID"), _number(environ, "SLURM_NTASKS", 1))


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "" if default is None else str(default))
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise BadSetting(f"expected a number in {name}, got {text!r}.")
    number = int(text)
    if name.endswith(("_COUNT", "_NTASKS")) and not number:
        raise BadSetting(f"expected a positive number in {name}, got {text!r}.")
    return number


def _invalid(text: str) -> UsageError:
    return UsageError(f"invalid task {text!r}: expected INDEX/COUNT with 0 <= INDEX < COUNT.", field="task")
