"""Take apart the command line that the tasks of a cluster run, and add the flags that tell a task its share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from tarmac.errors import UsageError

VERBS = (
    "download", "pack", "copy", "sort", "map", "join", "index", "check", "export", "tokenize", "combine", "embed",
    "knn build",
)  # fmt: skip
"""The verbs whose jobs have units, and so take --engine and --task."""
MAX_TASKS = 1000
"""Slurm's own default is 1,001 (MaxArraySize); more tasks do not make a job faster."""
PREEMPTED = (138, 140, 143)
"""The exit statuses of a command that SIGUSR1, SIGUSR2 or SIGTERM stopped: 128 and the number of the signal."""


@dataclass(frozen=True)
class JobCommand:
    """A command line: what starts tarmac, up to the verb, and the arguments of the verb."""

    start: tuple[str, ...]
    """The words up to the verb; it may have two, as `knn build`."""
    verb: str
    """Its first word."""
    arguments: tuple[str, ...]

    def has(self, *flags: str) -> bool:
        """Return whether one of the flags is given, alone, with a value after an equals sign, or as `-j8`."""
        return any(_is_flag(argument, flag) for argument in self._flags() for flag in flags)

    def value(self, *flags: str) -> str | None:
        """Return the value of a flag that is given by one of these names."""
        arguments = self._flags()
        for position, argument in enumerate(arguments):
            for flag in flags:
                if argument == flag:
                    return "".join(arguments[position + 1 : position + 2])
                if _is_flag(argument, flag):
                    return argument.removeprefix(flag).removeprefix("=")
        return None

    def _flags(self) -> tuple[str, ...]:
        """Return the arguments before `--`."""
        end = self.arguments.index("--") if "--" in self.arguments else len(self.arguments)
        return self.arguments[:end]


def _is_flag(argument: str, flag: str) -> bool:
    if flag.startswith("--"):
        return argument == flag or argument.startswith(f"{flag}=")
    return argument.startswith(flag)


def parse_command(command: Sequence[str], engine: str | None = None) -> JobCommand:
    """Check that several tasks can run a command together; `engine` is the one that it may name.

    Other programs may start tarmac: `python -m tarmac map …`, `apptainer exec image.sif tarmac map …`.
    """
    names = [PurePath(word).name for word in command]
    verbs = [position + 1 for position, name in enumerate(names[:-1]) if name == "tarmac"]
    ends = [
        (each, each + size)
        for each in verbs
        for size in (1, 2)
        if " ".join(command[each : each + size]) in VERBS
    ]
    if not ends:
        given = f"tarmac {command[verbs[0]]}" if verbs else " ".join(command[:3]) or "nothing"
        raise UsageError(
            f"expected a command such as tarmac map, got {given!r}; verbs that run in several tasks: "
            f"{', '.join(VERBS)}.",
            field="command",
        )
    position, end = ends[0]
    parsed = JobCommand(tuple(command[:end]), command[position], tuple(command[end:]))
    _check_flags(parsed, engine)
    return parsed


def _check_flags(command: JobCommand, engine: str | None) -> None:
    given = command.value("--engine")
    if command.has("--task") or given not in (None, engine):
        raise UsageError(
            "the command already has an engine or a task; each task gets its own.",
            field="command",
            hint="remove --engine and --task from it.",
        )
    if command.has("--overwrite"):
        raise UsageError(
            "every task would start over and replace what the others have written.",
            field="command",
            hint="remove --overwrite from the command, and the old outputs before it runs.",
        )
    if command.has("--dry-run") or command.value("-o", "--output") == "-":
        raise UsageError(
            "a task writes files; it has no standard output or dry run to share.",
            field="command",
            hint="run the command itself.",
        )


def check_tasks(tasks: int) -> None:
    """Raise if a number of tasks is invalid."""
    if not 1 <= tasks <= MAX_TASKS:
        raise UsageError(
            f"expected 1 to {MAX_TASKS:,} tasks, got {tasks:,}; tasks share all units, however many there are, so "
            "fewer tasks finish them, too.",
            field="tasks",
        )


def check_text(field: str, value: str | None, pattern: str, expected: str) -> None:
    """Raise if the text of an option does not match the whole pattern."""
    if value is not None and not re.fullmatch(pattern, value):
        raise UsageError(f"expected {expected}, got {value!r}.", field=field)
