"""Compare the ETag of a response with the expected version."""

from __future__ import annotations

from tarmac.errors import ObjectChanged


def if_match(version: str | None) -> str | None:
    """Return the value for If-Match. Weak tags never match there (RFC 9110), so they are only compared."""
    return None if version is None or version.startswith("W/") else version


def check_version(etag: str | None, version: str | None, url: str) -> None:
    """Raise if the ETag of a response differs from the expected version: servers may ignore If-Match.

    A weak tag and a strong one with the same text are the same version. A response without an ETag may
    have any version, so it is an error if one is expected.
    """
    if version is None:
        return
    if etag is None:
        raise ObjectChanged("the response has no ETag, so the object may have been replaced.", url=url)
    if etag.removeprefix("W/") != version.removeprefix("W/"):
        raise ObjectChanged("the object was replaced: its ETag has changed.", url=url)
