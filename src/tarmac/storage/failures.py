"""obstore's errors to tarmac's: what went wrong, in words a user can act on, without secrets.

obstore prints a structured description behind each message. Status and kind are read from there; the
texts themselves are not passed on, as they hold URLs with signatures and whatever the server said.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from http import HTTPStatus

from tarmac.errors import (
    AccessDenied,
    CommitFailed,
    ConnectFailed,
    NotFound,
    ObjectChanged,
    ShortRead,
    Stalled,
    TarmacError,
    TransferError,
    UrlError,
    redact,
)

__all__ = ["refused", "translate", "translating"]

_STATUS = re.compile(r"\bstatus: (\d{3}),")
_KIND = re.compile(r"HttpError \{\s+kind: (\w+),")
_TRIES = re.compile(r"\bretries: (\d+),")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_RANGE = re.compile(r"\b(RangeNotSupported|NotPartial|UnexpectedRange|NoContentRange|ParseContentRange)\b")
_BY_CLASS: dict[str, tuple[type[TarmacError], str]] = {
    "AlreadyExistsError": (CommitFailed, "the object exists."),
    "InvalidPathError": (UrlError, "this is no path that the store accepts."),
    "UnknownConfigurationKeyError": (
        UrlError,
        "StorageOptions.config has a key that the store does not know.",
    ),
}
_BY_KIND: dict[str, tuple[type[TarmacError], str]] = {
    "Timeout": (Stalled, "the server sent nothing for longer than the idle timeout"),
    "Connect": (ConnectFailed, "the server cannot be reached"),
    "Request": (ConnectFailed, "the server closed the connection instead of answering"),
    "Interrupted": (ShortRead, "the connection broke, and the rest could not be fetched"),
    "Decode": (ShortRead, "the server's answer makes no sense"),
}


@contextlib.contextmanager
def translating(url: str) -> Iterator[None]:
    """Turn obstore's errors into tarmac's. The cause is dropped: it may hold a signed URL."""
    try:
        yield
    except TarmacError:
        raise
    except Exception as error:
        raise translate(error, url) from None
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # a bug in obstore, which no `except Exception` catches
            raise TransferError(f"obstore broke down: {redact(str(error))}.", url=url) from None
        raise


def translate(error: Exception, url: str) -> TarmacError:
    """Choose the error that says what a user can do about it."""
    message, _, facts = str(error).partition("\n\nDebug source")
    known = _BY_CLASS.get(type(error).__name__)
    if known is not None:
        return known[0](known[1], url=url)
    status = _STATUS.search(facts)
    if status is not None:
        code = _CODE.search(facts)
        return refused(int(status[1]), url, code=code[1] if code else "", tries=_tries(facts))
    if _RANGE.search(facts):
        hint = "a cache, --cache DIR, which reads shards from front to back."
        return TransferError("the server does not give the ranges of bytes asked for.", url=url, hint=hint)
    kind = _KIND.search(facts)
    if kind is not None and kind[1] in _BY_KIND:
        made, what = _BY_KIND[kind[1]]
        return made(f"{what}{_tries(facts)}.", url=url)
    if "Redirect" in facts:
        return ConnectFailed("the server redirects in a circle, or to nowhere.", url=url)
    if isinstance(error, FileNotFoundError):
        return NotFound("no such object.", url=url)
    if isinstance(error, PermissionError):
        return AccessDenied("the store refused.", url=url)
    short = " ".join(redact(message).split())[:300].rstrip(".")
    return TransferError(f"{short}.", url=url)


def refused(status: int, url: str, *, code: str = "", tries: str = "") -> TarmacError:
    """Make the error for an answer that is not a success; `code` is the store's own word for it."""
    try:
        phrase = f" {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = ""
    what = f"the server answered {status}{phrase}{f' ({code})' if code else ''}{tries}."
    if status in (401, 403):
        return AccessDenied(what, url=url, hint="check the credentials and what they allow.")
    if status in (404, 410):
        return NotFound(what, url=url)
    if status == 412:
        return ObjectChanged(what, url=url)
    if status in (408, 429) or status >= 500:
        return ConnectFailed(what, url=url)
    return TransferError(what, url=url)


def _tries(facts: str) -> str:
    found = _TRIES.search(facts)
    return f", after {found[1]} retries" if found and found[1] != "0" else ""
