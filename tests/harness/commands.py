"""Run command lines that are expected to fail in many ways, but never because a verb or a flag was renamed."""

from __future__ import annotations

import click
import pytest

from tarmac.cli import main, program


def run(arguments: list[str]) -> int:
    """Run a command line in this process and return its exit status; its verb and flags must exist."""
    _check_names(arguments)
    with pytest.raises(SystemExit) as done:
        main(arguments)
    return done.value.code or 0  # type: ignore[return-value]


def _check_names(arguments: list[str]) -> None:
    """Fail for unknown verbs and flags, which would end every test of an error with success."""
    command: click.Command = program
    context = click.Context(program)
    for argument in arguments:
        if isinstance(command, click.Group):
            subcommand = command.get_command(context, argument)
            assert subcommand is not None, f"no such verb: {argument}"
            command = subcommand
        elif argument.startswith("-") and argument != "-":
            flags = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
            assert argument.partition("=")[0] in flags, f"no such flag: {argument}"
