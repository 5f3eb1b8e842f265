"""Run a script, or with `-m` a module, with tarmac in place of the webdataset library."""

from __future__ import annotations

import os
import runpy
import sys

from tarmac.compat import install

USAGE = "usage: python -m tarmac.compat (SCRIPT | -m MODULE) [ARGUMENT …]\n"


def main(arguments: list[str]) -> None:
    """Run the program as `python` would, with its exit status."""
    as_module = arguments[:1] == ["-m"]
    program = arguments[as_module:][:1]
    if not program or (program[0].startswith("-") and not as_module):
        help_requested = program in (["-h"], ["--help"])
        (sys.stdout if help_requested else sys.stderr).write(USAGE)
        raise SystemExit(0 if help_requested else 2)
    install()
    sys.argv = arguments[as_module:]
    if as_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        # Python puts the directory of a script first; -m has put the current directory there.
        sys.path.insert(0, os.path.dirname(os.path.abspath(program[0])))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
