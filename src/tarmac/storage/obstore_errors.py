"""Translate obstore's errors into tarmac's, without secrets.

obstore adds a structured description to each message. Status and type are parsed from it; the text itself is
dropped, because it contains signed URLs and the server's response.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from http import HTTPStatus
from urllib.parse import unquote, urlsplit

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
from tarmac.extras import MissingExtra
from tarmac.storage.store import GLOB

_STATUS = re.compile(r"\bstatus: (\d{3}),")
_KIND = re.compile(r"HttpError \{\s+kind: (\w+),")
_TRIES = re.compile(r"\bretries: (\d+),")
_URI = re.compile(r"\buri: Some\(\s*(https?://[^\s,/?#]+)")
_KEY = re.compile(r"Configuration key: '([\w.-]{1,60})'")
_METADATA = frozenset(("169.254.169.254", "metadata.google.internal", "metadata"))
_HINTS = {
    "s3": "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; AWS_SKIP_SIGNATURE=true for a public bucket.",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS; GOOGLE_SKIP_SIGNATURE=true for a public bucket.",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; AZURE_SKIP_SIGNATURE=true for a public container.",
}
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_RANGE = re.compile(r"\b(RangeNotSupported|NotPartial|UnexpectedRange|NoContentRange|ParseContentRange)\b")
_BY_CLASS: dict[str, tuple[type[TarmacError], str]] = {
    "AlreadyExistsError": (CommitFailed, "the object exists."),
    "InvalidPathError": (UrlError, "the store does not accept this path."),
}
_BY_KIND: dict[str, tuple[type[TarmacError], str]] = {
    "Timeout": (Stalled, "the server{host} sent nothing for longer than the idle timeout"),
    "Connect": (ConnectFailed, "the server{host} cannot be reached"),
    "Request": (ConnectFailed, "the server{host} closed the connection without a response"),
    "Interrupted": (ShortRead, "the connection broke, and the remaining bytes could not be fetched"),
    "Decode": (ShortRead, "the response of the server is invalid"),
}


@contextlib.contextmanager
def translating(url: str, credentials: Callable[[], str] = str) -> Iterator[None]:
    """Translate obstore's errors into tarmac's. The cause is dropped, because it may contain a signed URL.

    `credentials` returns where the credentials of the request come from.
    """
    try:
        yield
    except (TarmacError, MissingExtra):
        raise
    except Exception as error:
        raise translate(error, url, credentials) from None
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # a bug in obstore, which is not an Exception
            what = f"the client of the store crashed: {redact(str(error))}."
            raise TransferError(what, url=url, hint="check the endpoint, region and bucket.") from None
        raise


def translate(error: Exception, url: str, credentials: Callable[[], str] = str) -> TarmacError:
    """Return the error of tarmac that corresponds to an error of obstore."""
    message, _, facts = str(error).partition("\n\nDebug source")
    if type(error).__name__ == "UnknownConfigurationKeyError":
        key = _KEY.search(message)
        what = f"StorageOptions.config has a key that is unknown to the store{f': {key[1]}' if key else ''}."
        return UrlError(what, url=url)
    host = _host(facts)
    if host in _METADATA:
        what = f"no credentials: the config, environment and profile have none, and {host} gives none."
        return AccessDenied(what, url=url, hint=_HINTS.get(url[:2], _HINTS["az"]))
    known = _BY_CLASS.get(type(error).__name__)
    if known is not None:
        return known[0](known[1], url=url)
    status = _STATUS.search(facts)
    if status is not None:
        code = _CODE.search(facts)
        number, name = int(status[1]), code[1] if code else ""
        return status_error(number, url, code=name, tries=_tries(facts), credentials=credentials())
    if _RANGE.search(facts):
        return no_ranges(url)
    kind = _KIND.search(facts)
    if kind is not None and kind[1] in _BY_KIND:
        error_class, what = _BY_KIND[kind[1]]
        return error_class(f"{what.format(host=f' {host}' if host else '')}{_tries(facts)}.", url=url)
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


def status_error(
    status: int, url: str, *, code: str = "", tries: str = "", credentials: str = ""
) -> TarmacError:
    """Return the error for an HTTP status; `code` is the error code of the store."""
    try:
        phrase = f" {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = ""
    what = f"the server responded with {status}{phrase}{f' ({code})' if code else ''}{tries}."
    if status in (401, 403):
        source = f" Credentials: {credentials}." if credentials else ""
        return AccessDenied(what + source, url=url, hint="check the credentials and what they allow.")
    if status in (404, 410):
        parts = urlsplit(url)
        glob = parts.scheme in ("http", "https") and GLOB.search(unquote(parts.path))
        hint = "web servers cannot be listed; name the shards: x-{0000..0009}.tar" if glob else None
        return NotFound(what, url=url, hint=hint)
    if status == 412:
        return ObjectChanged(what, url=url)
    if status in (408, 429) or status >= 500:
        return ConnectFailed(what, url=url)
    return TransferError(what, url=url)


def _host(facts: str) -> str:
    """Return the server of a failed request, without user and password."""
    uri = _URI.search(facts)
    return urlsplit(uri[1]).netloc.rpartition("@")[2] if uri else ""


def _tries(facts: str) -> str:
    match = _TRIES.search(facts)
    count = match[1] if match else "0"
    return {"0": "", "1": ", after 1 retry"}.get(count, f", after {count} retries")
