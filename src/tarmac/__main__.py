"""The program: `python -m tarmac`, and the command `tarmac`."""

from __future__ import annotations

import signal


def run() -> None:
    """Run the command line. A signal before or after it ends the process silently."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    from tarmac.cli import main

    main()


if __name__ == "__main__":
    run()
