"""Read runs of ordinary samples in C, where `tarmac-native` is installed.

`read_members` has the bytes, and `group_members` what is known about keys and fields. A run needs both, so one object
is passed to both. The C code stops before the first sample that is not ordinary, and leaves it to these two. So
all errors, warnings and counts are theirs, and the samples are the same without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from mmap import mmap
from typing import Any

from tarmac.limits import KIB, MIB, Limits

Value = Callable[[int, int, bytes], Any]
"""Makes what a sample has for a field of its offset, its size and its bytes."""
INTERFACE = 1
"""The version of the C module that this one knows."""
# The bytes of an archive that a run may cover: its samples are in memory at once, and the pages of its headers.
_SPAN = 256 * KIB
_SPAN_OF_HEADERS = 8 * MIB
_MAX_UNWANTED = 1000


class NativeRuns:
    """Runs of samples in C: `scan` is None without the C module, and until `start`."""

    __slots__ = ("_options", "_unwanted", "scan")

    def __init__(self, limits: Limits, *, payload: bool = True, value: Value | None = None) -> None:
        extension_bytes = min(limits.extension_bytes, limits.member_bytes)
        span = _SPAN if payload else _SPAN_OF_HEADERS
        sizes = limits.member_bytes, extension_bytes, span
        self._options = *(min(size, sys.maxsize) for size in sizes), payload, value
        self._unwanted: set[bytes] = set()
        self.scan: Callable[[bytes | mmap, int, int, int], tuple[int, Any]] | None = None

    def start(
        self, url: str, fields: dict[bytes, str], seen: dict[int, str], tracked: int, prefix: int
    ) -> None:
        """Scan for samples of these fields with new keys.

        `seen` gets the hashes of up to `tracked` keys, with `prefix` characters of the first field of each.
        """
        native = _native()
        if native is not None:
            self.scan = native.Scanner(
                url, fields, self._unwanted, seen, min(tracked, sys.maxsize), prefix, *self._options
            ).run

    def leave_out(self, field: str) -> None:
        """Leave out the members of a field, which the caller does not want, either; it is spelled as in their names."""
        if len(self._unwanted) < _MAX_UNWANTED:
            self._unwanted.add(field.encode("utf-8", "surrogateescape"))


@cache
def _native() -> Any:
    try:
        from tarmac_native import tar
    except ImportError:
        return None
    return tar if tar.INTERFACE == INTERFACE else None
