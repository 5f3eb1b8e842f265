"""The last net: what nobody expected to be raised becomes a message that asks for a report."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from types import TracebackType

import tarmac
from tarmac.display import display_url

__all__ = ["unexpected"]

_HOME = os.path.dirname(tarmac.__file__) + os.sep


def unexpected(error: BaseException, arguments: Sequence[str]) -> str:
    """Say what happened and where: the verb, the line of tarmac, and the shard, if it is known."""
    verb = next((each for each in arguments if not each.startswith("-")), "")
    line, shard = _place(error.__traceback__)
    said = "".join(traceback.format_exception_only(type(error), error)).strip()
    where = ", ".join(filter(None, (line and f"at {line}", shard and f"in {display_url(shard)}")))
    return (
        f"tarmac{' ' if verb else ''}{verb}: unexpected {said}{f' ({where})' if where else ''}. "
        "This is a defect of tarmac, please report it with this message. TARMAC_DEBUG=1 shows more."
    )


def _place(trace: TracebackType | None) -> tuple[str, str]:
    """Find the innermost line of tarmac, and the URL that was being worked on there or further out."""
    line = shard = ""
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename.startswith(_HOME):
            line = f"{frame.f_code.co_filename.removeprefix(_HOME)}:{trace.tb_lineno}"
            url = frame.f_locals.get("url")
            shard = url if isinstance(url, str) and url else shard
        trace = trace.tb_next
    return line, shard
