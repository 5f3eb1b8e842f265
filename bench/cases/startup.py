"""Starting up: what every script and every command pays before it does anything."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from bench.registry import Done, Site, Work, case

HEAVY = ("torch", "pyarrow", "PIL", "obstore", "numpy")

# In an interpreter of its own: this one has already loaded much of the standard library.
_IMPORT = """
import sys, time
begin = time.perf_counter()
import {name}
seconds = time.perf_counter() - begin
import json
print(json.dumps([seconds, sorted(sys.modules.keys() & set({heavy!r}))]))
"""


@case("import", limit=0.100, repeat=10)
def importing(_: Site, side: str) -> Work:
    command = [sys.executable, "-c", _IMPORT.format(name=side, heavy=HEAVY)]

    def work() -> Done:
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        seconds, loaded = json.loads(output)
        note = f"loads {', '.join(loaded)}" if loaded else f"loads no {', '.join(HEAVY)}"
        return Done(seconds=seconds, note=note, fault=note if loaded and side == "tarmac" else "")

    return work


@case("tarmac --help", sides=("tarmac",), limit=0.250, repeat=10)
def helping(_: Site, side: str) -> Work:
    command = [sys.executable, "-m", side, "--help"]

    def work() -> Done:
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return Done(seconds=time.perf_counter() - begin)

    return work
