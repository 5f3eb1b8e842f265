"""The command line: one file per verb; each parses, calls one library function, and prints.

A verb is imported when it is called, so that `tarmac --help` answers quickly. Plug-ins add verbs with
`register_command`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import click
from click.shell_completion import shell_complete

from tarmac import environment
from tarmac.cli.command import DAMAGED, USAGE, DataOnly, exit_code, with_flags
from tarmac.cli.defects import unexpected
from tarmac.cli.output import say
from tarmac.cli.signals import interrupt_on_signals
from tarmac.display import visible
from tarmac.errors import TarmacError, TarmacWarning
from tarmac.plugins import load_plugins

__all__ = ["exit_code", "main", "program", "register_command", "VERBS"]

VERBS = {
    "select": "Select rows of tables of links: filter, join, deduplicate, shuffle.",
    "pack": "Pack files, folders and tables into shards.",
    "download": "Download the pictures that tables of links name.",
    "copy": "Copy samples: select, rename, split, reshard, mix, shuffle.",
    "sort": "Sort samples by key, by a value, or at random.",
    "map": "Transform samples with a command or a Python function.",
    "join": "Add fields from a table or from other shards, by key.",
    "index": "Index shards and write a manifest.",
    "check": "Check shards, compare them, repair them.",
    "show": "Show samples, statistics, or a contact sheet; extract files.",
    "export": "Export samples to files, tables and databases.",
    "tokenize": "Tokenize texts and images of samples.",
    "combine": "Combine the parts that tokenize wrote.",
    "embed": "Embed images and texts of samples as vectors.",
    "knn": "Build an index of nearest neighbours, add to it, and search it.",
    "dedup": "Find near duplicates by vectors or texts; list the samples that stay.",
    "jobs": "Run jobs on Slurm and Kubernetes, and look at jobs.",
    "cache": "Fill, verify and evict the cache.",
    "audit": "Audit the order in which a Loader reads samples.",
}
"""The verbs and what they do, for `tarmac --help`."""
_registered: dict[str, click.Command] = {}
_JOBS = (
    "select", "download", "pack", "copy", "sort", "map", "join", "index", "export", "tokenize", "combine", "embed",
    "knn", "dedup", "cache",
)  # fmt: skip
DEFECT, INTERRUPTED = 70, 130


def register_command(name: str, command: click.Command) -> None:
    """Add a verb to the command line; `tarmac.cli.command.build` turns a function into its command.

    >>> tarmac.cli.register_command("tag", command)
    """
    VERBS[name] = command.get_short_help_str(80)
    _registered[name] = command


class _Program(click.Group):
    """The verbs, each imported from its module when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = (
            _registered.get(cmd_name) or importlib.import_module(f"tarmac.cli.{cmd_name}").command
        )
        command.name = cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


def _print_version(ctx: click.Context, _param: click.Parameter, given: bool) -> None:
    if given:
        from tarmac import __version__

        say(f"tarmac {__version__}")
        ctx.exit()


program = _Program(
    "tarmac",
    help="Machine-learning datasets in plain tar shards.",
    no_args_is_help=True,
    params=[
        click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
                     help="Print the version.")
    ],
)  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Errors are one line on standard error, never a traceback."""
    output, status, signals = sys.stdout, INTERRUPTED, list[int]()
    # A signal may arrive just before a verb starts or after it ends.
    with contextlib.suppress(KeyboardInterrupt), interrupt_on_signals(signals), _warnings_as_lines():
        status = _run(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, DataOnly):
        sys.stdout = output
    if signals or status == INTERRUPTED:
        with contextlib.suppress(OSError):
            say(_interrupted(sys.argv[1:] if arguments is None else arguments), err=True)
    sys.exit(128 + signals[0] if signals else status)


def _interrupted(arguments: list[str]) -> str:
    """Return the last line of an interrupted program; jobs continue, unless they write to standard output."""
    continues = arguments[:1] and arguments[0] in _JOBS and "-" not in arguments
    return f"tarmac: interrupted{'; run the same command again to continue' if continues else ''}."


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print our own warnings as messages, without their location in the source."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def print_warning(message: Any, category: type[Warning], *args: Any, **more: Any) -> None:
            if issubclass(category, TarmacWarning):
                say(with_flags(f"tarmac: {message}"), err=True)
            else:
                show(message, category, *args, **more)

        warnings.simplefilter("always", TarmacWarning)
        warnings.showwarning = print_warning
        yield


def _run(arguments: list[str]) -> int:
    """Run a verb and return its exit status; an error is a line, with its traceback only for debugging."""
    try:
        load_plugins()
        if instruction := environment.completion():
            return shell_complete(program, {}, "tarmac", "_TARMAC_COMPLETE", instruction)
        with program.make_context("tarmac", list(arguments)) as context:
            program.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        message = io.StringIO()
        error.show(message)
        return _failed(message.getvalue().rstrip("\n"), error.exit_code)
    except TarmacError as error:
        if isinstance(error.__cause__, BrokenPipeError) and error.url == "-":
            sys.stdout = None
            return 0
        return _failed(with_flags(f"tarmac: {error}"), exit_code(error))
    except ImportError as error:
        return _failed(visible(f"tarmac: {error}"), USAGE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None
        return 0
    except OSError as error:  # for example of standard output
        sys.stdout = None
        location = f"{error.filename}: " if error.filename else ""
        return _failed(visible(f"tarmac: {location}{error.strerror or error}"), DAMAGED)
    except Exception as error:
        return _failed(visible(unexpected(error, arguments)), DEFECT)
    return 0


def _failed(message: str, status: int) -> int:
    if environment.debug():
        traceback.print_exc()
    if (error := sys.exception()) is not None:
        # Its frames may refer to it and to worker processes. As a cycle, these would end with the interpreter.
        error.__traceback__ = None
    for line in message.split("\n"):
        say(line, err=True)
    return status
