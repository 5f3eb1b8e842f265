"""Keep the code of functions current in processes that outlive jobs, such as the workers of a Dask cluster.

Such a process has imported the files of an earlier job. If they have changed since, they are imported again. A
process that sees other files than the one that started the job raises an error: results would be mixed.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from tarmac.errors import EngineError

_loaded: dict[str, str] = {}
"""The digests of files when this process imported them, as far as it is known."""


def file_digests(paths: Iterable[str]) -> dict[str, str]:
    """Return the digests of files by absolute path; those that do not exist are left out."""
    return {
        os.path.abspath(path): xxhash.xxh3_64_hexdigest(Path(path).read_bytes())
        for path in paths
        if os.path.isfile(path)
    }


def refresh(digests: Mapping[str, str]) -> None:
    """Have these files imported again if one of them has changed since this process imported it."""
    changed = [path for path, digest in digests.items() if _loaded.get(path, digest) != digest]
    for name, module in list(sys.modules.items()) if changed else ():
        path = getattr(module, "__file__", None)
        if name != "__main__" and path is not None and os.path.abspath(path) in digests:
            del sys.modules[name]
            package, _, attribute = name.rpartition(".")
            if getattr(sys.modules.get(package), attribute, None) is module:
                delattr(sys.modules[package], attribute)  # `from package import module` would return it
    _loaded.update(digests)


@dataclass(frozen=True)
class CurrentFiles:
    """The files of a function as the sender sees them. Unpickling it checks them, and has changed ones imported again.

    It must be pickled before the function: what follows in the pickle is imported after the check.
    """

    digests: dict[str, str]

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.digests,)


def _arrived(digests: dict[str, str]) -> CurrentFiles:
    here = file_digests(digests)
    for path, digest in here.items():
        if digests[path] != digest:
            raise EngineError(
                f"the process on {socket.gethostname()} sees another content of this file than the one that "
                "started the job.",
                url=path,
                hint="run the same command again when all machines have the same files.",
            )
    refresh(here)
    return CurrentFiles(digests)
