"""`ais://` URLs: AIStore over its HTTP interface; the proxy redirects to the node that has the object.

Buckets of other stores come through it too, and out of its cache, where `USE_AIS_FOR` says so.
"""

from __future__ import annotations

from urllib.parse import quote

from tarmac import environment
from tarmac.errors import UrlError
from tarmac.storage import objects
from tarmac.storage.types import ObjectInfo, Sink, Source, StorageOptions, WriteOptions

__all__ = ["open_read", "open_write", "read_range", "resolve", "stat"]


_PROVIDERS = {
    "ais": "ais",
    "aws": "aws",
    "az": "azure",
    "azure": "azure",
    "gcp": "gcp",
    "gs": "gcp",
    "s3": "aws",
}
"""What AIStore calls the store that a scheme stands for."""


def resolve(url: str) -> str:
    """Translate `ais://BUCKET/OBJECT`, or `s3://…`, into a request to the proxy named by `AIS_ENDPOINT`."""
    scheme, _, rest = url.partition("://")
    provider = _PROVIDERS.get(scheme.lower())
    if provider is None:
        known = ", ".join(sorted(_PROVIDERS))
        raise UrlError(f'AIStore has no "{scheme[:20]}" buckets.', url=url, hint=f"USE_AIS_FOR with {known}.")
    endpoint = environment.aistore_endpoint()
    if not endpoint:
        raise UrlError("AIS_ENDPOINT is not set.", url=url, hint="export AIS_ENDPOINT=http://HOST:PORT")
    bucket, _, name = rest.partition("/")
    if not bucket or not name:
        raise UrlError(f"this is not of the form {scheme}://BUCKET/OBJECT.", url=url)
    if "://" not in endpoint:
        endpoint = f"http://{endpoint}"
    return f"{endpoint.rstrip('/')}/v1/objects/{quote(bucket)}/{quote(name)}?provider={provider}"


def open_read(url: str, options: StorageOptions) -> Source:
    """Open an object for reading."""
    return objects.open_read(resolve(url), options)


def open_write(url: str, options: StorageOptions, write: WriteOptions) -> Sink:
    """Begin an object."""
    return objects.open_write(resolve(url), options, write)


def stat(url: str, options: StorageOptions) -> ObjectInfo:
    """Return size and ETag."""
    return objects.stat(resolve(url), options)


def read_range(url: str, start: int, stop: int, options: StorageOptions, version: str | None = None) -> bytes:
    """Return the bytes from `start` up to `stop`."""
    return objects.read_range(resolve(url), start, stop, options, version)
