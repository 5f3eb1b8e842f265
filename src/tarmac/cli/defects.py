"""Turn an unexpected exception into a message that asks for a bug report."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from types import TracebackType

import tarmac
from tarmac.display import display_url

_PACKAGE = os.path.dirname(tarmac.__file__) + os.sep


def unexpected(error: BaseException, arguments: Sequence[str]) -> str:
    """Return a message with the verb, the exception, the line in tarmac, and the shard if it is known."""
    verb = next((each for each in arguments if not each.startswith("-")), "")
    line, shard = _location(error.__traceback__)
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    where = ", ".join(filter(None, (line and f"at {line}", shard and f"in {display_url(shard)}")))
    return (
        f"tarmac{' ' if verb else ''}{verb}: unexpected {text}{f' ({where})' if where else ''}. "
        "This is a bug in tarmac: please report this message. TARMAC_DEBUG=1 shows the traceback."
    )


def _location(trace: TracebackType | None) -> tuple[str, str]:
    """Return the innermost line of tarmac, and the innermost URL in the frames."""
    line = shard = ""
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename.startswith(_PACKAGE):
            line = f"{frame.f_code.co_filename.removeprefix(_PACKAGE)}:{trace.tb_lineno}"
            url = frame.f_locals.get("url")
            shard = url if isinstance(url, str) and url else shard
        trace = trace.tb_next
    return line, shard
