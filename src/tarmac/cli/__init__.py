"""The command line: one file per verb; each parses, calls one library function, and prints.

A verb imports what it calls when it is called, so that `tarmac --help` answers at once.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from tarmac.cli import cache, check, copy, export, flags, index, join, map, order, pack, show, sort
from tarmac.errors import BadCondition, JobError, TarmacError, TransferError, UrlError

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

DAMAGED, USAGE, UNREACHABLE, INTERRUPTED, TERMINATED = 1, 2, 3, 130, 143


def _version(wanted: bool) -> None:
    if wanted:
        from tarmac import __version__

        typer.echo(f"tarmac {__version__}")
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
    return USAGE if isinstance(error, UrlError | BadCondition | JobError) else DAMAGED


@functools.cache
def _command() -> Callable[..., Any]:
    """The program with all its verbs, which takes a tenth of a second to put together."""
    return typer.main.get_command(app)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Errors are one line on standard error, never a traceback."""
    output = sys.stdout
    with _ended_as_interrupted() as ended:
        try:
            status: Any = _guarded(lambda: _command()(arguments, standalone_mode=True))
        except SystemExit as end:
            # Whoever reads our output may have seen enough, as `head` does: nothing is wrong with that. This
            # is what click leaves behind then.
            status = 0 if type(sys.stdout).__name__ == "PacifyFlushWrapper" else end.code
    if isinstance(sys.stdout, flags.Aside):
        sys.stdout = output
    sys.exit(TERMINATED if ended else status)


@contextlib.contextmanager
def _ended_as_interrupted() -> Iterator[list[int]]:
    """Have what a batch system sends before it kills leave everything as Ctrl-C does; say whether it came."""
    ended: list[int] = []

    def stop(number: int, _frame: Any) -> None:
        ended.append(number)
        if len(ended) == 1:  # the next one must not disturb the clearing up
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield ended
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield ended
    finally:
        signal.signal(signal.SIGTERM, before)


def _guarded(run: Callable[[], Any]) -> int:
    try:
        run()
    except TarmacError as error:
        if isinstance(error.__cause__, BrokenPipeError) and error.url == "-":
            sys.stdout = None
            return 0
        typer.echo(f"tarmac: {error}", err=True)
        return exit_code(error)
    except ImportError as error:
        typer.echo(f"tarmac: {error}", err=True)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None
        return 0
    except OSError as error:  # of standard output, say
        typer.echo(f"tarmac: {error.strerror or error}", err=True)
        sys.stdout = None
        return DAMAGED
    return 0
