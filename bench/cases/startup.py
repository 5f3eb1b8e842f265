"""Starting up: what every script and every command pays before it does anything."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from bench import data
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
_FIRST = """
import sys, time
begin = time.perf_counter()
import tarmac
tarmac.Dataset({shard!r})[0]
seconds = time.perf_counter() - begin
import json
print(json.dumps([seconds, "pandas" in sys.modules]))
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


@case("Dataset(x)[0]", sides=("tarmac",), limit=0.150, repeat=10)
def first_sample(site: Site, _: str) -> Work:
    """Of an indexed shard, in a new interpreter; its own start does not count."""
    shard = site.data / data.linked_photos(site, 1, index=True)[0]
    command = [sys.executable, "-c", _FIRST.format(shard=str(shard))]

    def work() -> Done:
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        seconds, pandas = json.loads(output)
        return Done(seconds=seconds, fault="loads pandas" if pandas else "")

    return work


@case("tarmac show x.tar -n 1", sides=("tarmac",), limit=0.250, repeat=10)
def showing(site: Site, side: str) -> Work:
    shard = site.data / data.linked_photos(site, 1)[0]
    return running([sys.executable, "-m", side, "show", str(shard), "-n", "1"])


@case("tarmac --help", sides=("tarmac",), limit=0.250, repeat=10)
def helping(_: Site, side: str) -> Work:
    return running([sys.executable, "-m", side, "--help"])


def running(command: list[str]) -> Work:
    """Run a command from start to end."""

    def work() -> Done:
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return Done(seconds=time.perf_counter() - begin)

    return work
