"""The command line: one file per verb; each parses, calls one library function, and prints.

A verb imports what it calls when it is called, so that `tarmac --help` answers at once.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from tarmac import environment
from tarmac.cli import cache, check, copy, export, flags, index, join, map, order, pack, show, sort
from tarmac.cli.defects import unexpected
from tarmac.cli.saying import say
from tarmac.cli.signals import ending
from tarmac.display import visible
from tarmac.errors import (
    BadCondition,
    HookFailed,
    JobError,
    TarmacError,
    TarmacWarning,
    TransferError,
    UrlError,
    UsageError,
)

__all__ = ["app", "main"]

app = typer.Typer(
    name="tarmac",
    help="Machine-learning datasets in plain tar shards.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("pack")(pack.pack_command)
app.command("copy")(copy.copy_command)
app.command("sort")(sort.sort_command)
app.command("map")(map.map_command)
app.command("join")(join.join_command)
app.command("index")(index.index_command)
app.command("check")(check.check_command)
app.command("show")(show.show_command)
app.command("export")(export.export_command)
app.add_typer(cache.app, name="cache")
app.command("order")(order.order_command)

DAMAGED, USAGE, UNREACHABLE, DEFECT, INTERRUPTED = 1, 2, 3, 70, 130


def _version(wanted: bool) -> None:
    if wanted:
        from tarmac import __version__

        say(f"tarmac {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Machine-learning datasets in plain tar shards."""


def exit_code(error: TarmacError) -> int:
    """Say what kind of trouble an error is: 1 damaged data, 2 usage, 3 transfer failed."""
    if isinstance(error, TransferError | FileNotFoundError | PermissionError):
        return UNREACHABLE
    usage = isinstance(error, UsageError | UrlError | BadCondition | JobError)
    return USAGE if usage and not isinstance(error, HookFailed) else DAMAGED


@functools.cache
def _command() -> Callable[..., Any]:
    """Put the program together, once: it takes a tenth of a second."""
    return typer.main.get_command(app)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Errors are one line on standard error, never a traceback."""
    output, status, signals = sys.stdout, INTERRUPTED, list[int]()
    # A signal may come in the moment before a verb begins, or behind it.
    with contextlib.suppress(KeyboardInterrupt), ending(signals), _warnings_as_lines():
        status = _status(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, flags.Aside):
        sys.stdout = output
    sys.exit(128 + signals[0] if signals else status)


def _status(arguments: list[str]) -> Any:
    try:
        return _guarded(arguments)
    except SystemExit as end:
        # The reader of our output may have seen enough, as `head` does, and nothing is wrong with that. This
        # is what click leaves behind then.
        return 0 if type(sys.stdout).__name__ == "PacifyFlushWrapper" else end.code


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Show our own warnings as messages: where in the source they were given is nothing to users."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def shown(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, TarmacWarning):
                say(f"tarmac: {message}", err=True)
            else:
                show(message, category, *place, **more)

        warnings.simplefilter("always", TarmacWarning)
        warnings.showwarning = shown
        yield


def _guarded(arguments: list[str]) -> int:
    """Run a verb and return its exit status; an error is a line, with its traceback only for debugging."""
    try:
        _command()(arguments, prog_name="tarmac", standalone_mode=True)
    except TarmacError as error:
        if isinstance(error.__cause__, BrokenPipeError) and error.url == "-":
            sys.stdout = None
            return 0
        return _failed(f"tarmac: {error}", exit_code(error))
    except ImportError as error:
        return _failed(visible(f"tarmac: {error}"), USAGE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None
        return 0
    except OSError as error:  # of standard output, say
        sys.stdout = None
        place = f"{error.filename}: " if error.filename else ""
        return _failed(visible(f"tarmac: {place}{error.strerror or error}"), DAMAGED)
    except Exception as error:
        return _failed(visible(unexpected(error, arguments)), DEFECT)
    return 0


def _failed(message: str, status: int) -> int:
    if environment.debug():
        traceback.print_exc()
    for line in message.split("\n"):
        say(line, err=True)
    return status
