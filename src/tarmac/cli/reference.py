"""The reference of the command line, from the program itself: `make docs` puts it into docs/cli.md."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

__all__ = ["reference"]

_HEAD = """\
# The command line

What `tarmac --help` and `tarmac VERB --help` say, in one place; `make docs` writes this file.

Flags of the groups Select, Order, Write and Run mean the same on every verb that has them. Data goes to
standard output, everything else to standard error. Exit status: 0 all is well, 1 data is damaged or was lost,
2 the command makes no sense, 3 something could not be reached, 70 a defect of tarmac
(`TARMAC_DEBUG=1` shows its traceback), 130 interrupted, 143 terminated.
"""
_GROUPS = ("Arguments", "Options", "Select", "Order", "Write", "Run")
_KINDS = {int: "N", float: "X", str: "TEXT"}


def reference() -> str:
    """All verbs with all their flags, as Markdown."""
    from tarmac.cli import app

    return "\n".join([_HEAD, *_verbs(app, "tarmac")])


def _verbs(app: typer.Typer, name: str) -> Iterator[str]:
    for command in app.registered_commands:
        assert command.callback is not None
        yield from _verb(f"{name} {command.name}", command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from _verbs(group.typer_instance, f"{name} {group.name}")


def _verb(name: str, callback: Callable[..., Any]) -> Iterator[str]:
    yield f"## {name}\n\n{inspect.getdoc(callback)}\n"
    groups: dict[str, list[str]] = {}
    hints = get_type_hints(callback, include_extras=True)
    for parameter in inspect.signature(callback).parameters.values():
        kind, *more = get_args(hints[parameter.name])
        (info,) = [each for each in more if isinstance(each, typer.models.ParameterInfo)]
        if not info.hidden:
            group, line = _row(parameter, kind, info)
            groups.setdefault(group, []).append(line)
    for group in sorted(groups, key=_place):
        yield f"| {group} | |\n|---|---|"
        yield "\n".join(groups[group]) + "\n"


def _place(group: str) -> tuple[int, str]:
    return (_GROUPS.index(group) if group in _GROUPS else 2), group


def _row(parameter: inspect.Parameter, kind: Any, info: Any) -> tuple[str, str]:
    """The group of a parameter, and how it is written, what it is for, and what it is when not given."""
    is_option = isinstance(info, typer.models.OptionInfo)
    first = (info.default,) if isinstance(info.default, str) else ()  # typer takes the first name for it
    names = (*first, *(info.param_decls or ())) or (f"--{parameter.name.strip('_').replace('_', '-')}",)
    shown = ", ".join(f"`{name}`" for name in names) + _value(kind)
    if not is_option:
        shown = f"`{info.metavar or parameter.name.upper()}`"
    default = parameter.default
    told = ""
    if parameter.name == "jobs":
        told = " Default: the number of cores."
    elif type(default) in (str, int, float) and default != "":
        told = f" Default: `{default}`."
    text = f"{info.help or ''}{told}".replace("|", "\\|")
    return info.rich_help_panel or ("Options" if is_option else "Arguments"), f"| {shown} | {text} |"


def _value(kind: Any) -> str:
    """What stands after a flag."""
    if get_origin(kind) in (Union, types.UnionType, list):
        kind = next(each for each in get_args(kind) if each is not type(None))
        return _value(kind)
    if get_origin(kind) is Literal:
        return " `" + "\\|".join(map(str, get_args(kind))) + "`"
    return f" {_KINDS[kind]}" if kind in _KINDS else ""


if __name__ == "__main__":
    sys.stdout.write(reference())
