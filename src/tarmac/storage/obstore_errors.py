"""Translate obstore's errors into tarmac's, without secrets.

obstore adds a structured description to each message. Status and type are parsed from it; the text itself is
dropped, because it contains signed URLs and the server's response.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from http import HTTPStatus

from tarmac.display import redact
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
)

_STATUS = re.compile(r"\bstatus: (\d{3}),")
_KIND = re.compile(r"HttpError \{\s+kind: (\w+),")
_TRIES = re.compile(r"\bretries: (\d+),")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_RANGE = re.compile(r"\b(RangeNotSupported|NotPartial|UnexpectedRange|NoContentRange|ParseContentRange)\b")
_BY_CLASS: dict[str, tuple[type[TarmacError], str]] = {
    "AlreadyExistsError": (CommitFailed, "the object exists."),
    "InvalidPathError": (UrlError, "the store does not accept this path."),
    "UnknownConfigurationKeyError": (
        UrlError,
        "StorageOptions.config has a key that is unknown to the store.",
    ),
}
_BY_KIND: dict[str, tuple[type[TarmacError], str]] = {
    "Timeout": (Stalled, "the server sent nothing for longer than the idle timeout"),
    "Connect": (ConnectFailed, "the server cannot be reached"),
    "Request": (ConnectFailed, "the server closed the connection without a response"),
    "Interrupted": (ShortRead, "the connection broke, and the remaining bytes could not be fetched"),
    "Decode": (ShortRead, "the response of the server is invalid"),
}


@contextlib.contextmanager
def translating(url: str) -> Iterator[None]:
    """Translate obstore's errors into tarmac's. The cause is dropped, because it may contain a signed URL."""
    try:
        yield
    except TarmacError:
        raise
    except Exception as error:
        raise translate(error, url) from None
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # a bug in obstore, which is not an Exception
            raise TransferError(f"obstore crashed: {redact(str(error))}.", url=url) from None
        raise


def translate(error: Exception, url: str) -> TarmacError:
    """Return the error of tarmac that corresponds to an error of obstore."""
    message, _, facts = str(error).partition("\n\nDebug source")
    known = _BY_CLASS.get(type(error).__name__)
    if known is not None:
        return known[0](known[1], url=url)
    status = _STATUS.search(facts)
    if status is not None:
        code = _CODE.search(facts)
        return status_error(int(status[1]), url, code=code[1] if code else "", tries=_tries(facts))
    if _RANGE.search(facts):
        return no_ranges(url)
    kind = _KIND.search(facts)
    if kind is not None and kind[1] in _BY_KIND:
        error_class, what = _BY_KIND[kind[1]]
        return error_class(f"{what}{_tries(facts)}.", url=url)
    if "Redirect" in facts:
        return ConnectFailed("the server redirects in a loop, or to an invalid address.", url=url)
    if isinstance(error, FileNotFoundError):
        return NotFound("no such object.", url=url)
    if isinstance(error, PermissionError):
        return AccessDenied("the store denied access.", url=url)
    short = " ".join(redact(message).split())[:300].rstrip(".")
    return TransferError(f"{short}.", url=url)


def no_ranges(url: str) -> TarmacError:
    """Return the error for a server that does not return the requested range."""
    what = "the server does not support range requests."
    return TransferError(what, url=url, hint="a `cache`, which downloads whole shards.")


def status_error(status: int, url: str, *, code: str = "", tries: str = "") -> TarmacError:
    """Return the error for an HTTP status; `code` is the error code of the store."""
    try:
        phrase = f" {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = ""
    what = f"the server responded with {status}{phrase}{f' ({code})' if code else ''}{tries}."
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
    match = _TRIES.search(facts)
    return f", after {match[1]} retries" if match and match[1] != "0" else ""
