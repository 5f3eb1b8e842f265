"""Translation of obstore's errors."""

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


def debug_text(facts: str, kind: type[Exception] = Exception) -> Exception:
    return kind(f"Generic S3 error: http://h/x?sig=s3cret\n\nDebug source:\n{facts}")


@pytest.mark.parametrize(
    ("error", "kind", "what"),
    [
        (
            debug_text("inner: Status {\n status: 403,\n body: <Code>AccessDenied</Code>"),
            AccessDenied,
            "403.*AccessDenied",
        ),
        (
            debug_text("retries: 3,\n status: 503,\n body: status: 404,"),
            ConnectFailed,
            "503.*after 3 retries",
        ),
        (debug_text("HttpError {\n  kind: Timeout,\n source"), Stalled, "idle"),
        (debug_text("HttpError {\n  kind: Connect,\n source"), ConnectFailed, "reached"),
        (debug_text("HttpError {\n  kind: Interrupted,\n source"), ShortRead, "broke"),
        (debug_text("HttpError {\n  kind: Decode,\n source"), ShortRead, "response"),
        (
            debug_text("HttpError {\n kind: Unknown,\n source: reqwest::Error { kind: Redirect"),
            ConnectFailed,
            "redirect",
        ),
        (debug_text("source: UnexpectedRange {"), TransferError, "range"),
        (debug_text("nothing known"), TransferError, "Generic S3 error"),
        (FileNotFoundError("gone"), NotFound, "object"),
        (PermissionError("no"), AccessDenied, "store"),
        (type("AlreadyExistsError", (Exception,), {})("x"), CommitFailed, "exists"),
        (type("InvalidPathError", (Exception,), {})("x"), UrlError, "path"),
        (type("UnknownConfigurationKeyError", (Exception,), {})("x"), UrlError, "key"),
        (
            debug_text("uri: Some(\n http://169.254.169.254/latest/api/token,\n), status: 403,"),
            AccessDenied,
            r"no credentials.*AWS_PROFILE.*AWS_SKIP_SIGNATURE",
        ),
    ],
)
def test_translation(error, kind, what):
    result = translate(error, URL)
    assert type(result) is kind
    with pytest.raises(kind, match=what):
        raise result
    assert "s3cret" not in str(result)
    assert result.url == URL


def test_panics_are_translated():
    class PanicException(BaseException):
        pass

    with pytest.raises(TransferError, match="oh"), translating(URL):
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
def test_status_errors(status, kind):
    assert type(status_error(status, URL)) is kind
    assert str(status) in str(status_error(status, URL))
