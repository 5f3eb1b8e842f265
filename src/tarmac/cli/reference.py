"""Generate docs/cli.md from the program itself; `make docs` runs this module."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

import click

from tarmac.cli import VERBS, program
from tarmac.cli.command import help_groups

_HEAD = """\
# The command line

This is the text of `tarmac --help` and `tarmac VERB --help`; `make docs` generates it.

Flags of the groups Select, Order, Write, Run and Access mean the same on every verb. Sizes and counts take
units: `1e4`, `100MB`, `2GiB`. Data goes to standard output, messages go to standard error.

| exit status | |
|---|---|
| 0 | success |
| 1 | data is damaged or samples were lost |
| 2 | usage error |
| 3 | a file or server cannot be reached |
| 70 | a bug in tarmac; `TARMAC_DEBUG=1` shows the traceback |
| 130, 143, 138, 140 | interrupted by Ctrl-C, SIGTERM, SIGUSR1, SIGUSR2; the same command continues a job |

To complete verbs and flags with the Tab key, run `eval "$(_TARMAC_COMPLETE=bash_source tarmac)"`; zsh and fish
have `zsh_source` and `fish_source`.
"""


def reference() -> str:
    """Return all verbs with all their flags, as Markdown."""
    context = click.Context(program, info_name="tarmac")
    commands = ((verb, program.get_command(context, verb)) for verb in VERBS)
    return "\n".join(
        [_HEAD, *(text for verb, each in commands if each for text in _sections(each, verb, context))]
    )


def _sections(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    if isinstance(command, click.Group):
        for verb in command.list_commands(context):
            yield from _sections(command.commands[verb], verb, context)
        return
    yield f"## {context.command_path}\n\n{_description(command)}\n"
    for group, rows in help_groups(command, context).items():
        lines = [
            f"| {_cell(flag)} | {text.replace('|', '&#124;')} |" for flag, text in rows if flag != "--help"
        ]
        if lines:
            yield "\n".join([f"| {group} | |", "|---|---|", *lines, ""])


def _description(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "")
    description, _, example = text.partition("\n\n\b\nExample:\n")
    return f"{description}\n\n```\n{example.strip()}\n```" if example else description


def _cell(flag: str) -> str:
    """Return a flag as code, with its value."""
    return "`" + flag.replace("|", "\\|") + "`"


if __name__ == "__main__":
    sys.stdout.write(reference())
