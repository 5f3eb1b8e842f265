"""obstore's errors to tarmac's: one for each thing a user can do about it."""

from __future__ import annotations

import pytest

from tarmac.errors import (
    AccessDenied,
    CommitFailed,
    ConnectFailed,
    NotFound,
    ObjectChanged,
    ShortRead,
    Stalled,
    TransferError,
    UrlError,
)
from tarmac.storage.obstore_errors import status_error, translate, translating

URL = "s3://bucket/x.tar"


def told(facts: str, kind: type[Exception] = Exception) -> Exception:
    return kind(f"Generic S3 error: http://h/x?sig=s3cret\n\nDebug source:\n{facts}")


@pytest.mark.parametrize(
    ("error", "kind", "what"),
    [
        (
            told("inner: Status {\n status: 403,\n body: <Code>AccessDenied</Code>"),
            AccessDenied,
            "403.*AccessDenied",
        ),
        (told("retries: 3,\n status: 503,\n body: status: 404,"), ConnectFailed, "503.*after 3 retries"),
        (told("HttpError {\n  kind: Timeout,\n source"), Stalled, "idle"),
        (told("HttpError {\n  kind: Connect,\n source"), ConnectFailed, "reached"),
        (told("HttpError {\n  kind: Interrupted,\n source"), ShortRead, "broke"),
        (told("HttpError {\n  kind: Decode,\n source"), ShortRead, "no sense"),
        (
            told("HttpError {\n kind: Unknown,\n source: reqwest::Error { kind: Redirect"),
            ConnectFailed,
            "circle",
        ),
        (told("source: UnexpectedRange {"), TransferError, "range"),
        (told("nothing known"), TransferError, "Generic S3 error"),
        (FileNotFoundError("gone"), NotFound, "no such object"),
        (PermissionError("no"), AccessDenied, "status_error"),
        (type("AlreadyExistsError", (Exception,), {})("x"), CommitFailed, "exists"),
        (type("InvalidPathError", (Exception,), {})("x"), UrlError, "path"),
        (type("UnknownConfigurationKeyError", (Exception,), {})("x"), UrlError, "key"),
    ],
)
def test_translation(error, kind, what):
    found = translate(error, URL)
    assert type(found) is kind
    with pytest.raises(kind, match=what):
        raise found
    assert "s3cret" not in str(found)
    assert found.url == URL


def test_a_panic_is_an_error_like_others():
    class PanicException(BaseException):
        pass

    with pytest.raises(TransferError, match="broke down: oh"), translating(URL):
        raise PanicException("oh")
    with pytest.raises(KeyboardInterrupt), translating(URL):
        raise KeyboardInterrupt
    with pytest.raises(Stalled, match="mine"), translating(URL):
        raise Stalled("mine")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, AccessDenied),
        (404, NotFound),
        (412, ObjectChanged),
        (429, ConnectFailed),
        (599, ConnectFailed),
        (499, TransferError),
    ],
)
def test_refusals(status, kind):
    assert type(status_error(status, URL)) is kind
    assert str(status) in str(status_error(status, URL))
