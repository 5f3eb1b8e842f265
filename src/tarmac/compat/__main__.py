"""Run a script, a command or a module with tarmac in place of the webdataset library."""

from __future__ import annotations

import importlib.util
import os
import runpy
import shutil
import sys
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import NoReturn

from tarmac import environment
from tarmac.compat import install

USAGE = """\
usage: python -m tarmac.compat [--allow-pickle] (SCRIPT | COMMAND | -m MODULE | -) [ARGUMENT …]

  SCRIPT          a Python file
  COMMAND         an installed Python command, such as widsindex
  -m MODULE       a module, as in python -m
  -               a script from standard input
  --allow-pickle  load pickles from shards, which can run any code; TARMAC_ALLOW_PICKLE=1 does the same
"""
OWN_COMMANDS = {"widsindex": "tarmac.compat.wids.wids_index:main"}


def main(arguments: list[str]) -> None:
    """Run the program as `python` would, with its exit status."""
    if arguments[:1] == ["--allow-pickle"]:
        environment.allow_pickle()
        arguments = arguments[1:]
    as_module = arguments[:1] == ["-m"]
    program = arguments[as_module:][:1]
    if not program or (program[0].startswith("-") and program != ["-"] and not as_module):
        help_requested = program in (["-h"], ["--help"])
        (sys.stdout if help_requested else sys.stderr).write(USAGE)
        raise SystemExit(0 if help_requested else 2)
    install()
    sys.argv = arguments[as_module:]
    if as_module:
        _run_module(program[0])
    elif program[0] == "-" or os.path.exists(program[0]):
        _run_script(program[0])
    else:
        _run_command(program[0])


def _run_module(name: str) -> None:
    if name.partition(".")[0] in ("webdataset", "wids"):
        name = f"tarmac.compat.{name}"  # the loader of a module accepts no other name
    if not _has_module(name):
        _fail(f"{name}: no such module. Try: install it, or run from the directory that contains it.")
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            return False
        raise  # a package lacks something else


def _run_script(path: str) -> None:
    # Python puts the directory of a script first; -m has put the current directory there.
    if path != "-":
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    if os.path.isfile(path) or os.path.isdir(path):
        runpy.run_path(path, run_name="__main__")
        return
    # runpy would read a pipe twice.
    with sys.stdin.buffer if path == "-" else open(path, "rb") as file:
        source = file.read()
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(source, "<stdin>" if path == "-" else path, "exec"), vars(module))  # noqa: S102 - the program


def _run_command(name: str) -> None:
    file = shutil.which(name)
    own = OWN_COMMANDS.get(name)
    entries = [EntryPoint(name, own, "")] if own else entry_points(group="console_scripts", name=name)
    for entry in entries:
        sys.argv[0] = file or name
        raise SystemExit(entry.load()())
    if file is None or not _is_python(file):
        _fail(f"{name}: no such script or Python command. Try: the path of a script, or -m MODULE.")
    _run_script(file)


def _is_python(path: str) -> bool:
    with open(path, "rb") as file:
        line = file.readline(200)
    return line.startswith(b"#!") and b"python" in line


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"{message}\n")
    raise SystemExit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
