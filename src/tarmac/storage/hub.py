"""`hf://` URLs: files of datasets and models on the Hugging Face hub, over https with the user's token."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import quote, unquote

from tarmac import environment
from tarmac.errors import UnsupportedScheme, UrlError
from tarmac.storage import objects
from tarmac.storage.types import ObjectInfo, Sink, Source, StorageOptions, WriteOptions

__all__ = ["open_read", "open_write", "read_range", "resolve", "stat"]

_FORM = re.compile(
    r"hf://(?P<kind>(?:datasets|models|spaces)/)?"
    r"(?P<repo>(?!(?:datasets|models|spaces)/)[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?/(?P<path>.+)"
)


def resolve(url: str) -> str:
    """Translate `hf://datasets/ORG/NAME@REVISION/PATH` into the address of the file."""
    match = _FORM.fullmatch(url)
    if match is None:
        raise UrlError("this is not of the form hf://datasets/ORG/NAME[@REVISION]/PATH.", url=url)
    kind = "" if match["kind"] in (None, "models/") else match["kind"]
    revision = quote(unquote(match["revision"] or "main"), safe="")
    return f"{environment.hub_endpoint()}/{kind}{match['repo']}/resolve/{revision}/{quote(match['path'])}"


def _with_token(options: StorageOptions) -> StorageOptions:
    token = environment.hub_token()
    if token is None or "authorization" in map(str.lower, options.headers):
        return options
    return replace(options, headers={**options.headers, "Authorization": f"Bearer {token}"})


def open_read(url: str, options: StorageOptions) -> Source:
    """Open a file of the hub."""
    return objects.open_read(resolve(url), _with_token(options))


def open_write(url: str, _options: StorageOptions, _write: WriteOptions) -> Sink:
    """Refuse: uploads to the hub are commits and belong to its own client."""
    raise UnsupportedScheme(
        "hf:// is read-only here.", url=url, hint="write locally, then huggingface-cli upload."
    )


def stat(url: str, options: StorageOptions) -> ObjectInfo:
    """Return size and ETag."""
    return objects.stat(resolve(url), _with_token(options))


def read_range(url: str, start: int, stop: int, options: StorageOptions, version: str | None = None) -> bytes:
    """Return the bytes from `start` up to `stop`."""
    return objects.read_range(resolve(url), start, stop, _with_token(options), version)
