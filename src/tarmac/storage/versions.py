"""Whether an answer is of the object that was asked about, by its ETag."""

from __future__ import annotations

from tarmac.errors import ObjectChanged

__all__ = ["check_version", "if_match"]


def if_match(version: str | None) -> str | None:
    """Return what to send as If-Match. A weak tag never matches there (RFC 9110), so it is only compared."""
    return None if version is None or version.startswith("W/") else version


def check_version(found: str | None, version: str | None, url: str) -> None:
    """Compare the ETag of an answer with the one expected: servers may ignore If-Match.

    A weak tag and a strong one with the same text are the same version. An answer without a tag could be
    of any version, so where one is expected, that is an error.
    """
    if version is None:
        return
    if found is None:
        raise ObjectChanged("the answer has no ETag, so it may be of another object than before.", url=url)
    if found.removeprefix("W/") != version.removeprefix("W/"):
        raise ObjectChanged("the object was replaced: the answer has another ETag than before.", url=url)
