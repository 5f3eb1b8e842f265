"""Build the command of a verb: flags in groups, one function to call, one report to print."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

import click

from tarmac.cli.output import say, say_json
from tarmac.errors import (
    BadCondition,
    HookFailed,
    JobError,
    TarmacError,
    TransferError,
    UnitsFailed,
    UnitTimedOut,
    UrlError,
    UsageError,
)

DAMAGED, USAGE, UNREACHABLE = 1, 2, 3
GROUPS = ("Arguments", "Options", "Select", "Order", "Write", "Run", "Access")
Function = Callable[..., Any]
Group = list[Callable[[Function], Function]]
_VALUE = re.compile(r"\b(\w+)=tarmac\.(\w+)(?:\(([^()]*)\))?")
_SETTING = re.compile(r"\b(Limits|StorageOptions|TarOptions)\.(?!config\b|headers\b)(\w+)")
_SETTERS = {"Limits": "limits", "StorageOptions": "storage", "TarOptions": "tar"}
_flags: dict[str, str] = {}
"""The flags of the running command, by the name of the argument that they set."""


class Flag(click.Option):
    """An option in a group of the help. A flag that is not given is not passed on: the verb has the defaults.

    `names` returns what replaces `{names}` in the help. It is called only then, as registries take long to import.
    """

    def __init__(
        self,
        *args: Any,
        group: str = "Options",
        sets: str = "",
        names: Callable[[], Iterable[str]] = tuple,
        **more: Any,
    ) -> None:
        if not more.get("required"):
            more.setdefault("default", None)
        super().__init__(*args, **more)
        self.group = group
        self.sets = sets or self.name or ""
        self.names = names

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        if record is None or "{names}" not in record[1]:
            return record
        return record[0], record[1].replace("{names}", ", ".join(self.names()))


class Argument(click.Argument):
    """A positional argument with a help text."""

    def __init__(self, *args: Any, help: str = "", **more: Any) -> None:
        super().__init__(*args, **more)
        self.help, self.group = help, "Arguments"

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return self.make_metavar(ctx), self.help or ""


class Command(click.Command):
    """A command whose help shows its flags in groups, and whose flags replace argument names in messages."""

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print nothing: arguments are a group of the options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for name, records in help_groups(self, ctx).items():
            with formatter.section(name):
                formatter.write_dl(records)

    def invoke(self, ctx: click.Context) -> Any:
        _flags.clear()
        _flags.update(
            {param.sets: max(param.opts, key=len) for param in self.params if isinstance(param, Flag)}
        )
        return super().invoke(ctx)


def help_groups(command: click.Command, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
    """Return the flags and their help texts, by group."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None:
            groups.setdefault(getattr(param, "group", "Options"), []).append(record)
    return {name: groups[name] for name in sorted(groups, key=GROUPS.index)}


def flag(*names: str, group: str = "Options", **more: Any) -> Callable[[Function], Function]:
    """Declare a flag; `sets` names the argument of the verb if the flag has another name."""
    return click.option(*names, cls=Flag, group=group, **more)


def argument(name: str, metavar: str, help: str, **more: Any) -> Callable[[Function], Function]:
    """Declare a positional argument."""
    return click.argument(name, metavar=metavar, cls=Argument, help=help, **more)


def build(*groups: Group, example: str = "") -> Callable[[Function], click.Command]:
    """Turn a function into a command.

    The function gets the arguments that were given, calls a verb and returns its report, which is printed. A
    function with a parameter `as_json` prints its own data.
    """

    def decorate(function: Function) -> click.Command:
        prints = "as_json" in inspect.signature(function).parameters

        def run(as_json: bool | None = None, **options: Any) -> None:
            given = {name: value for name, value in options.items() if value not in (None, ())}
            _reserve_stdout(given.get("output"), bool(as_json))
            if prints:
                given["as_json"] = bool(as_json)
            report = function(**given)
            if report is not None:
                print_report(report, bool(as_json))

        text = inspect.getdoc(function) or ""
        run.__doc__ = f"{text}\n\n\b\nExample:\n  {example}" if example else text
        run.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        for declare in reversed([each for group in groups for each in group]):
            run = declare(run)
        return click.command(cls=Command, context_settings={"max_content_width": 110})(run)

    return decorate


def build_verb(verb: str, *groups: Group, help: str, example: str) -> click.Command:
    """Build the command of a verb whose flags are named after its arguments."""

    def function(**arguments: Any) -> Any:
        import tarmac

        return getattr(tarmac, verb)(**{"sources": ()} | arguments)

    function.__doc__ = help
    return build(*groups, example=example)(function)


def with_flags(text: str) -> str:
    """Replace arguments by the flags of the running command: names in backticks, values and options of this package."""
    text = _VALUE.sub(lambda match: _with_value(*match.groups()) or match[0], text)
    text = _SETTING.sub(lambda match: _with_setting(*match.groups()) or match[0], text)
    return re.sub(r"`(\w+)`", lambda match: _flags.get(match[1], match[0]), text)


def _with_value(name: str, value: str, setting: str | None) -> str:
    """Return the flag for `split_name=tarmac.last_dot` or `tar=tarmac.TarOptions(end="lenient")`, if there is one."""
    text = setting.replace('"', "").lower() if setting else value.replace("_", "-")
    return f"{_flags[name]} {text}" if name in _flags else ""


def _with_setting(options: str, name: str) -> str:
    """Return the flag for `Limits.shards`, if there is one: `--limits shards=N`."""
    flag = _flags.get(_SETTERS[options])
    return f"{flag} {name}=N" if flag else ""


def _reserve_stdout(output: str | None, as_json: bool) -> None:
    """If shards go to standard output, send everything else to standard error, including what functions print."""
    if output == "-":
        if as_json:
            raise click.UsageError("--json and -o - would both write to standard output.")
        if sys.stdout.isatty() and click.get_current_context().info_name != "export":
            raise click.UsageError(
                "-o - does not write shards to a terminal. Try: -o - | tar -tv, or -o FILE."
            )
        sys.stdout = DataOnly(sys.stdout.buffer)


class DataOnly:
    """A standard output for binary data; text goes to standard error."""

    def __init__(self, data: BinaryIO) -> None:
        self.buffer = data

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


def exit_code(error: TarmacError) -> int:
    """Return the exit status of an error: 1 damaged data, 2 usage, 3 transfer failed."""
    denied = isinstance(error.__cause__, PermissionError)
    if denied or isinstance(error, TransferError | UnitTimedOut | FileNotFoundError | PermissionError):
        return UNREACHABLE
    if isinstance(error, HookFailed | UnitsFailed):
        return DAMAGED
    return USAGE if isinstance(error, UsageError | UrlError | BadCondition | JobError) else DAMAGED


def say_report(report: Any, as_json: bool) -> None:
    """Print a report: as JSON on standard output, or its remarks and its summary on standard error."""
    if as_json:
        say_json(report.to_dict())
    for line in () if as_json else (*report.remarks, str(report)):
        say(with_flags(line), err=True)


def print_report(report: Any, as_json: bool) -> None:
    """Print the report of a job; exit with its status."""
    if not as_json:
        for error in report.errors:
            say(with_flags(f"FAILED {error}"), err=True)
        if report.errors and (more_failed := report.failed - len(report.errors)):
            say(f"FAILED … and {more_failed} more", err=True)
        if report.removed_outputs:
            say(f"removed what a previous run had written: {', '.join(report.removed_outputs)}", err=True)
        if report.stale_outputs:
            say(f"warning: left over from a previous run: {', '.join(report.stale_outputs)}", err=True)
    say_report(report, as_json)
    if report.exit_status:
        raise click.exceptions.Exit(report.exit_status)
